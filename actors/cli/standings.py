"""How a job stands, as its journal alone tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from actors.cli.telling import OVER, Standing
from actors.records import forgotten, last_owner, told
from actors.store import Folder
from actors.summary import summary
from cortex.state import State


def standing_of(folder: Folder, job: str, k: State | None = None) -> Standing:
    """The job's standing. Raises ``NoSuchJob``."""
    if k is None and (figures := forgotten(folder, job)):
        facts: dict[str, Any] = msgspec.json.decode(figures)
        rows, unreadable = facts["rows_counted"], facts["lines_unreadable"]
        return Standing(facts=facts, state=folder.address, rows=rows, unreadable=unreadable)
    found = told(folder, job, k)
    k = found.k
    facts = facts_of(folder, job, k)
    places = k.terms.places
    return Standing(
        facts=facts, state=folder.address, answer=found.answer, rows=number(places, "rows"),
        unreadable=number(places, "unreadable"), untold=found.untold,
    )  # fmt: skip


def facts_of(folder: Folder, job: str, k: State) -> dict[str, Any]:
    """A job's figures, and what it does now."""
    facts = summary(k)
    facts["outcome"] = k.outcome or living(folder, job)
    if facts["outcome"] == "interrupted":
        facts["waits"] = ""  # nobody is there to wait
    return facts


def living(folder: Folder, job: str) -> str:
    """What a job does that has not ended: somebody runs it, it goes on in a cluster alone, or its run was killed."""
    if folder.is_held(job):
        return "running"
    owner = last_owner(folder, job)
    alone = owner is not None and owner.cluster not in ("inline", "local", "child")
    return "detached" if alone else "interrupted"


def spool_of(folder: Folder, job: str) -> Path:
    """Where an input that can be read only once is kept, until its job is over."""
    return folder.beside(job, ".input")


def forget_spool(folder: Folder, standing: Standing) -> None:
    """A job that is over reads nothing more."""
    if standing.outcome in OVER:
        spool_of(folder, str(standing.facts["job"])).unlink(missing_ok=True)


def number(places: dict[str, str], name: str) -> int:
    """A count that was kept with the job; 0 where none was."""
    text = places.get(name, "")
    return int(text) if text.isdecimal() else 0
