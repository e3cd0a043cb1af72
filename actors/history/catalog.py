"""Information about the jobs of a state folder, read from their journals without changing them and without a
runtime."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from actors.common.gc_tuning import unwatched
from actors.common.process_owner import Owner
from actors.history import final_state
from actors.history.lost_shards import finished, gone_back
from actors.journal.errors import never_began
from actors.journal.journal import Journal, NoSuchJob, StateFolder, TextRedacted
from actors.journal.state_folder import advised
from actors.ports.telemetry import JobObservers
from actors.programs import loader
from actors.programs.loader import load
from cortex.journal import codec
from cortex.state import events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms

LATEST = ("wish", "config", "limits")
"""Places whose values may change in a later run; the latest values are kept beside the journal."""


def note_latest(source: Journal, terms: JobTerms | None) -> None:
    """Record the places in ``LATEST`` as given to this run. Does nothing if only the channel was restarted
    (``terms`` is None)."""
    for name in LATEST if terms is not None else ():
        assert terms is not None
        data = terms.places.get(name, "").encode()
        if name != "limits" or data != (source.meta(name) or b""):
            source.set_meta(name, data)


def last_owner(folder: StateFolder, job: str) -> Owner | None:
    """Return the owner of a job's latest run; None if the job never began."""
    if not folder.has(job):
        return None
    source = folder.journal(job)
    try:
        blob = source.meta("owner")
    finally:
        source.close()
    return msgspec.json.decode(blob, type=Owner) if blob else None


def forgotten(folder: StateFolder, job: str) -> bytes:
    """Return the figures, as JSON, of a job whose prompts and replies were removed; empty if they were not."""
    if not folder.has(job):
        return b""
    source = folder.journal(job, forgotten_too=True)
    try:
        return source.meta("forgotten") or b""
    finally:
        source.close()


def last_places(folder: StateFolder, job: str, terms: JobTerms) -> dict[str, str]:
    """Return the places of a job, with those of ``LATEST`` from its latest run, which may differ from the opening's."""
    source = folder.journal(job)
    try:
        latest = {name: (source.meta(name) or b"").decode() for name in LATEST}
    finally:
        source.close()
    return {**terms.places, **{name: text for name, text in latest.items() if text}}


def last_terms(folder: StateFolder, job: str) -> JobTerms | None:
    """Return the terms under which a job was last opened; None if it never was."""
    if not folder.has(job):
        return None
    source = folder.journal(job)
    try:
        return terms_in(source)
    finally:
        source.close()


def terms_in(source: Journal) -> JobTerms | None:
    """Return the terms under which the job of a journal was last opened; None if it never was."""
    try:
        for _, turn in source.turns(source.opened_at()):
            return codec.opening(turn)
        return None
    except TextRedacted:
        snapshot = source.latest_snapshot()
        return codec.decode_state(snapshot[1]).terms if snapshot else None


def program_of(terms: JobTerms, strict: bool = True) -> Program | None:
    """Return the program of a job; None if it is gone, or has changed since it took the job's turns.

    Not ``strict``: a ready program of another release is accepted.
    """
    try:
        if loader.is_ready(terms.program, terms.params_json) and not strict:
            return loader.load(terms.program, terms.params_json)
        same = loader.is_unchanged(terms.program, terms.params_json, terms.fingerprint)
        return loader.load(terms.program, terms.params_json) if same else None
    except ValueError:
        return None


def last_turn_s(folder: StateFolder, job: str) -> float:
    """Return the time of the last turn, Unix time; 0 without turns. Raises ``StoreError``."""
    source = folder.journal(job)
    try:
        return next((turn.at_s for _, turn in source.turns(source.seq - 1)), 0.0)
    finally:
        source.close()


def in_use(folder: StateFolder, job: str) -> str:
    """Return one line about the run that holds a job, and what to do; empty if no run does."""
    return in_use_message(folder, job) if folder.is_held(job) else ""


def in_use_message(folder: StateFolder, job: str) -> str:
    """Return the line about a job that another run holds."""
    owner = last_owner(folder, job)
    whom = f"process {owner.pid} on {owner.host}" if owner is not None else "another run that is just beginning"
    return f"job {job} is in use by {whom}: wait for it, or end it with `{advised(folder, 'cancel', job)}`"


class JobRecord(msgspec.Struct):
    """State and answer of a job from its journal. ``unread_reason``: one line about what could not be read, and why;
    empty if everything was."""

    k: State
    answer: Any = None
    unread_reason: str = ""


def read_job(folder: StateFolder, job: str, k: State | None = None) -> JobRecord:
    """Return K and the answer of a job. If the job has ended, they are as recorded at its end (perhaps without K's
    goals). Else they are replayed with the program that took the job's turns, if it is unchanged; else they are
    limited to the journal's own data. ``k``: K, if the caller has it. Raises ``NoSuchJob``."""
    source = folder.journal(job)
    try:
        with source.as_it_is():
            ended = final_state.read(source, rest=True)
            if ended is not None:
                return JobRecord(k or ended.k, ended.answer)
            terms = k.terms if k is not None else last_terms(folder, job)
            if terms is None:
                raise NoSuchJob(never_began(job))
            program = program_of(terms, strict=False)
            if program is None:
                return JobRecord(k or by_events(source), unread_reason=unreadable_reason(job))
    finally:
        source.close()
    k = k or last_state(folder, job)
    return JobRecord(k, _answer(k, program))


def unreadable_reason(job: str) -> str:
    """Return why a job can be read only in part."""
    return (
        f"the program of {job} has changed since, or is gone: its answer, its results and the list of its failed rows "
        "are left out, since they need that program"
    )


def as_it_was(terms: JobTerms) -> Program:
    """Return the program of a job. Raises ``NoSuchProgram`` if the program that took the job's turns has changed or
    is gone."""
    program = program_of(terms, strict=False)
    if program is None:
        raise loader.NoSuchProgram(unreadable_reason(terms.job))
    return program


def _answer(k: State, program: Program) -> Any:
    if k.outcome not in ("complete", "partial"):
        return None
    with contextlib.suppress(Exception):  # an author's code may raise any error, above all on partial data
        return msgspec.to_builtins(program.answer(k))
    return None


def by_events(source: Journal) -> State:
    """Return K as far as it is known without the program: the last snapshot, and the data of the events since. The
    number and keys of failed rows are not known. Raises ``NoSuchJob``."""
    snapshot = source.latest_snapshot()
    k = codec.decode_state(snapshot[1]) if snapshot else None
    for _, turn in source.turns(snapshot[0] if snapshot is not None else source.opened_at()):
        terms = codec.opening(turn)
        if terms is not None:
            k = codec.open_job(terms)
            k.began_at_s = turn.at_s
        if k is not None:
            k.at_s = max(k.at_s, turn.at_s)
            for batch in turn.batches:
                for event in batch:
                    _take_event(k, event)
    if k is None:
        raise NoSuchJob(never_began(source.job))
    codec.put_right(k, source.account(source.seq))
    return k


def _take_event(k: State, event: events.Event) -> None:
    tally = k.tally
    if isinstance(event, (events.Answered, events.ReplyRecalled)):
        tally.calls += 1
    elif isinstance(event, events.AttemptFailed):
        tally.failures[event.failure.kind] = tally.failures.get(event.failure.kind, 0) + 1
    elif isinstance(event, events.RowsRead) and event.start == k.position:
        k.position, k.source_ended = event.position, event.ended
        tally.rows_read += sum(row.place < 0 for row in event.rows)
        tally.rows_refused += sum(row.place < 0 and bool(row.refusal) for row in event.rows)
    elif isinstance(event, events.ResultsWritten):
        k.written_rows, k.written_bytes, k.written_checksum = event.rows, event.size_bytes, event.checksum
    elif isinstance(event, events.LimitsSet):
        k.terms = msgspec.structs.replace(k.terms, limits=event.limits, route=event.route or k.terms.route)
    elif isinstance(event, events.PermitsGranted) and 0 <= event.route < len(k.shares):
        share = k.shares[event.route]
        share.why, share.memo, share.granted_at_s = event.why, event.memo, k.at_s
    elif isinstance(event, (events.Opened, events.Rejoined)):
        k.epoch = max(k.epoch, event.epoch)
        k.source_ended = k.source_ended and not (isinstance(event, events.Opened) and event.terms.streams)


def last_state(folder: StateFolder, job: str) -> State:
    """Return K of a job, read without changing its journal. Raises ``NoSuchJob``, and ``NoSuchProgram`` if the job
    has not ended and its program is gone."""
    source = folder.journal(job)
    try:
        with source.as_it_is():
            if (ended := final_state.read(source)) is not None:
                return ended.k
            last = source.seq
            k = replayed(source, lambda terms: load(terms.program, terms.params_json), last)
            if k is None:
                raise NoSuchJob(never_began(job))
            codec.put_right(k, source.account(last))
            if k.outcome == "complete" and k.shards and not finished(k) and gone_back(folder, job, k):
                k.outcome = ""  # rows are missing: it goes on like a job that was killed
            return k
    finally:
        source.close()


def differs(k: State, program: Program) -> str:
    """Return how the program differs from the one that took the job's turns; empty if it does not."""
    with unwatched():
        return k.differs or program.remade(k)


def replayed(
    source: Journal, program: Callable[[JobTerms], Program], upto: int | None = None, watch: JobObservers | None = None
) -> State | None:
    """Return K at turn ``upto`` (default: the last), replayed from the last snapshot; None if no turn opens the job.

    ``watch`` observes each replayed turn and its commands.
    """
    if watch is not None:
        watch.begin(source)
    snapshot = source.latest_snapshot()
    after = snapshot[0] if snapshot is not None else source.opened_at()
    if snapshot is None and after == source.seq:
        return None  # the job never began, or died between noting its opening and writing it
    at = after

    def turns() -> Iterator[events.Turn]:
        nonlocal at
        for at, turn in source.turns(after):
            if upto is None or at <= upto:
                yield turn

    with unwatched():
        k = codec.decode_state(snapshot[1]) if snapshot else None
        if watch is None or not watch.reminded:
            return codec.replay(k, turns(), program)
        return codec.replay(k, turns(), program, seen=lambda turn, out, k: watch.again(at, turn, out, k))
