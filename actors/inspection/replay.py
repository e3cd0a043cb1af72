"""Replay of a job's turns from the nearest snapshot, with a listener to every decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from actors.common.gc_tuning import unwatched
from actors.inspection.span import TurnSpan
from actors.journal.journal import Journal
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.decision_hook import DecisionListener, listen
from cortex.state.state import State


class ReplayedTurn(msgspec.Struct, frozen=True):
    """Turn to be replayed. K is in the state before the turn until ``take`` is called."""

    seq: int
    turn: events.Turn
    k: State
    take: Callable[[], list[commands.Command]]


def begun(
    source: Journal, span: TurnSpan, upto: int, good: Callable[[State], bool] = lambda k: True
) -> tuple[int, State]:
    """Return a turn's number and K, to replay from: the latest snapshot up to ``upto`` for which ``good`` is true,
    else K before the first turn."""
    for seq, blob in source.snapshots(span.after, upto):
        k = codec.decode_state(blob)
        if good(k):
            return seq, k
    return span.after, codec.open_job(span.terms)


def taken_again(
    source: Journal, span: TurnSpan, start: tuple[int, State], tell: DecisionListener, upto: int
) -> Iterator[ReplayedTurn]:
    """Yield every turn after ``start``, up to ``upto``, and replay it. The span must have its program. The listener
    ``tell`` is called during ``take``; errors it raises are raised by ``take``."""
    program = span.program
    assert program is not None, "a replay needs the program that took the turns"
    after, k = start
    ill: list[Exception] = []

    def told(goal: int, what: str, seen: dict[str, Any]) -> None:
        try:
            tell(goal, what, seen)
        except Exception as error:  # raised within a step, it would be attributed to the program
            ill.append(error)

    listen(k, told)
    with unwatched():
        for seq, turn in source.turns(after):
            if seq > upto:
                return
            done: list[list[commands.Command]] = []

            def take(turn: events.Turn = turn, done: list[list[commands.Command]] = done) -> list[commands.Command]:
                if not done:
                    done.append(step(k, program, turn))
                    if ill:
                        raise ill[0]
                return done[0]

            yield ReplayedTurn(seq, turn, k, take)
            take()
