"""Child jobs: their share of the parent's caps, and their launch."""

from __future__ import annotations

from cortex.goals.lifecycle import Out, begin_run, leave_call, reopen
from cortex.goals.shards import reserved
from cortex.state.changes import Spawn
from cortex.state.commands import LaunchChildJob
from cortex.state.program import Program
from cortex.state.shard_record import ShardRecord
from cortex.state.state import ExternalRun, Goal, State, Status
from cortex.values.ledger import Charge, ChildJobBill
from policies.failures.failure import Failure, FailureKind


def spawn(k: State, change: Spawn, value: tuple[str, bytes], out: Out, program: Program) -> None:
    """Launch a child job with a slice of what is left of the caps; if nothing is left the job pauses."""
    goal = k.goals[change.goal.id]
    leave_call(k, goal, out)
    where, params = value
    if change.shards:
        _spawn_shard(k, goal, change.shards, value, out)
        return
    nusd, tokens = _slice(k, goal)
    spent = k.billed.get(goal.id, ChildJobBill())  # the child's own ledger continues from there
    cap_nusd = None if nusd is None else spent.known_nusd + spent.assumed_nusd + nusd
    own = change.max_cost_nusd
    own_cap = own is not None and (cap_nusd is None or own <= cap_nusd)
    if own is not None and own_cap:
        cap_nusd = own
        nusd = None if nusd is None else max(0, own - spent.known_nusd - spent.assumed_nusd)
    if nusd == 0 or tokens == 0:
        text = f"nothing is left of the cap for a child job of goal {goal.id}"
        k.paused, k.paused_at_s = Failure(FailureKind.OVER_BUDGET, text), k.at_s
        if goal.status != Status.OPEN:
            reopen(k, goal)
        return
    slice_ = Charge(nusd or 0, tokens or 0)
    k.ledger.set_aside(slice_)
    if tokens is not None:
        tokens += spent.input_tokens + spent.output_tokens + spent.assumed_tokens
    command = LaunchChildJob(goal.id, 0, where, params, cap_nusd, tokens)
    begin_run(
        k, goal, ExternalRun(goal.id, 0, where, charge=slice_, own_cap=own_cap, repeatable=True, command=command), out
    )


def _spawn_shard(k: State, goal: Goal, of: int, value: tuple[str, bytes], out: Out) -> None:
    """Launch a shard: it begins without money, and is lent some when it asks."""
    where, params = value
    charge = reserved(k.shards.setdefault(goal.id, ShardRecord()))
    k.ledger.set_aside(charge)
    command = LaunchChildJob(goal.id, 0, where, params, None, None, of)
    begin_run(k, goal, ExternalRun(goal.id, 0, where, charge=charge, repeatable=True, command=command), out)


def _slice(k: State, goal: Goal) -> tuple[int | None, int | None]:
    """Amounts that a child job of this goal may spend: an equal share of the rest, for each open goal and one more."""
    limits = k.terms.limits
    others = k.offered - (goal.status == Status.OPEN)
    return (
        _share(limits.max_cost_nusd, k.ledger.committed_nusd, others + 2),
        _share(limits.max_job_tokens, k.ledger.committed_tokens, others + 2),
    )


def _share(cap: int | None, committed: int, among: int) -> int | None:
    return None if cap is None else max(0, cap - committed) // among


def more_than(k: State, goal: Goal, charge: Charge) -> bool:
    """Return True if the slice that this goal's child job would get now is larger than the one that was not enough."""
    nusd, tokens = _slice(k, goal)
    return (nusd is None or nusd > charge.nusd) and (tokens is None or tokens > charge.tokens)
