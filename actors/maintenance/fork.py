"""Fork of a job: a new job from the first turns of a journal.

Work in flight at the last turn is not copied: a call is taken back (its reply, if the first job got one, is reused), a
tool run that has ended since gives its result, a child job begins anew and reuses replies.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec

from actors.common.errors import UserError
from actors.common.process_owner import owner_record, this_owner
from actors.history.costs import OWN
from actors.jobs.spec import whole
from actors.journal.journal import Damaged, Journal, StateFolder
from actors.programs import loader
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.limits import JobTerms
from policies.failures.failure import Failure, FailureKind

_TURNS_AT_ONCE = 500


class ForkError(UserError):
    """The turns cannot become a job. The message is one line for users."""


class ForkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a fork."""

    job: str
    at: int
    """Last turn to copy."""
    name: str
    """Name of the new job."""
    output: str = ""
    program: str = ""
    """Place of another version of the program; empty: the job's own program in its present version."""


def fork(folder: StateFolder, wanted: ForkSpec) -> State:
    """Make the new job and return its K. Raises ``ForkError`` or ``StoreError``."""
    source = folder.journal(wanted.job)
    try:
        with folder.hold(wanted.name):
            if folder.has(wanted.name):
                raise ForkError(f"a job {wanted.name} already exists: give another --job")
            if not 1 <= wanted.at <= source.seq:
                raise ForkError(f"{wanted.job} has turns 1 to {source.seq:,}, and no turn {wanted.at:,}")
            with folder.making(wanted.name) as made:
                return _made(folder, source, made, wanted)
    finally:
        source.close()


def _made(folder: StateFolder, source: Journal, made: Journal, wanted: ForkSpec) -> State:
    before = _terms(source, wanted.at)
    program, terms = _program(before, wanted)
    made.take_epoch(owner_record(this_owner("inline")), least=source.newest_epoch() + 1)
    blobs = _renamed(source.blobs(wanted.at), made, wanted.name, terms)
    while some := list(islice(blobs, _TURNS_AT_ONCE)):
        made.append(some)
    k = codec.replay(None, (turn for _, turn in made.turns(made.opened_at())), program)
    if differs := k.differs or program.remade(k):
        raise ForkError(f"the program has changed, and not only after turn {wanted.at:,}: {differs}")
    _keep_input(folder, k, wanted)
    _bring_to_rest(k, program, source, made, wanted)
    made.set_meta(OWN, str(made.seq).encode())
    made.set_meta("wish", terms.places.get("wish", "").encode())
    made.snapshot(made.seq, k.emitted, codec.encode_state(k))
    return k


def _terms(source: Journal, at: int) -> JobTerms:
    """Return the terms of the job in turn ``at``."""
    found: JobTerms | None = None
    opened_at = source.opened_at()
    for seq, turn in source.turns(opened_at if opened_at < at else 0):
        found = codec.opening(turn) or found
        if seq == at:
            break  # what follows may be damaged
    assert found is not None, "a journal begins with an opening"
    return found


def _program(before: JobTerms, wanted: ForkSpec) -> tuple[Program, JobTerms]:
    """Return program and terms of the fork. Raises ``ForkError`` if the program cannot be checked to fit."""
    where = loader.place_of(loader.find(wanted.program)) if wanted.program else before.program
    program = loader.load(where, before.params_json)
    now = loader.fingerprint(where, before.params_json)
    if not loader.is_unchanged(where, before.params_json, before.fingerprint) and not program.traced:
        raise ForkError(
            f"the program of {wanted.job} has changed since, and only flows can be checked to act the same: put it "
            f"back, or run the changed program under another --job (equal questions are not paid again)"
        )
    places = {**before.places, "output": whole(wanted.output)}
    return program, msgspec.structs.replace(
        before, job=wanted.name, origin=before.drawn_as, program=where, fingerprint=now, places=places
    )


def _renamed(blobs: Iterable[tuple[int, bytes]], made: Journal, name: str, last: JobTerms) -> Iterator[bytes]:
    """Yield the turns with the new job's name, and with nothing written to its output yet."""
    for seq, blob in blobs:
        turn = codec.decode_turn(blob)
        opened = codec.opening(turn)
        if opened is not None:
            made.set_meta("opened_at", str(seq - 1).encode())
        if opened is None and not any(
            type(event) is events.ResultsWritten for batch in turn.batches for event in batch
        ):
            yield blob
            continue
        batches = [[_of_another(event, name, last) for event in batch] for batch in turn.batches]
        yield codec.encode_turn(turn.at_s, map(codec.encode_batch, batches), turn.account)


def _of_another(event: events.Event, name: str, last: JobTerms) -> events.Event:
    if isinstance(event, events.Opened):
        same = event.terms.params_json == last.params_json
        terms = last if same else msgspec.structs.replace(event.terms, job=name, origin=last.origin)
        return msgspec.structs.replace(event, terms=terms)
    # places within a turn stay valid
    return events.ResultsWritten(0, 0) if isinstance(event, events.ResultsWritten) else event


def _bring_to_rest(k: State, program: Program, source: Journal, made: Journal, wanted: ForkSpec) -> None:
    """Settle work in flight and stop the job; the next turn is written by a resume."""
    if k.outcome:
        return
    if k.submissions:
        requests = sum(len(submission.keys) for submission in k.submissions.values())
        raise ForkError(
            f"at turn {wanted.at:,} {requests:,} requests of {wanted.job} were with the provider in message batches: "
            "fork before or after that"
        )
    batch: list[events.Event] = [events.Stopped(f"the fork of {wanted.job} at turn {wanted.at}", "drain")]
    taken_back = Failure(FailureKind.LOST, "its job was forked while it was under way", sent=False)
    batch += [
        events.AttemptFailed(each.goal, each.sample, each.attempt, taken_back) for each in list(k.flights.values())
    ]
    batch += _came_back_since(k, source, wanted.at)
    turn = events.Turn(k.at_s, (tuple(batch),))
    step(k, program, turn)
    made.append([codec.encode_turn(turn.at_s, map(codec.encode_batch, turn.batches), codec.encode_account(k))])


def _came_back_since(k: State, source: Journal, at: int) -> Iterator[events.Event]:
    """Yield beginnings and results of tool runs that were handed out before turn ``at`` and began or ended after it."""
    awaited = {
        (task.goal, task.attempt) for task in k.errands.values()
        if isinstance(task.command, commands.StartToolRun) and not task.due_at_s
    }  # fmt: skip
    for turn in _whole(source, at) if awaited else ():
        if codec.opening(turn) is not None or not awaited:
            return
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, events.ToolRunBegun) and (event.goal, event.attempt) in awaited:
                    yield event
                elif isinstance(event, events.Observed) and (event.goal, event.attempt) in awaited:
                    awaited.discard((event.goal, event.attempt))
                    yield event


def _whole(source: Journal, after: int) -> Iterator[events.Turn]:
    """Yield the turns after a number, up to one that is damaged."""
    with contextlib.suppress(Damaged):
        yield from (turn for _, turn in source.turns(after))


def _keep_input(folder: StateFolder, k: State, wanted: ForkSpec) -> None:
    """Copy stored rows of standard input for the new job. Raises ``ForkError`` if they are gone."""
    if not k.terms.streams or k.terms.places.get("input") != "-":
        return
    spool, own = (folder.beside(name, ".input") for name in (wanted.job, wanted.name))
    if spool.exists():
        shutil.copyfile(spool, own)
    elif not k.source_ended:
        raise ForkError(f"{wanted.job} read its rows from standard input, and they are gone: fork where all were read")
