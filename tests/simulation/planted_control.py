"""Faults planted in the control plane: leases, limits, breakers, probes, and their policies."""

from __future__ import annotations

from typing import Any

import msgspec

from actors import lease, machine
from cortex import claiming, lending, permits, pools
from policies import breaker, limit, restart
from policies.breaker import BreakerState
from tests.simulation.planted import Patch, planted, troubled

_again = troubled("crash cortex", "crash_in_commit cortex", "thought_dead cortex")
_cut = troubled("cut_off channel", "cut_off driver", "stand_still cortex")


@planted("nothing new is granted after a restart until all have told what they hold", 82, likely=_again)
def double_grant_after_restart(patch: Patch) -> None:
    patch.setattr(lending, "_free", lambda state, pool: max(0, pool.allowed.concurrency - pool.in_use))


@planted("a grant counts from when it is given, until it is known to be heard", 3)
def grants_count_when_heard(patch: Patch) -> None:
    issue = lending.issue

    def forgotten(state: Any, row: Any, *args: Any) -> Any:
        grant = issue(state, row, *args)
        hold = row[4]
        hold.told = []
        lending.count(state, hold)
        return grant

    patch.setattr(lending, "issue", forgotten)


@planted("a lease that ran out stays counted until its last call has ended", 20, likely=_cut)
def lease_without_quarantine(patch: Patch) -> None:
    renew = claiming._renew

    def soon(state: Any, claims: Any, job: Any) -> None:
        renew(state, claims, job)
        job.until_s = job.free_s = state.at_s + 1.0
        state.wake(job.until_s)

    patch.setattr(claiming, "_renew", soon)


@planted("an open breaker has effect: nothing is granted", 3, likely=troubled("overloaded", "hangs"))
def breaker_ignored_by_select(patch: Patch) -> None:
    patch.setattr(lending, "_terms", lambda state, pool, route, hold, share: (-1, ""))
    choose = pools.choose
    patch.setattr(pools, "choose", lambda states: choose([BreakerState.CLOSED for _ in states]))


@planted("never more than n probes are unresolved", 176, likely=troubled("overloaded", "hangs"))
def probe_leak(patch: Patch) -> None:
    def always(policy: Any, one: Any, at_s: float) -> int:
        return int(policy.probes) if one.state is BreakerState.HALF_OPEN else 0

    patch.setattr(breaker, "probes_wanted", always)
    patch.setattr(breaker, "probe_out", lambda policy, one, at_s, deadline_s, n=1: None)


@planted("policies.breaker: results of an earlier state count for nothing", 176, likely=troubled("overloaded", "hangs"))
def late_results_counted(patch: Patch) -> None:
    observe = breaker.observe

    def all_count(policy: Any, one: Any, at_s: float, generation: int, *args: Any) -> Any:
        return observe(policy, one, at_s, one.generation, *args)

    patch.setattr(breaker, "observe", all_count)


@planted("policies.limit: a cap by hand holds", 7, likely=lambda plan: plan.pool_cap > 0)
def cap_by_hand_ignored(patch: Patch) -> None:
    allowance = limit.allowance
    patch.setattr(limit, "allowance", lambda policy, one, at_s, caps=limit.NO_CAPS: allowance(policy, one, at_s))


@planted("policies.pace: the rate of a job's user holds", 1, likely=lambda plan: any(job.requests_per_min for job in plan.jobs))
def pace_ignored(patch: Patch) -> None:
    patch.setattr(permits, "own_pace", lambda pace, at_s, limits: None)
    from cortex import intake

    patch.setattr(intake, "own_pace", lambda pace, at_s, limits: None)


@planted("policies.limit: leases are within a limit that was cut", 1, likely=lambda plan: plan.limit_start == 4)
def limit_ignored(patch: Patch) -> None:
    allowed = pools.allowed

    def generous(state: Any, pool: Any) -> Any:
        return allowed(state, pool)

    def all_wanted(state: Any, pool: Any, claims: Any) -> list[int]:
        return [want for want, _ in claims]

    patch.setattr(pools, "allowed", generous)
    patch.setattr(lending, "_turns", all_wanted)
    patch.setattr(lending, "_free", lambda state, pool: 1_000)


@planted("nothing is begun under a lease that has run out", 92, likely=_cut)
def lease_expiry_ignored(patch: Patch) -> None:
    patch.setattr(lease.Lease, "run_out", lambda self: [])


@planted("a cap by hand holds across a restart of the cortex", 213, likely=_again)
def cap_forgotten_by_restart(patch: Patch) -> None:
    decode = pools._decode
    patch.setattr(pools, "_decode", lambda blob: msgspec.structs.replace(decode(blob), caps=limit.NO_CAPS))
    patch.setattr(machine.Notes, "found", lambda self, prefix: {})


@planted("policies.restart: what died is started again", 16, likely=troubled("gone branch", "gone worker"))
def never_restarted(patch: Patch) -> None:
    patch.setattr(restart, "decide", lambda policy, deaths, at_s: restart.Verdict(False, 1e6, "died"))


@planted("what a memo tells is taken in by a cortex that came back", 213, likely=_again)
def memo_ignored(patch: Patch) -> None:
    patch.setattr(pools, "adopt", lambda state, claim, out: None)
