"""What the journals of a state folder tell of their jobs, read without touching them and without a runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from actors import programs
from actors.cluster.heap import unwatched
from actors.opening import Owner
from actors.programs import load
from actors.store import Folder, Journal, NoSuchJob, TextGone
from actors.watching import Watches
from cortex import events, journal
from cortex.limits import Terms
from cortex.program import Program
from cortex.state import State

LATEST = ("wish", "config", "limits")
"""Places that a later run may say otherwise: these stand beside the journal as it said them."""


def note_latest(source: Journal, terms: Terms | None) -> None:
    """Write down what a run was told of these; nothing where its channel was only started again."""
    for name in LATEST if terms is not None else ():
        assert terms is not None
        said = terms.places.get(name, "").encode()
        if name != "limits" or said != (source.meta(name) or b""):
            source.set_meta(name, said)


def last_owner(folder: Folder, job: str) -> Owner | None:
    """Who began the latest run of a job; None for a job that never began."""
    if not folder.has(job):
        return None
    source = folder.journal(job)
    try:
        blob = source.meta("owner")
    finally:
        source.close()
    return msgspec.json.decode(blob, type=Owner) if blob else None


def forgotten(folder: Folder, job: str) -> bytes:
    """The figures of a job whose prompts and replies were removed, as JSON; empty where they were not."""
    if not folder.has(job):
        return b""
    source = folder.journal(job, forgotten_too=True)
    try:
        return source.meta("forgotten") or b""
    finally:
        source.close()


def last_places(folder: Folder, job: str, terms: Terms) -> dict[str, str]:
    """The places of a job, with what its latest run was told of the model: that may have changed since it opened."""
    source = folder.journal(job)
    try:
        latest = {name: (source.meta(name) or b"").decode() for name in LATEST}
    finally:
        source.close()
    return {**terms.places, **{name: said for name, said in latest.items() if said}}


def last_terms(folder: Folder, job: str) -> Terms | None:
    """The terms under which a job was last opened; None for one that never was."""
    if not folder.has(job):
        return None
    source = folder.journal(job)
    try:
        for _, turn in source.turns(source.opened_at()):
            return journal.opening(turn)
        return None
    except TextGone:
        snapshot = source.latest_snapshot()
        return journal.decode_state(snapshot[1]).terms if snapshot else None
    finally:
        source.close()


def program_of(terms: Terms) -> Program | None:
    """The program of a job; None where it is gone, or another now than the one that took the job's turns."""
    try:
        same = programs.fingerprint(terms.program, terms.params_json) == terms.fingerprint
        return programs.load(terms.program, terms.params_json) if same else None
    except ValueError:
        return None


def last_turn_s(folder: Folder, job: str) -> float:
    """When something last happened in a job, seconds since 1970; 0 where nothing did. Raises ``StoreError``."""
    source = folder.journal(job)
    try:
        return next((turn.at_s for _, turn in source.turns(source.seq - 1)), 0.0)
    finally:
        source.close()


def in_use(folder: Folder, job: str) -> str:
    """Who works on a job now, as one line that says what to do; empty where nobody does."""
    return said_in_use(folder, job) if folder.is_held(job) else ""


def said_in_use(folder: Folder, job: str) -> str:
    """The line for a job that another run holds."""
    owner = last_owner(folder, job)
    whom = f"process {owner.pid} on {owner.host}" if owner is not None else "another run that is just beginning"
    return f"job {job} is in use by {whom}: wait for it, end it with `cortex cancel {job}`, or give another --job"


def last_state(folder: Folder, job: str) -> State:
    """K of a job as its journal has it, read without touching it. Raises ``NoSuchJob``."""
    source = folder.journal(job)
    try:
        with source.as_it_is():
            last = source.seq
            k = replayed(source, lambda terms: load(terms.program, terms.params_json), last)
            if k is None:
                raise NoSuchJob(f"job {job} never began")
            journal.put_right(k, source.account(last))
            return k
    finally:
        source.close()


def differs(k: State, program: Program) -> str:
    """How the program is another than the one that took the job's turns, if so."""
    with unwatched():
        return k.differs or program.remade(k)


def replayed(
    source: Journal, program: Callable[[Terms], Program], upto: int | None = None, watch: Watches | None = None
) -> State | None:
    """K from the last snapshot and what came after it, to a turn or to the last one; None where no turn opens it.

    ``watch`` sees each turn that is replayed, with what it led to.
    """
    if watch is not None:
        watch.begin(source)
    after = source.replay_from()
    snapshot = source.latest_snapshot()
    if snapshot is None and after == source.seq:
        return None  # it never began, or died between noting its opening and writing it
    at = after

    def turns() -> Iterator[events.Turn]:
        nonlocal at
        for at, turn in source.turns(after):
            if upto is None or at <= upto:
                yield turn

    with unwatched():
        k = journal.decode_state(snapshot[1]) if snapshot else None
        if watch is None:
            return journal.replay(k, turns(), program)
        return journal.replay(k, turns(), program, seen=lambda turn, out, k: watch.again(at, turn, out, k))
