"""Final state of a job, written when the job ends, so that reading it needs no program, which may change or be removed.

Only the program that took the turns can replay them. A ready program's turns can always be replayed, since it is part
of this package; an author's program may be edited, or have been a cell of a notebook. For such a job a snapshot of K at
the end, the answer, and the results (if K does not hold them) are written beside the journal. A later turn that changes
the outcome (the job is resumed, or opened again) makes them void until the job ends again. A job that keeps no text has
no final state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from actors.common.gc_tuning import unwatched
from actors.journal.journal import Journal
from actors.programs.loader import is_ready
from cortex.flows import Flow
from cortex.goals.lifecycle import line_of
from cortex.journal import codec
from cortex.loop.event_handlers import take
from cortex.loop.step import absorb
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State, Status

FACT = "ended"
SNAPSHOT_BYTES_MAX = 900_000_000
"""Most bytes of a snapshot. SQLite and PostgreSQL accept no value above 1 GB: a K that is larger, without the parts
stored separately, is replayed from its last smaller snapshot."""
LINES_BYTES_MAX = 16_000_000
"""Most bytes of results that are written a second time."""
_IDLE = (events.ResultsWritten, events.PermitsGranted, events.Ticked)
_NEWS = (events.Opened, events.RowsReopened)


class FinalState(msgspec.Struct, frozen=True, array_like=True):
    """Record of a job that has ended."""

    seq: int
    """Turn that ended the job; the snapshot of this number is K at the end."""
    answer: bytes = b"null"
    """Answer, as JSON."""
    of_goals: bool = False
    """Whether the results are those of K's top goals."""
    lines: list[commands.EmitResult] | None = None
    """Results, unless ``of_goals``; None if they were not written."""


class EndedJob(msgspec.Struct, frozen=True):
    """State, answer and results of a job that has ended, independent of its program."""

    k: State
    answer: Any
    lines: list[commands.EmitResult] | None
    """Results; None if only the program can produce them."""


def wanted(k: State) -> bool:
    """Return whether a job's final state is written. A child job's answer is in its parent's journal."""
    terms = k.terms
    return terms.keeps_text and "~" not in terms.job and not is_ready(terms.program, terms.params_json)


def stands(outcome: str, batch: Iterable[events.Event]) -> bool:
    """Return whether these events leave the final state valid. After an outcome other than ``partial``, late events
    are counted and decide nothing."""
    if outcome == "partial":
        return all(type(event) in _IDLE for event in batch)
    return bool(outcome) and all(type(event) not in _NEWS for event in batch)


def write(
    source: Journal, k: State, program: Program, seq: int, lines: list[commands.EmitResult] | None,
    snapshot: Callable[[], bool] | None = None,
) -> None:  # fmt: skip
    """Write the final state of a job that ended with turn ``seq``. ``snapshot`` writes K, and returns False if it is
    too large. Raises ``StoreError``."""
    if source.replay_from() != seq and not (snapshot() if snapshot is not None else _snapshot(source, k, seq)):
        return
    of_goals = isinstance(program, Flow) and len(_of_goals(k)) == k.emitted
    closing = FinalState(seq, _answer(k, program), of_goals, None if of_goals else lines)
    blob = msgspec.msgpack.encode(closing)
    if len(blob) > LINES_BYTES_MAX:
        blob = msgspec.msgpack.encode(msgspec.structs.replace(closing, lines=None))
    source.set_meta(FACT, blob)


def _snapshot(source: Journal, k: State, seq: int) -> bool:
    blob = codec.encode_state(k)
    if len(blob) <= SNAPSHOT_BYTES_MAX:
        source.snapshot(seq, k.emitted, blob)
    return len(blob) <= SNAPSHOT_BYTES_MAX


def read(source: Journal, rest: bool = False) -> EndedJob | None:
    """Return the final state of a job; None if there is none, or if it is void. ``rest``: leave goals, and results
    taken from goals, out of a large K."""
    blob = source.meta(FACT)
    if blob is None:
        return None
    try:
        closing = msgspec.msgpack.decode(blob, type=FinalState)
    except msgspec.MsgspecError:
        return None  # written by a later release
    snapshot = next(source.snapshots(closing.seq - 1, closing.seq), None)
    if closing.seq <= source.opened_at() or snapshot is None:
        return None
    with unwatched():
        known = codec.decode_rest(snapshot[1]) if rest else None
        k = known or codec.decode_state(snapshot[1])
    for _, turn in source.turns(closing.seq):
        happened = [event for batch in turn.batches for event in batch]
        if not stands(k.outcome, happened):
            return None
        if known is not None and not all(type(event) in _IDLE for event in happened):
            return read(source)  # a late event may be about a goal
        fold(k, turn)
    codec.put_right(k, source.account(source.seq))
    lines = _of_goals(k) if closing.of_goals and known is None else closing.lines
    return EndedJob(k, msgspec.json.decode(closing.answer), lines)


def fold(k: State, turn: events.Turn) -> None:
    """Apply a turn that leaves the outcome unchanged, without asking the program."""
    nobody = Program()
    out = commands.StepCommands()
    k.at_s = max(k.at_s, float(turn.at_s))
    k.ledger.turn_to(k.at_s)
    for event in (event for batch in turn.batches for event in batch):
        if type(event) is events.Answered:
            absorb(k, nobody, event, out)
        else:
            take(k, nobody, event, out)


def _answer(k: State, program: Program) -> bytes:
    if k.outcome in ("complete", "partial"):
        with contextlib.suppress(Exception):  # an author's code may raise any error, above all on partial data
            return msgspec.json.encode(program.answer(k))
    return b"null"


def _of_goals(k: State) -> list[commands.EmitResult]:
    """Return the results of a program whose results are the answers of its top goals, in the order in which K
    numbered their ends."""
    tops = (goal for goal in k.goals.values() if not goal.parent and goal.ended)
    entries = [goal for goal in tops if goal.row or goal.status == Status.RESOLVED]
    found = []
    for index, goal in enumerate(sorted(entries, key=lambda goal: goal.ended)):
        kind = str(goal.failure.kind) if goal.status == Status.FAILED and goal.failure is not None else ""
        value = line_of(goal) if goal.row else goal.answer
        found.append(commands.EmitResult(index, value, goal.status != Status.RESOLVED, goal.row, kind))
    return found
