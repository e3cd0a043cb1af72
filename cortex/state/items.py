"""An item: a thing in K, where it came from, and how far it may be believed."""

from __future__ import annotations

from typing import Any

import msgspec


class Observation(msgspec.Struct, frozen=True):
    """How an item was read from a world that changes: by which tool, when, and for how long it may be believed."""

    tool: str
    arguments: dict[str, Any]
    read_at_s: float
    trust_s: float
    taken_at_s: float = -1.0
    """When K took it in: within that turn it is believed, however short the trust. Below zero: it was never read."""


class Item(msgspec.Struct, omit_defaults=True):
    """A thing in K: a source artefact, or one derived by a call. Large values are stored once and referred to by id."""

    kind: str
    value: Any = None
    sources: tuple[int, ...] = ()
    """Ids of the items that it was made from; select may go back to them."""
    lossy: bool = False
    """Whether something of its sources was lost on the way (a summary, a label)."""
    id: int = 0
    size_bytes: int = 0
    call: str = ""
    """The call whose reply it came from; empty for a source artefact."""
    observation: Observation | None = None
    """Given where it was read; an item of which the first reading is under way is not listed by ``items_of`` yet."""
