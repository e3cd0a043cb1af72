"""CPU time of the scheduler's decisions, ``cortex.scheduler.step.step``, for each granted call.

``lone``: one job whose calls come one after another, each with its own claim and report, the most that a call can
cost. ``small``: 4 jobs, 4 branches, 400 calls in flight. ``large``: 100 jobs, 1,000 branches, 100,000 calls in flight
of 10 s each. Branches report at the scheduler's interval, channels renew every 5 s; time is virtual. Every scenario is
measured in consecutive stretches of equal length: growth with finished calls would show as a cost or a state that
rises from stretch to stretch.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import sys
import time
from typing import Any

import msgspec

from benchmarks.harness import figures
from benchmarks.harness.rows import Lost
from cortex.scheduler.protocol import (
    ChannelJoined,
    Command,
    MemberReported,
    MemberStarted,
    SchedulerStarted,
    StartMember,
    TimePassed,
)
from cortex.scheduler.reports import Claim, Claims, Grant, ProgressReport, RouteSignals
from cortex.scheduler.step import SchedulerSettings, SchedulerState, report_after_s, step
from policies.limits.limit import LimitPolicy

ROUTE = "https://api.example.com|0123456789ab|opus"
MUST_US = {"lone": 30.0, "small": 30.0, "large": 50.0}


class Load:
    """Jobs and branches in virtual time; only the time spent in ``step`` is counted."""

    def __init__(self, jobs: int, branches: int, in_flight: int, call_s: float) -> None:
        policy = LimitPolicy(start=in_flight, ceiling=in_flight)
        self.state = SchedulerState(SchedulerSettings(limit=policy, branches_min=branches, branches_max=branches))
        self.jobs, self.branches, self.in_flight, self.call_s = jobs, branches, in_flight, call_s
        self.held = [0] * jobs
        self.heard = [0] * jobs
        self.number = [0] * branches
        self.owed = [0.0] * branches
        """Calls ended at each branch and not reported yet, in fractions."""
        self.granted = 0.0
        self.spent_s = 0.0
        self.steps = 0
        self.at_s = 0.0
        self.tell(SchedulerStarted(0.0, "cortex"))
        for job in range(jobs):
            self.join(job)
        self.agenda: list[tuple[float, int, int]] = [(5.0 * job / jobs, 0, job) for job in range(jobs)]
        every_s = report_after_s(self.state)
        self.agenda += [(every_s * branch / branches, 1, branch) for branch in range(branches)]
        heapq.heapify(self.agenda)

    def tell(self, event: Any) -> None:
        begun_s = time.process_time()
        commands = step(self.state, event)
        self.spent_s += time.process_time() - begun_s
        self.steps += 1
        for command in commands:
            self.obey(command)

    def obey(self, command: Command) -> None:
        if isinstance(command, Grant):
            job = int(command.job)
            if command.serial > self.heard[job]:
                self.held[job], self.heard[job] = command.permits, command.serial
        elif isinstance(command, StartMember):
            self.tell(MemberStarted(self.at_s, command.name, f"node {len(command.name) % 7}", command.name))

    def join(self, job: int) -> None:
        claim = Claim(ROUTE, ROUTE, self.held[job], self.heard[job])
        wanted = 2 * self.in_flight // self.jobs
        self.tell(ChannelJoined(self.at_s, Claims(str(job), 1, "cortex", wanted, 10**6, (claim,), progress=self.steps)))

    def report(self, branch: int, calls: int) -> None:
        self.number[branch] += 1
        flights = self.in_flight // self.branches
        signals = RouteSignals(
            ROUTE,
            ROUTE,
            0,
            calls,
            calls,
            latency_s=calls * self.call_s,
            input_tokens=500 * calls,
            output_tokens=50 * calls,
            samples=((self.call_s, 50),) * min(calls, 16),
            in_flight=flights,
        )
        name = f"branch:{branch}"
        number = self.number[branch]
        self.tell(
            MemberReported(
                self.at_s,
                ProgressReport(name, name, "node", number, "calling", flights, done=number, routes=(signals,)),
            )
        )

    def stretch(self, seconds: float) -> dict[str, float]:
        """Run ``seconds`` of virtual time; return the cost of each call granted in it."""
        self.granted, self.spent_s, self.steps = 0.0, 0.0, 0
        until_s = self.at_s + seconds
        rate = self.in_flight / self.call_s / self.branches
        while self.agenda[0][0] < until_s:
            self.at_s, what, which = self.agenda[0]
            while self.state.due_s <= self.at_s:
                self.tell(TimePassed(self.state.due_s))
            if what == 0:
                self.join(which)
                next_s = 5.0
            else:
                next_s = report_after_s(self.state)
                self.owed[which] += rate * next_s
                calls = int(self.owed[which])
                self.owed[which] -= calls
                self.granted += calls
                self.report(which, calls)
            heapq.heapreplace(self.agenda, (self.at_s + next_s, what, which))
        self.at_s = until_s
        return self.figures()

    def lone(self, calls: int) -> dict[str, float]:
        """Make ``calls`` calls one after another, each with its own claim and report."""
        self.granted, self.spent_s, self.steps = float(calls), 0.0, 0
        for _ in range(calls):
            self.at_s += self.call_s
            while self.state.due_s <= self.at_s:
                self.tell(TimePassed(self.state.due_s))
            self.join(0)
            self.report(0, 1)
        return self.figures()

    def figures(self) -> dict[str, float]:
        """Return the state's figures. Raises ``Lost`` where reported calls were never granted."""
        if sum(self.held) < self.in_flight:
            raise Lost(f"{self.in_flight} calls are in flight, and {sum(self.held)} are granted")
        return {
            "calls": round(self.granted),
            "steps": self.steps,
            "us_a_call": round(self.spent_s / self.granted * 1e6, 2),
            "us_a_step": round(self.spent_s / self.steps * 1e6, 1),
            "state_kb": round(len(msgspec.msgpack.encode(self.state)) / 1e3, 1),
        }


def measured(name: str, stretches: int) -> list[dict[str, float]]:
    """Return the figures of each stretch after the buffers are full."""
    if name == "lone":
        load = Load(1, 1, 1, 0.02)
        load.lone(4000)
        return [load.lone(4000) for _ in range(stretches)]
    load = Load(4, 4, 400, 1.0) if name == "small" else Load(100, 1000, 100_000, 10.0)
    load.stretch(330.0)
    return [load.stretch(20.0) for _ in range(stretches)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--stretches", type=int, default=5)
    options = parser.parse_args()
    gc.freeze()
    found: dict[str, Any] = {"benchmark": "scheduler", **figures.machine(), "must_us": MUST_US, "scenarios": {}}
    for name in MUST_US:
        rows = measured(name, options.stretches)
        found["scenarios"][name] = {
            "us_a_call": figures.median([row["us_a_call"] for row in rows], 2),
            "growth": round(rows[-1]["us_a_call"] / rows[0]["us_a_call"], 2),
            "stretches": rows,
        }
        if not options.json:
            print(f"{name}: {found['scenarios'][name]['us_a_call']} us a call, must reach {MUST_US[name]}")
            for row in rows:
                print("   ", "  ".join(f"{key} {value}" for key, value in row.items()))
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main()
