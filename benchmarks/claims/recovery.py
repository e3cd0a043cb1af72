"""Claims about recovery moves of a scheduler in a conversation: five moves on one task, at three lengths.

Task, tools and prompts are equal for all moves, and so is the number of notes that a bounded conversation handles. No
parameter is set for a single move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.simulator.settings import SimulatorSettings
from benchmarks.claims.core_run import Ended, run
from cortex.programs.recovery import MOVES, Move, recovery

LENGTHS = (8, 24, 48)
"""Numbers of notes. More would exceed the blocks that a call's conversation may have (``Limits.parts_max``)."""
PART = 8
"""Notes after which a move that bounds a conversation acts."""
RUNS = 30
"""Runs of each move and length, each with its own notes and seed."""
PAIR_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
PAIR_RUNS = 3
REFERENCE: Move = "none"


def _ran(move: Move, count: int, seed: int, error: float | None = None) -> Ended:
    program = recovery(move=move, count=count, part=PART, seed=seed)
    return run(program, SimulatorSettings(seed=seed, error=error))


def tokens(ended: Ended) -> int:
    """Return the tokens of all calls, prompts and replies."""
    tally = ended.provider.tally
    return tally.input_tokens + tally.output_tokens


def _measured(move: Move, count: int, runs: int, seed: int) -> dict[str, Any]:
    ended = [_ran(move, count, seed + each) for each in range(runs)]
    success = sum(each.answer["right"] for each in ended) / runs
    return {
        "tokens": round(sum(map(tokens, ended)) / runs), "calls": round(sum(each.samples for each in ended) / runs, 1),
        "largest_prompt_tokens": max(each.largest_prompt_tokens for each in ended),
        "success": success, "success_error": (success * (1 - success) / runs) ** 0.5,
    }  # fmt: skip


def pairs(runs: int, seed: int) -> list[dict[str, Any]]:
    """Return costs of one derivation inside the call and before it: texts read by the model's calls, or put into its
    prompt.

    The reasoner makes no mistake; otherwise a run that ends too early would be the cheaper run.
    """
    rows = []
    for count in PAIR_LENGTHS:
        for each in range(runs):
            inside, before = (_ran(move, count, seed + each, error=0.0) for move in (REFERENCE, "frontloading"))
            assert inside.answer["right"] and before.answer["right"]
            rows.append({
                "notes": count, "tokens": [tokens(inside), tokens(before)],
                "calls": [inside.samples, before.samples],
                "largest_prompt_tokens": [inside.largest_prompt_tokens, before.largest_prompt_tokens],
            })  # fmt: skip
    return rows


def measure(small: bool = False, seed: int = 1) -> dict[str, Any]:
    """Return tokens, calls, largest prompt and success of each move at each length, and whether the claims hold."""
    runs = 4 if small else RUNS
    moves = (REFERENCE, *MOVES)
    rows = [{"notes": count, **{move: _measured(move, count, runs, seed) for move in moves}} for count in LENGTHS]
    paired = pairs(1 if small else PAIR_RUNS, seed)
    return {"part": PART, "runs": runs, "rows": rows, "pairs": paired, "holds": holds(rows, paired)}


def never_dearer(paired: Sequence[dict[str, Any]]) -> bool:
    """Return whether frontloading cost no more, in any measure, in any pair."""
    return all(row[what][1] <= row[what][0] for row in paired for what in ("tokens", "calls", "largest_prompt_tokens"))


def holds(rows: Sequence[dict[str, Any]], paired: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return the claims, each with whether the figures support it."""
    first, last = rows[0], rows[-1]
    plain = last[REFERENCE]
    bounding = ("compaction", "externalisation", "re-derivation", "recursion")
    return {
        "frontloading is never dearer than the same derivation in the call": never_dearer(paired),
        "a conversation that nothing is done about grows with the task, and fails": plain["largest_prompt_tokens"]
        > 4 * first[REFERENCE]["largest_prompt_tokens"] and plain["success"] < first[REFERENCE]["success"],
        "four moves bound the largest prompt": all(
            last[move]["largest_prompt_tokens"] < plain["largest_prompt_tokens"] / 2 for move in bounding
        ),
        "compaction, externalisation and recursion are cheaper and right more often, at the greatest length": all(
            last[move]["tokens"] < plain["tokens"] and last[move]["success"] > plain["success"]
            for move in ("compaction", "externalisation", "recursion")
        ),
        "re-derivation pays for a small K with calls": last["re-derivation"]["calls"] > 2.5 * plain["calls"],
    }  # fmt: skip
