"""Turns and K as bytes, and K as a fold over turns."""

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
"""Number of the form in which this release writes journals: raised where the form changes after a release, so that an
older release refuses what it would read wrongly (``tests/journals``)."""
OLDEST = 2
"""The oldest form that this release reads: that of the first release."""

_encoder = msgspec.msgpack.Encoder()
_turn_decoder = msgspec.msgpack.Decoder(events.Turn)
_batch_decoder = msgspec.msgpack.Decoder(tuple[events.Event, ...])
_state_decoder = msgspec.msgpack.Decoder(State)


def encode_batch(batch: Iterable[events.Event]) -> bytes:
    """The events of one message, as they travel and as they enter the journal."""
    return _encoder.encode(tuple(batch))


def decode_batch(blob: bytes) -> tuple[events.Event, ...]:
    """The events of one message. Raises ``msgspec.DecodeError`` where they are none."""
    return _batch_decoder.decode(blob)


def encode_turn(at_s: float, batches: Iterable[bytes], account: bytes = b"", before: bytes = b"") -> bytes:
    """One turn from the bytes of its messages: they are not encoded again. An account that is as it was ``before`` is
    left out."""
    return _encoder.encode((at_s, [msgspec.Raw(batch) for batch in batches], b"" if account == before else account))


class _WrittenAccount(msgspec.Struct, array_like=True):
    """An account as a turn has it."""

    outcome: str
    next_goal: int
    in_batches: int
    totals: tuple[int, ...]
    rows: int = 0


class _TurnHead(msgspec.Struct, array_like=True):
    """A turn of which the events are not read."""

    at_s: float
    batches: msgspec.Raw
    account: bytes = b""


_account_decoder = msgspec.msgpack.Decoder(_WrittenAccount)
_head_decoder = msgspec.msgpack.Decoder(_TurnHead)


class CarriedAccount(msgspec.Struct, frozen=True):
    """What holds of a job though its program has changed, and its turns can be replayed no more as they were."""

    outcome: str
    next_goal: int
    in_batches: int
    """Requests that were with the provider in message batches, or on their way."""
    ledger: Ledger
    rows: int = 0
    """Top goals that have ended for good."""


def encode_account(k: State) -> bytes:
    """K's account, for the turn that led to it."""
    in_batches = sum(len(made.keys) for made in k.submissions.values()) if k.submissions else 0
    rows = k.tally.succeeded + k.tally.failed
    return _encoder.encode((k.outcome, k.next_goal, in_batches, msgspec.structs.astuple(k.ledger), rows))


def decode_account(blob: bytes) -> CarriedAccount:
    """The account that a turn carries."""
    found = _account_decoder.decode(blob)
    return CarriedAccount(found.outcome, found.next_goal, found.in_batches, Ledger(*found.totals), found.rows)


def turn_head(blob: bytes) -> tuple[float, bytes]:
    """When a turn was, and the account that it carries, without reading its events."""
    head = _head_decoder.decode(blob)
    return head.at_s, head.account


def put_right(k: State, account: bytes) -> None:
    """K was replayed, perhaps with a program that has changed: what its turns say that it came to holds."""
    if not account or account == encode_account(k):
        return
    known = decode_account(account)
    k.outcome, k.ledger, k.next_goal = known.outcome, known.ledger, max(k.next_goal, known.next_goal)


def decode_turn(blob: bytes) -> events.Turn:
    """One turn of the journal. Raises ``msgspec.DecodeError`` where the bytes are none."""
    return _turn_decoder.decode(blob)


def encode_state(k: State) -> bytes:
    """K as bytes: equal histories give equal bytes."""
    return _encoder.encode(k)


def decode_state(blob: bytes) -> State:
    """K from a snapshot."""
    return _state_decoder.decode(blob)


class _StateRest(State):
    """K but for its goals."""

    goals: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]
    goals_by_kind: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


_rest_decoder = msgspec.msgpack.Decoder(_StateRest)


def decode_rest(blob: bytes) -> State | None:
    """K from a snapshot without its goals, in a tenth of the time; None where some of them have not ended."""
    k: State = _rest_decoder.decode(blob)
    k.goals, k.goals_by_kind = {}, {}
    return k if k.outcome and not k.live else None


def open_job(terms: JobTerms) -> State:
    """K before anything happened."""
    return State(terms=terms)


def replay(
    k: State | None, turns: Iterable[events.Turn], program: Program | Callable[[JobTerms], Program],
    sink: Callable[[commands.Command], object] | None = None,
    seen: Callable[[events.Turn, commands.StepCommands, State], object] | None = None,
) -> State:  # fmt: skip
    """K as a fold over turns, from nothing or from a snapshot.

    A turn that opens the job begins K anew. ``program`` may be a function that makes it from the terms. ``sink`` sees
    the commands again, the results among them: a results file is a projection of the journal. ``seen`` sees each turn,
    what it led to, and K after it; with neither of them, plain turns are folded at once (``plain_turns``).
    Raises ``ValueError`` where the first turn opens no job.
    """
    made = program if isinstance(program, Program) else None
    fast = made.fast_replay() if made is not None and sink is None and seen is None else None
    for turn in turns:
        if fast is not None and fast.took(turn):
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
    """The terms, where this turn opens the job."""
    for batch in turn.batches:
        if events.Opened in map(type, batch):
            return next(event.terms for event in batch if type(event) is events.Opened)
    return None
