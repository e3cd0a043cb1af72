"""``program plan-votes``: required lead of a vote's winner, and its cost, computed before any vote."""

from __future__ import annotations

import msgspec

from actors.cli.options.errors import COMPLETE
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from policies.decisions.voting import VotingPlan, at_least, plan


def plan_votes(
    steps: int, success: float | None, right: int | None, of: int | None, target: float, flagged: float,
    options: Options,
) -> int:  # fmt: skip
    """Run ``cortex program plan-votes`` and return the exit code."""
    try:
        made = plan(_rate(success, right, of), target, steps, flagged)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if options.as_json:
        print(msgspec.json.encode(made).decode())
    else:
        print("\n".join(_votes_text(made)))
    return COMPLETE


def _rate(success: float | None, right: int | None, of: int | None) -> float:
    """Return the rate to plan with: the given one, or the lower confidence limit of a measurement."""
    if (success is None) == (right is None):
        raise CommandError("give the share of right votes: --success P, or --right N --of M from a measurement")
    if (right is None) != (of is None):
        raise CommandError("--right and --of belong together: give both, like --right 95 --of 100")
    if right is not None and of is not None:
        return at_least(right, of)
    assert success is not None
    return success


def _votes_text(made: VotingPlan) -> list[str]:
    return [
        f"k {made.k}: an answer wins when it is {made.k} vote{'s' * (made.k > 1)} ahead of every other",
        f"planned with {made.p:.6g} of the votes right; all {made.steps:,} steps are then right with probability"
        f" {made.success:.6f} (target {made.target:g})",
        f"a step takes {made.votes_per_step:.4f} votes, {made.samples_per_step:.4f} samples,"
        f" {made.rounds_per_step:.4f} rounds; in all {made.samples:,.0f} samples",
    ]
