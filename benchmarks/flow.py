"""Recovery time of a flow: ``python -m benchmarks.flow --json``.

A flow awaits 100,000 questions one after the other, answered at once. Its journal is kept as bytes, as on disk; K and
the coroutine are rebuilt in three ways, each timed in CPU seconds:

- ``journal``: every turn from the first;
- ``snapshot``: K from the last snapshot (one every ``Limits.snapshot_events`` events), the coroutine fed from K, then
  the remaining turns, as in a channel that was killed at the end;
- ``coroutine``: feeding the function alone, from a K that has all answers.

Garbage collection is off, as in a channel during replay. Each time is also told as a multiple of a fixed loop that is
timed right before and after, since CPU time grows with other load. Reading the journal file (1.9 million small events
a second) is excluded.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import cortex
from actors.common.gc_tuning import unwatched
from benchmarks.harness import figures
from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.program import params_of
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from cortex.values.reply import Reply, Usage

_Work = Callable[[], Any]
REPLAY_S_MAX = 5.0
"""Goal in seconds for 100,000 awaits."""
_REPLY = Reply(b'{"content":[{"type":"text","text":"ok"}]}', "end_turn", "none", Usage(8, 1))


@cortex.flow
async def many(ctx: cortex.Context, awaits: int) -> int:
    """Ask ``awaits`` questions, each after the answer to the one before."""
    letters = 0
    for number in range(awaits):
        letters += len(await ctx.ask(f"number {number}"))
    return letters


def lived(awaits: int) -> tuple[list[bytes], list[tuple[int, bytes]], bytes]:
    """Run the job from first turn to last; return the turns' bytes, the snapshots by turn, and the final K."""
    program = many(awaits)
    route = Route(endpoint="none", model="none")
    limits = Limits()
    terms = JobTerms(
        job="job", program="many", params_json=params_of(program), fingerprint="f", route=route, limits=limits
    )  # fmt: skip
    k = codec.open_job(terms)
    turns: list[bytes] = []
    snapshots: list[tuple[int, bytes]] = []
    taken = 0
    batches: list[tuple[events.Event, ...]] = [(events.Opened(terms, 1), events.PermitsGranted(16))]
    while True:
        turn = events.Turn(1.0 + len(turns), tuple(batches))
        out = step(k, program, turn)
        turns.append(codec.encode_turn(turn.at_s, [codec.encode_batch(batch) for batch in batches]))
        taken += sum(map(len, batches))
        if k.outcome:
            return turns, snapshots, codec.encode_state(k)
        if taken >= limits.snapshot_events:
            taken = 0
            snapshots.append((len(turns), codec.encode_state(k)))
        made = tuple(
            events.GoalMade(each.goal, each.kind, each.value) for each in out if isinstance(each, commands.RecordGoal)
        )
        answered = tuple(
            events.Answered(each.goal, each.sample, each.attempt, each.hash, _REPLY)
            for each in out
            if isinstance(each, commands.Call)
        )
        batches = [batch for batch in (made, answered) if batch]


def replayed(k: State | None, turns: list[bytes], awaits: int) -> State:
    """Return K of a journal's bytes."""
    return codec.replay(k, map(codec.decode_turn, turns), many(awaits))


def recovered(turns: list[bytes], snapshots: list[tuple[int, bytes]], awaits: int) -> State:
    """Return K and the coroutine as rebuilt by a channel that was killed before the last turn."""
    at, blob = snapshots[-1] if snapshots else (0, b"")
    program = many(awaits)
    k = codec.replay(codec.decode_state(blob) if blob else None, map(codec.decode_turn, turns[at:-1]), program)
    assert not (k.differs or program.remade(k))
    return k


def _timed(work: _Work) -> tuple[Any, tuple[float, float]]:
    """Return a function's result, its CPU seconds and those of the fixed loop."""
    with unwatched():
        before = _loop_s()
        began = time.process_time()
        given = work()
        spent = time.process_time() - began
        return given, (spent, (before + _loop_s()) / 2)


def _loop_s() -> float:
    began = time.process_time()
    places: dict[int, int] = {}
    for number in range(2_000_000):
        places[number & 1023] = number
    return time.process_time() - began


def measure(awaits: int, rounds: int) -> dict[str, Any]:
    """Return the figures, each the median of the rounds."""
    found: dict[str, Any] = {"machine": figures.machine(), "awaits": awaits}
    turns, snapshots, end = lived(awaits)
    before_the_end = replayed(None, turns[:-1], awaits)
    blob = codec.encode_state(before_the_end)
    timed: dict[str, list[tuple[float, float]]] = {"journal": [], "snapshot": [], "coroutine": []}
    for _ in range(rounds):
        k, spent = _timed(lambda: replayed(None, turns, awaits))
        timed["journal"].append(spent)
        assert codec.encode_state(k) == end, "a replay made another K"
        timed["snapshot"].append(_timed(lambda: recovered(turns, snapshots, awaits))[1])
        k, program = codec.decode_state(blob), many(awaits)
        differs, spent = _timed(lambda k=k, program=program: program.remade(k))  # type: ignore[misc]
        assert differs == ""
        timed["coroutine"].append(spent)
    for name, each in timed.items():
        found[f"{name}_cpu_s"] = figures.median([seconds for seconds, _ in each], 2)
        found[f"{name}_per_loop"] = figures.median([seconds / loop for seconds, loop in each], 1)
    found["journal_bytes_an_await"] = round(sum(map(len, turns)) / awaits, 1)
    found["snapshot_bytes_an_await"] = round(len(blob) / awaits, 1)
    scale = awaits / 100_000
    found["within"] = {name: found[f"{name}_cpu_s"] <= REPLAY_S_MAX * scale for name in timed}
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--awaits", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    figures.tell(measure(given.awaits, given.rounds))


if __name__ == "__main__":
    main()
