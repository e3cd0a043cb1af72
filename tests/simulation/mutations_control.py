"""Faults planted in the control plane: leases, limits, breakers, probes, and their policies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

from actors.channel import fencing
from actors.channel.leases import lease
from actors.messaging import answer_bounds
from actors.runtime import host
from cortex.admission import permits
from cortex.calls import request
from cortex.scheduler import claims as claiming
from cortex.scheduler import leases, pools, supervision
from cortex.state import commands
from cortex.values import ledger
from policies.failures import breaker, restart
from policies.failures.breaker import BreakerState
from policies.limits import limit
from tests.simulation.mutations import Patch, planted, troubled
from tests.simulation.scenario import OVERTAKEN, Plan

_again = troubled("crash cortex", "crash_in_commit cortex", "thought_dead cortex")
_aimed = troubled("crash_while_open")


def _overtaken(made: Plan) -> bool:
    return made.seed % 100 == OVERTAKEN


def _capped(made: Plan) -> bool:
    return any(job.cap_share for job in made.jobs)


_cut = troubled("cut_off channel", "cut_off driver", "stand_still cortex")


@planted("nothing new is granted after a restart until all have told what they hold", 84, likely=_again)
def double_grant_after_restart(patch: Patch) -> None:
    patch.setattr(leases, "_free", lambda state, pool: max(0, pool.allowed.concurrency - pool.in_use))


@planted("a restarted scheduler is told what its predecessor granted last", 4985, likely=_overtaken)
def answers_to_overtaken_claims_heeded(patch: Patch) -> None:
    patch.setattr(lease.Lease, "_outdated", lambda self, grants: False)


@planted("a grant counts from when it is given, until it is known to be heard", 16)
def grants_count_when_heard(patch: Patch) -> None:
    issue = leases.issue

    def forgotten(state: Any, row: Any, *args: Any) -> Any:
        grant = issue(state, row, *args)
        hold = row[4]
        hold.announced = []
        leases.count(state, hold)
        return grant

    patch.setattr(leases, "issue", forgotten)


@planted("a channel that only waits learns that it is fenced", 9011890, likely=troubled("opened_late"))
def waits_without_a_look(patch: Patch) -> None:
    patch.setattr(fencing, "LOOK_S", 1e6)


@planted("a question between actors ends, answered or not", 20000011, likely=lambda made: made.endless > 0)
def questions_without_bound(patch: Patch) -> None:
    patch.setattr(answer_bounds, "bound_s", lambda method, args: 1e9)


@planted("a lease that ran out stays counted until its last call has ended", 47, likely=_cut)
def lease_without_quarantine(patch: Patch) -> None:
    renew = claiming._renew

    def soon(state: Any, claims: Any, job: Any) -> None:
        renew(state, claims, job)
        job.until_s = job.free_s = state.at_s + 1.0
        state.wake(job.until_s)

    patch.setattr(claiming, "_renew", soon)


@planted("an open breaker has effect: nothing is granted", 13, likely=troubled("overloaded", "hangs"))
def breaker_ignored_by_select(patch: Patch) -> None:
    patch.setattr(leases, "_terms", lambda state, pool, route, hold, share: (-1, ""))
    choose = pools.choose
    patch.setattr(pools, "choose", lambda states, peers=0: choose([BreakerState.CLOSED for _ in states], peers))


@planted("never more than n probes are unresolved", 65, likely=troubled("overloaded", "hangs"))
def probe_leak(patch: Patch) -> None:
    def always(policy: Any, one: Any, at_s: float) -> int:
        return int(policy.probes) if one.state is BreakerState.HALF_OPEN else 0

    patch.setattr(breaker, "probes_wanted", always)
    patch.setattr(breaker, "probe_out", lambda policy, one, at_s, deadline_s, n=1: None)


@planted(
    "policies.failures.breaker: results of an earlier state count for nothing",
    176,
    likely=troubled("overloaded", "hangs"),
)
def late_results_counted(patch: Patch) -> None:
    observe = breaker.observe

    def all_count(policy: Any, one: Any, at_s: float, generation: int, *args: Any, **more: Any) -> Any:
        return observe(policy, one, at_s, one.generation, *args, **more)

    patch.setattr(breaker, "observe", all_count)


@planted("policies.limits.limit: a cap by hand holds", 7, likely=lambda plan: plan.pool_cap > 0)
def cap_by_hand_ignored(patch: Patch) -> None:
    allowance = limit.allowance
    patch.setattr(limit, "allowance", lambda policy, one, at_s, caps=limit.NO_CAPS: allowance(policy, one, at_s))


@planted(
    "policies.limits.pace: the rate of a job's user holds",
    1,
    likely=lambda plan: any(job.requests_per_min for job in plan.jobs),
)
def pace_ignored(patch: Patch) -> None:
    patch.setattr(permits, "own_pace", lambda pace, at_s, limits: None)
    from cortex.loop import event_handlers

    patch.setattr(event_handlers, "own_pace", lambda pace, at_s, limits: None)


@planted("policies.limits.limit: leases are within a limit that was cut", 1, likely=lambda plan: plan.limit_start == 4)
def limit_ignored(patch: Patch) -> None:
    allowed = pools.allowed

    def generous(state: Any, pool: Any) -> Any:
        return allowed(state, pool)

    def all_wanted(state: Any, pool: Any, claims: Any) -> list[int]:
        return [want for want, _ in claims]

    patch.setattr(pools, "allowed", generous)
    patch.setattr(leases, "_turns", all_wanted)
    patch.setattr(leases, "_free", lambda state, pool: 1_000)


@planted("nothing is begun under a lease that has run out", 892, likely=_cut)
def lease_expiry_ignored(patch: Patch) -> None:
    patch.setattr(lease.Lease, "run_out", lambda self: [])


@planted("a cap by hand holds across a restart of the cortex", 213, likely=_again)
def cap_forgotten_by_restart(patch: Patch) -> None:
    decode = pools._decode
    patch.setattr(pools, "_decode", lambda blob: msgspec.structs.replace(decode(blob), caps=limit.NO_CAPS))
    patch.setattr(host.LocalNotes, "found", lambda self, prefix: {})


@planted("policies.failures.restart: what died is started again", 68, likely=troubled("gone branch", "gone worker"))
def never_restarted(patch: Patch) -> None:
    patch.setattr(restart, "decide", lambda policy, deaths, at_s: restart.RestartVerdict(False, 1e6, "died"))


@planted("what a memo tells is taken in by a cortex that came back", 84, likely=_again)
def memo_ignored(patch: Patch) -> None:
    patch.setattr(pools, "adopt", lambda state, claim, out: None)


@planted("a grant that an overtaken message brings is not taken in", 5)
def grant_serial_ignored(patch: Patch) -> None:
    take = lease.Lease._take

    def any_serial(self: Any, grant: Any, anew: bool = False) -> None:
        place = next((place for place in self._places if place.route == grant.route), None)
        if place is not None and grant.serial < place.acknowledged:
            place.acknowledged = 0
        take(self, grant, anew)

    patch.setattr(lease.Lease, "_take", any_serial)


@planted("what is reserved counts against the cap", 44, likely=_capped)
def reservation_forgotten(patch: Patch) -> None:
    def allows(self: Any, charge: Any, max_cost_nusd: int | None, max_job_tokens: int | None) -> bool:
        return max_cost_nusd is None or self.known_nusd + self.assumed_nusd + charge.nusd <= max_cost_nusd

    patch.setattr(ledger.Ledger, "allows", allows)


@planted("what is assumed counts against the cap", 50, likely=_capped)
def assumption_forgotten(patch: Patch) -> None:
    def allows(self: Any, charge: Any, max_cost_nusd: int | None, max_job_tokens: int | None) -> bool:
        return max_cost_nusd is None or self.known_nusd + self.reserved_nusd + charge.nusd <= max_cost_nusd

    patch.setattr(ledger.Ledger, "allows", allows)


@planted("an open breaker holds across a restart of the cortex", likely=_aimed)
def breaker_forgotten_by_restart(patch: Patch) -> None:
    decode = pools._decode
    patch.setattr(pools, "_decode", lambda blob: msgspec.structs.replace(decode(blob), breaker=None))


@planted("the limit holds across a restart of the cortex", likely=_again)
def limit_forgotten_by_restart(patch: Patch) -> None:
    decode = pools._decode

    def without(blob: bytes) -> Any:
        return msgspec.structs.replace(decode(blob), limit=limit.new(limit.LimitPolicy()))

    patch.setattr(pools, "_decode", without)


@planted(
    "policies.failures.restart: nobody is given up at its first death",
    likely=troubled("gone branch", "gone worker", "crash channel"),
)
def first_death_escalates(patch: Patch) -> None:
    decide = restart.decide
    patch.setattr(
        restart,
        "decide",
        lambda policy, deaths, at_s: msgspec.structs.replace(decide(policy, deaths, at_s), escalate=True),
    )


@planted("policies.failures.restart: what hangs is killed", 44, likely=troubled("hung"))
def nothing_is_ever_killed(patch: Patch) -> None:
    rung = restart.rung

    def gentle(*args: Any) -> Any:
        found = rung(*args)
        return restart.EscalationStep.ASK if found is restart.EscalationStep.KILL else found

    patch.setattr(restart, "rung", gentle)


@planted("what hangs while it is to end is killed", 228, likely=troubled("hung"))
def hung_retirement_unnoticed(patch: Patch) -> None:
    patch.setattr(supervision, "_WATCHED", supervision._WORKING)


@planted("holders are told of each move of a breaker", 13, likely=troubled("overloaded", "hangs"))
def generation_not_told(patch: Patch) -> None:
    issue = leases.issue

    def older(state: Any, row: Any, *args: Any) -> Any:
        grant = issue(state, row, *args)
        hold = row[4]
        hold.grant = msgspec.structs.replace(grant, generation=max(0, grant.generation - 1))
        return hold.grant

    patch.setattr(leases, "issue", older)


@planted("a call tells under which state of its breaker it was begun", likely=troubled("overloaded", "hangs"))
def call_without_generation(patch: Patch) -> None:
    def older(*args: Any) -> Any:
        return msgspec.structs.replace(commands.Call(*args), generation=0)

    patch.setattr(request, "commands", SimpleNamespace(**{**vars(commands), "Call": older}))
