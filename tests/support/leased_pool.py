"""Pool of `tests.support.pool_simulation` under the scheduler's step: the allowance is leased to four jobs, in grants
and claims.
"""

from __future__ import annotations

import math
from typing import Any

from cortex.scheduler import step
from cortex.scheduler.reports import Claim, Claims, Grant, ProgressReport, RouteSignals
from policies.limits.limit import PoolAllowance, UsageSample
from policies.limits.pace import put_off, set_rates
from tests.support.pool_simulation import MESSAGE_S, Pool, Provider

POOL = "http://provider|key|sonnet"
ROUTE = "http://provider|key|claude-sonnet-4-5"
STARTING_S = 0.1
CONCURRENCY = 2_000
"""Concurrency limit of each job."""


class LeasedPool(Pool):
    """Pool in which each node is a job and a branch in one."""

    def __init__(self, provider: Provider, **options: Any) -> None:
        self.state = step.SchedulerState()
        self.granted = 0
        self._numbers = 0
        self._due_s = math.inf
        self._heard_serial: dict[int, int] = {}
        super().__init__(provider, **options)
        self._step(step.SchedulerStarted(self.now_s, "cortex"))
        for place, _ in enumerate(self.nodes):
            self._join(place)
        self.limit = self.state.pools[POOL].limit

    def _step(self, event: step.Event) -> None:
        for command in step.step(self.state, event):
            if isinstance(command, Grant):
                self.granted += 1
                self._at(self._draw(MESSAGE_S), self._take_grant, int(command.job), command)
            elif isinstance(command, step.StartMember):
                self._at(STARTING_S, self._begun, command.name)
        if self.state.due_s < self._due_s:
            self._due_s = self.state.due_s
            self._at(max(0.0, self._due_s - self.now_s), self._passed)

    def _passed(self) -> None:
        self._due_s = math.inf
        self._step(step.TimePassed(self.now_s))

    def _begun(self, name: str) -> None:
        self._step(step.MemberStarted(self.now_s, name, "node", f"{name}!"))

    def _join(self, place: int) -> None:
        node = self.nodes[place]
        wanted = min(CONCURRENCY, int(self.demand(self.now_s - self.zero_s) / len(self.nodes)))
        held = max(node.permits, node.in_flight)
        claim = Claim(ROUTE, POOL, held, self._heard_serial.get(place, 0))
        self._step(step.ChannelJoined(self.now_s, Claims(str(place), 1, "cortex", wanted, CONCURRENCY, (claim,))))

    def _take_grant(self, place: int, grant: Grant) -> None:
        if grant.serial <= self._heard_serial.get(place, 0):
            return  # overtaken by a newer grant
        self._heard_serial[place] = grant.serial
        node = self.nodes[place]
        held, node.held = node.held, not grant.starts
        node.permits = grant.permits if grant.starts else 0
        rates = grant.requests_per_s, grant.input_tokens_per_s, grant.output_tokens_per_s
        set_rates(node.pace, self.now_s, *rates, grant.phase)
        if held and not node.held:
            put_off(node.pace, self.now_s, grant.phase)
        self._begin(place)
        self._shared = PoolAllowance(sum(each.permits for each in self.nodes))
        self._at(self._draw(MESSAGE_S), self._join, place)

    def _heard(self, place: int, counts: UsageSample, in_flight: int) -> None:
        self._numbers += 1
        failed = {"throttled": counts.throttled, "transient": counts.unwell}
        signals = RouteSignals(
            ROUTE,
            POOL,
            begun=counts.begun,
            answered=counts.answered,
            failed={kind: n for kind, n in failed.items() if n},
            input_tokens=counts.input_tokens,
            output_tokens=counts.output_tokens,
            latency_s=counts.latency_s,
            retry_after_s=counts.retry_after_s,
            rate=counts.rate,
            in_flight=in_flight,
        )
        name = f"branch:{place}"
        report = ProgressReport(
            name, f"{name}!", "node", self._numbers, "calling", in_flight, done=self._numbers, routes=(signals,)
        )
        self._step(step.MemberReported(self.now_s, report))
        self._join(place)

    def _share(self) -> None:
        """Do nothing: the scheduler shares the limit."""
        self._shared = self._shared or PoolAllowance(0)

    def _free(self) -> bool:
        """Return True: the scheduler ensures that no job gets permits that another still uses."""
        return True
