"""Encoding of turns and of K, and replay: K as a fold over turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State
from cortex.values.ledger import Ledger
from cortex.values.limits import JobTerms

FORMAT = 2
"""Format number of journals written by this release. It is raised when the format changes after a release, so that an
older release refuses journals it would misread (``tests/journals``)."""
OLDEST = 2
"""Oldest format that this release reads: that of the first release."""

_encoder = msgspec.msgpack.Encoder()
_turn_decoder = msgspec.msgpack.Decoder(events.Turn)
_batch_decoder = msgspec.msgpack.Decoder(tuple[events.Event, ...])
_state_decoder = msgspec.msgpack.Decoder(State)


def encode_batch(batch: Iterable[events.Event]) -> bytes:
    """Encode the events of one message, for sending and for the journal."""
    return _encoder.encode(tuple(batch))


def decode_batch(blob: bytes) -> tuple[events.Event, ...]:
    """Decode the events of one message. Raises ``msgspec.DecodeError`` for invalid bytes."""
    return _batch_decoder.decode(blob)


def encode_turn(
    at_s: float, batches: Iterable[bytes], account: bytes = b"", before: bytes = b"", ahead_s: float = 0.0
) -> bytes:  # fmt: skip
    """Encode one turn from the bytes of its messages, which are not encoded again.

    An account equal to the one ``before`` is left out.
    """
    turn = (at_s, [msgspec.Raw(batch) for batch in batches], b"" if account == before else account)
    return _encoder.encode((*turn, ahead_s) if ahead_s else turn)


class _WrittenAccount(msgspec.Struct, array_like=True):
    """Account as encoded in a turn."""

    outcome: str
    next_goal: int
    in_batches: int
    totals: tuple[int, ...]
    rows: int = 0


class _TurnHead(msgspec.Struct, array_like=True):
    """Turn without decoded events."""

    at_s: float
    batches: msgspec.Raw
    account: bytes = b""
    ahead_s: float = 0.0


_account_decoder = msgspec.msgpack.Decoder(_WrittenAccount)
_head_decoder = msgspec.msgpack.Decoder(_TurnHead)


class CarriedAccount(msgspec.Struct, frozen=True):
    """Facts about a job that hold even if its program has changed and its turns cannot be replayed."""

    outcome: str
    next_goal: int
    in_batches: int
    """Requests that were with the provider in message batches, or on their way."""
    ledger: Ledger
    rows: int = 0
    """Top goals that have ended for good."""


def encode_account(k: State) -> bytes:
    """Encode K's account, for the turn that led to it."""
    in_batches = sum(len(made.keys) for made in k.submissions.values()) if k.submissions else 0
    rows = k.tally.succeeded + k.tally.failed
    return _encoder.encode((k.outcome, k.next_goal, in_batches, msgspec.structs.astuple(k.ledger), rows))


def decode_account(blob: bytes) -> CarriedAccount:
    """Decode the account of a turn."""
    found = _account_decoder.decode(blob)
    return CarriedAccount(found.outcome, found.next_goal, found.in_batches, Ledger(*found.totals), found.rows)


def turn_head(blob: bytes) -> tuple[float, bytes]:
    """Return time (by the clock of its machine) and encoded account of a turn, without decoding its events."""
    head = _head_decoder.decode(blob)
    return head.at_s + head.ahead_s, head.account


def turn_times(blob: bytes) -> tuple[float, float]:
    """Return the job's time in a turn, and how far the clock of its machine was ahead (``events.Turn``)."""
    head = _head_decoder.decode(blob)
    return head.at_s, head.ahead_s


def put_right(k: State, account: bytes) -> None:
    """Correct K by the account of its last turn, in case it was replayed with a changed program."""
    if not account or account == encode_account(k):
        return
    known = decode_account(account)
    k.outcome, k.ledger, k.next_goal = known.outcome, known.ledger, max(k.next_goal, known.next_goal)


def decode_turn(blob: bytes) -> events.Turn:
    """Decode one turn of the journal. Raises ``msgspec.DecodeError`` for invalid bytes."""
    return _turn_decoder.decode(blob)


def encode_state(k: State) -> bytes:
    """Encode K: equal histories give equal bytes."""
    return _encoder.encode(k)


def decode_state(blob: bytes) -> State:
    """Decode K from a whole snapshot."""
    return _state_decoder.decode(blob)


class _StateRest(State):
    """K with undecoded goals."""

    goals: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]
    goals_by_kind: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


_rest_decoder = msgspec.msgpack.Decoder(_StateRest)


def decode_rest(blob: bytes) -> State | None:
    """Decode K from a snapshot without its goals, in a tenth of the time; None if some goals have not ended."""
    k: State = _rest_decoder.decode(blob)
    k.goals, k.goals_by_kind = {}, {}
    return k if k.outcome and not k.live else None


def open_job(terms: JobTerms) -> State:
    """Return K before any event."""
    return State(terms=terms)


def replay(
    k: State | None, turns: Iterable[events.Turn], program: Program | Callable[[JobTerms], Program],
    sink: Callable[[commands.Command], object] | None = None,
    seen: Callable[[events.Turn, commands.StepCommands, State], object] | None = None,
) -> State:  # fmt: skip
    """Return K as a fold over turns, from nothing or from a snapshot.

    A turn that opens the job begins K anew. ``program`` may be a function that builds the program from the terms.
    ``sink`` receives the commands again, results included: a results file is a projection of the journal. ``seen``
    receives each turn, its commands, and K after it. Without both, the program's fast replay is used, if it has one
    (``Program.fast_replay``). Raises ``ValueError`` if the first turn opens no job, or for an empty journal.
    """
    made = program if isinstance(program, Program) else None
    fast = made.fast_replay() if made is not None and sink is None and seen is None else None
    for turn in turns:
        if fast is not None and fast.take(turn):
            continue
        terms = opening(turn)
        if terms is not None:
            k = open_job(terms)
            if not isinstance(program, Program):
                made = program(terms)
                fast = made.fast_replay() if sink is None and seen is None else None
        if k is None:
            raise ValueError("the journal does not begin with the opening of a job")
        if made is None:
            assert not isinstance(program, Program)
            made = program(k.terms)
            fast = made.fast_replay() if sink is None and seen is None else None
        out = step(k, made, turn)
        if fast is not None:
            fast.stepped(k, made, turn)
        if seen is not None:
            seen(turn, out, k)
        if sink is not None:
            for command in out:
                sink(command)
    if fast is not None:
        fast.end()
    if k is None:
        raise ValueError("the journal is empty")
    return k


def opening(turn: events.Turn) -> JobTerms | None:
    """Return the terms if this turn opens the job, else None."""
    for batch in turn.batches:
        if events.Opened in map(type, batch):
            return next(event.terms for event in batch if type(event) is events.Opened)
    return None
