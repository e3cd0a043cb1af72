"""Items: values in K, their sources, and how long observations stay valid."""

from __future__ import annotations

from typing import Any

import msgspec


class Observation(msgspec.Struct, frozen=True):
    """Reading of external, mutable state: the tool, the time, and how long the value may be used."""

    tool: str
    arguments: dict[str, Any]
    read_at_s: float
    """Time of the reading, in seconds since 1970."""
    trust_s: float
    """Seconds for which the value may be used."""
    taken_at_s: float = -1.0
    """Time at which K took the reading in: within that turn it is valid, however short ``trust_s``. Below 0: never
    read."""


class Item(msgspec.Struct, omit_defaults=True):
    """Value in K: a source artefact, or one derived by a call. Large values are stored once and referred to by id."""

    kind: str
    """Kind of the item, chosen by the program."""
    value: Any = None
    """Plain data."""
    sources: tuple[int, ...] = ()
    """Ids of the items that it was made from; select may return to them."""
    lossy: bool = False
    """True if content of its sources was lost (a summary, a label)."""
    id: int = 0
    """Number of the item in its job, from 1; 0 until it is added."""
    size_bytes: int = 0
    """Size of the value: UTF-8 bytes of a text, otherwise bytes of its JSON."""
    call: str = ""
    """Id of the call whose reply it came from; empty for a source artefact."""
    observation: Observation | None = None
    """Reading of an observed item. While its first reading is in progress, ``items_of`` does not list the item."""
