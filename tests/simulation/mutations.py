"""Faults planted in the code, to prove that the simulation finds them: at least one for each rule and each policy.

Each fault replaces a function or method by one that breaks a rule. ``seeds`` are worlds that have found the fault; they
are tried first, then all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors.branch import branch, credential_exchange
from actors.channel import channel
from actors.channel import tool_runs as tasks
from actors.channel.dispatch import branch_liveness, dispatcher
from actors.journal import journal as store
from actors.journal.sqlite import storage
from cortex.admission import pauses
from cortex.calls import attempts, request, voting
from cortex.goals import lifecycle
from cortex.journal import codec
from cortex.loop import event_handlers, step, termination
from cortex.loop import tool_runs as errands
from cortex.state import commands, events, state
from cortex.values import ledger
from policies.decisions import join
from policies.failures import failure, retry
from tests.simulation.runner import live
from tests.simulation.scenario import LARGE_EVERY, Plan, plan

Patch = pytest.MonkeyPatch
Likely = Callable[[Plan], bool]


def troubled(*kinds: str) -> Likely:
    """Select worlds with one of these faults, given as ``kind`` or ``kind target``."""
    return lambda plan: any(one.kind in kinds or f"{one.kind} {one.target}" in kinds for one in plan.troubles_at)


def _watched(made: Plan) -> bool:
    return any(job.program == "watcher" for job in made.jobs)


class Fault:
    """Fault whose ``plant`` breaks ``rule``."""

    def __init__(self, rule: str, plant: Callable[[Patch], None], seeds: tuple[int, ...], likely: Likely) -> None:
        self.rule, self.plant, self.seeds, self.likely = rule, plant, seeds, likely


FAULTS: dict[str, Fault] = {}


def planted(
    rule: str, *seeds: int, likely: Likely = lambda plan: False
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a fault and the rule that it breaks."""

    def noted(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS[plant.__name__] = Fault(rule, plant, seeds, likely)
        return plant

    return noted


def catch(name: str, seeds_max: int) -> tuple[str, int, str]:
    """Plant a fault and run seeds until one finds it, likely ones first. Return (name, seed or -1, the watch's
    message).
    """
    fault = FAULTS[name]
    small = [seed for seed in range(seeds_max) if seed % LARGE_EVERY != LARGE_EVERY - 1]
    likely = [seed for seed in small if fault.likely(plan(seed))]
    tried = dict.fromkeys((*fault.seeds, *likely, *small))
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        for seed in tried:
            verdict = live(seed)
            if verdict.broken:
                return name, seed, verdict.broken
    return name, -1, ""


# -- persist, then act ---------------------------------------------------------------------------------------------------


@planted("no command leaves before the commit that holds its cause", 0)
def acts_before_commit(patch: Patch) -> None:
    async def turn(self: Any, taken: Any) -> None:
        at_s = max(self._k.at_s, self._runtime.now_s())
        blobs = [codec.encode_turn(at_s, (entry.blob for entry in taken))]
        batches = tuple(entry.batch or codec.decode_batch(entry.blob) for entry in taken)
        one = events.Turn(at_s, batches)
        await self._carry_out(step.step(self._k, self._program, one))
        asyncio.get_running_loop().call_later(0.005, self._journal.append, blobs)
        self._settle(0, one)
        self._lease.look()

    patch.setattr(channel.Channel, "_turn", turn)


@planted("a permit is given back when the reply is durable", 1)
def permit_back_on_arrival(patch: Patch) -> None:
    deliver = channel.Channel.deliver

    async def early(self: Any, sender: str, incarnation: str, blob: bytes) -> None:
        self._k.shares[0].in_flight -= len(codec.decode_batch(blob))
        self._put_events([events.Ticked()])
        await asyncio.sleep(0.01)
        await deliver(self, sender, incarnation, blob)

    patch.setattr(channel.Channel, "deliver", early)


@planted("two epochs never both append", 140, likely=troubled("thought_dead channel"))
def no_fence(patch: Patch) -> None:
    def append(self: Any, epoch: int, first: int, blobs: Any) -> None:
        (last,) = self._db.execute("SELECT coalesce(max(seq), 0) FROM turns").fetchone()
        for seq, blob in enumerate(blobs, last + 1):
            self._db.execute("INSERT INTO turns VALUES (?, ?)", (seq, blob))

    patch.setattr(storage.FileStorage, "_appended", append)


@planted("each incarnation of a channel has an epoch of its own", 6, likely=troubled("crash channel"))
def epoch_taken_twice(patch: Patch) -> None:
    take = store.Journal.take_epoch

    def same(self: Any, owner: bytes, least: int = 1) -> int:
        row = self.meta("epoch")
        take(self, owner, least)
        if row is not None:
            self.set_meta("epoch", row)
            self.epoch = int(row)
        return int(self.epoch)

    patch.setattr(store.Journal, "take_epoch", same)


@planted("a snapshot holds what came before it, and replay begins right after it", 54, likely=troubled("crash channel"))
def snapshot_skips_a_turn(patch: Patch) -> None:
    turns = store.Journal.turns
    patch.setattr(store.Journal, "turns", lambda self, after=0: turns(self, after + (after > 0)))


# -- no call lost, none twice ---------------------------------------------------------------------------------------------


@planted("a reply is absorbed once, however often it comes", 5)
def absorbed_twice(patch: Patch) -> None:
    answered = attempts.answered

    def again(k: Any, event: Any, out: Any) -> Any:
        goals = answered(k, event, out)
        goal = k.goals.get(event.goal)
        if not goals and goal is None and k.tally.dropped:
            out.append(commands.EmitResult(k.emitted, b'{"custom_id": "r0"}'))
            k.emitted += 1
        return goals

    patch.setattr(attempts, "answered", again)


@planted("a message is taken once, however often it comes", 5)
def doubled_work_taken_twice(patch: Patch) -> None:
    work = branch.Branch.work

    async def anew(self: Any, job: str, *args: Any) -> str:
        self._acknowledged.pop(job, None)
        return await work(self, job, *args)

    patch.setattr(branch.Branch, "work", anew)


@planted("a window of the source is taken once", 5)
def window_fed_twice(patch: Patch) -> None:
    fed = event_handlers._TAKE[events.RowsRead]

    def twice(k: Any, program: Any, event: Any, out: Any) -> None:
        fed(k, program, msgspec.structs.replace(event, start=k.position), out)

    patch.setitem(event_handlers._TAKE, events.RowsRead, twice)


@planted("the calls of a dead branch are lost, and asked again", 17, likely=troubled("crash branch"))
def dead_branch_unnoticed(patch: Patch) -> None:
    patch.setattr(branch_liveness.BranchLiveness, "declare_lost", lambda self, *args, **more: None)


@planted("what no branch has taken yet is neither lost nor an attempt", 114, likely=troubled("crash branch"))
def untaken_told_as_lost(patch: Patch) -> None:
    def lost(self: Any, link: Any) -> None:
        found = failure.Failure(failure.FailureKind.LOST, "its branch died", sent=False)
        given = [link.out.pop(key) for key in list(link.out)]
        if given:
            self._lost([events.AttemptFailed(call.goal, call.sample, call.attempt, found) for call in given])

    patch.setattr(branch_liveness.BranchLiveness, "take_back", lost)


@planted("a branch that is silent is asked for a sign of life", 17, likely=troubled("crash branch"))
def nobody_watches(patch: Patch) -> None:
    patch.setattr(dispatcher.Dispatch, "_watch", lambda self: None)


@planted("a new incarnation declares lost what no branch holds", 54, likely=troubled("crash channel", "crash driver"))
def rejoined_loses_nothing(patch: Patch) -> None:
    def kept(k: Any, program: Any, event: Any, out: Any) -> None:
        if event.epoch > k.epoch:
            k.epoch = event.epoch

    patch.setitem(event_handlers._TAKE, events.Rejoined, kept)


@planted("a branch that came back is armed by its peers or the driver", 17)
def nobody_arms_again(patch: Patch) -> None:
    patch.setattr(dispatcher.Dispatch, "without_credential", lambda self: [])

    async def alone(self: Any, job: str, peers: Any) -> None:
        return

    patch.setattr(credential_exchange.CredentialExchange, "_ask_peers", alone)


@planted("a tool run whose worker died ends its goal or is run again", 154, likely=_watched)
def tool_lost_unnoticed(patch: Patch) -> None:
    tool = tasks.ToolRuns._tool

    async def silent(self: Any, command: Any, terms: Any) -> None:
        put, self._put = self._put, lambda batch: None if batch[0].failure is not None else put(batch)
        try:
            await tool(self, command, terms)
        finally:
            self._put = put

    patch.setattr(tasks.ToolRuns, "_tool", silent)


@planted(
    "a child job is joined again by its name",
    378,
    likely=_watched,
)
def child_waited_for_once(patch: Patch) -> None:
    patch.setattr(errands, "lost", lambda k, held, out: [])


# -- timers --------------------------------------------------------------------------------------------------------------


@planted("what time alone changes is woken by time", 1)
def lost_wake_up(patch: Patch) -> None:
    patch.setattr(state.State, "due_at_s", lambda self: None)


@planted("an attempt ends at its deadline", 1)
def deadline_not_armed(patch: Patch) -> None:
    patch.setattr(branch.Branch, "_sweep", lambda self: None)


@planted("a goal that waits for its time is woken")
def delayed_goal_forgotten(patch: Patch) -> None:
    def forgotten(k: Any, goal: Any, due_at_s: float) -> None:
        goal.due_at_s = due_at_s

    patch.setattr(lifecycle, "be_woken", forgotten)


# -- money ---------------------------------------------------------------------------------------------------------------


@planted(
    "an attempt whose usage was never reported stays charged in full", 65, likely=troubled("crash branch", "hangs")
)
def lost_attempts_are_free(patch: Patch) -> None:
    patch.setattr(attempts, "assume", lambda k, flight, awaited: k.ledger.release(flight.charge))


@planted("a reply is charged at its price")
def price_of_output_forgotten(patch: Patch) -> None:
    cost = ledger.cost_nusd
    patch.setattr(
        ledger, "cost_nusd", lambda price, usage: cost(price, msgspec.structs.replace(usage, output_tokens=0))
    )


@planted("the event that asks reserves the worst case")
def nothing_is_reserved(patch: Patch) -> None:
    worst = ledger.worst_charge
    patch.setattr(request, "worst_charge", lambda *args: msgspec.structs.replace(worst(*args), nusd=1))


# -- policies ------------------------------------------------------------------------------------------------------------


@planted("policies.failures.retry: retries draw on a budget", 13, likely=troubled("overloaded"))
def retry_without_budget(patch: Patch) -> None:
    may = retry.may_retry
    patch.setattr(attempts, "may_retry", lambda policy, what, tries, spent, *args: may(policy, what, tries, 0, *args))


@planted("policies.failures.retry: attempts are bounded", 13, likely=troubled("overloaded"))
def retry_without_end(patch: Patch) -> None:
    may = retry.may_retry
    patch.setattr(attempts, "may_retry", lambda policy, what, tries, *args: may(policy, what, 1, *args))


@planted("policies.failures.retry: Retry-After is respected", 35)
def retry_after_ignored(patch: Patch) -> None:
    broke = event_handlers._TAKE[events.AttemptFailed]

    def hasty(k: Any, program: Any, event: Any, out: Any) -> None:
        broke(
            k,
            program,
            msgspec.structs.replace(event, failure=msgspec.structs.replace(event.failure, retry_after_s=None)),
            out,
        )

    patch.setitem(event_handlers._TAKE, events.AttemptFailed, hasty)


@planted("policies.failures.failure: a blocked account fails no row", 54, likely=troubled("blocked"))
def blocked_fails_rows(patch: Patch) -> None:
    rules = dict(failure.RULES)
    rules[failure.FailureKind.BLOCKED] = failure.FailureRule("no", "", "billing_error")
    patch.setattr(attempts, "RULES", rules)


@planted("policies.failures.timeout: the timeout bounds an attempt", 1)
def timeout_without_bound(patch: Patch) -> None:
    patch.setattr(request, "attempt_timeout_s", lambda *args: 1e9)


@planted("policies.failures.failure_budget: a job of which too many rows fail ends", 83)
def max_failed_ignored(patch: Patch) -> None:
    patch.setattr(termination, "too_many_failed", lambda rule, *counts: False)


@planted("policies.failures.failure_budget: no job ends of fewer failed rows than may", 12)
def max_failed_too_soon(patch: Patch) -> None:
    patch.setattr(termination, "too_many_failed", lambda rule, *counts: rule is not None)


@planted("policies.decisions.join: no goal goes on before its join is met", 2)
def join_met_by_first(patch: Patch) -> None:
    patch.setattr(join, "needed", lambda one, total: 1)


@planted("policies.decisions.join: a join that is met waits no longer", 2)
def join_waits_for_all(patch: Patch) -> None:
    patch.setattr(join, "needed", lambda one, total: total)


@planted("the user's concurrency bounds what is out")
def concurrency_ignored(patch: Patch) -> None:
    patch.setattr(step, "room", lambda k: 1_000)
    patch.setattr(request, "way", lambda k, lane=0, tried=0: 0)


@planted("a job that was resumed after a blocked account sends one call alone", 267, likely=troubled("blocked"))
def resumed_with_all_at_once(patch: Patch) -> None:
    def freely(k: Any) -> None:
        for share in k.shares:
            share.blocked = None
        k.paused = None

    patch.setattr(pauses, "try_again", freely)


@planted(
    "who has won is ahead of every other by k",
    41,
    likely=lambda plan: any(job.program == "elector" for job in plan.jobs),
)
def first_round_decides(patch: Patch) -> None:
    patch.setattr(voting, "votes_needed", lambda counts, k: 0)
