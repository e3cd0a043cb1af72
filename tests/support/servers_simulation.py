"""Simulation of a job at several servers of one model, in a closed loop with the real policies, in virtual time.

The job's step (K) and the scheduler's step are the real ones; the channel, the branch and the servers are tables. Each
server works on as many calls as it has slots, and the others wait there (`tests.support.queue_simulation` explains the
lengths of calls). Determined by one seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from cortex.journal import codec
from cortex.loop.step import step as job_step
from cortex.scheduler.protocol import ChannelJoined, MemberReported
from cortex.scheduler.reports import Claim, Claims, Grant, ProgressReport, RouteSignals
from cortex.scheduler.state import LEASE_S, SchedulerSettings
from cortex.state import commands, events
from cortex.state.goals import Status
from cortex.values.limits import Limits, Route
from cortex.values.reply import Usage
from policies.failures.failure import Failure, FailureKind
from policies.failures.route_choice import route_name
from policies.failures.timeout import QUEUE_S, TimeoutPolicy
from tests.support.fake_job_channels import Town
from tests.support.queue_simulation import MESSAGE_S, REPORT_S, SAMPLES_MAX, SOON_S, TURN_S
from tests.support.state_machine_harness import Flat, reply, terms

REFUSED_S = (0.001, 0.003)
"""Seconds until a call is refused: by a dead server's machine, or with 429."""


CACHED = 64
"""Documents that a server keeps."""


class Machine(msgspec.Struct, kw_only=True):
    """One server. Times are seconds after the beginning; `math.inf`: never."""

    slots: int = 8
    mean_s: float = 2.0
    """Mean seconds of a call in its slot."""
    dies_s: float = math.inf
    returns_s: float = math.inf
    slow_from_s: float = math.inf
    """Time from which calls take `slower` times as long."""
    slower: float = 10.0
    most: int = 10**9
    """Calls at the server above which it answers 429."""
    throttles_from_s: float = math.inf
    throttles_until_s: float = math.inf

    def rate(self, at_s: float) -> float:
        """Return the calls per second that it can do at this time."""
        if self.dies_s <= at_s < self.returns_s or self.throttles_from_s <= at_s < self.throttles_until_s:
            return 0.0
        return self.slots / self.mean_s / (self.slower if at_s >= self.slow_from_s else 1.0)


class Sent(msgspec.Struct, eq=False):
    """Call on its way."""

    call: commands.Call
    begun_s: float
    served_s: float = 0.0
    tokens: tuple[int, int] = (0, 0)


class Servers:
    """Whole loop: one job of `rows` rows at these servers. `concurrency`: calls in flight at most.

    `alike`: rows in a row that ask about one long document; 0: the prompts are short. A server keeps what it computed
    of the `CACHED` documents that it saw last, and the `prefill` share of a call's time is spent on the document
    otherwise, a twentieth of that if it is kept. `metrics`: the servers tell how many calls wait.
    """

    def __init__(
        self, machines: list[Machine], *, rows: int, concurrency: int = 2_048, seed: int = 1, queues: bool = True,
        sigma: float = 0.4, alike: int = 0, prefill: float = 0.2, metrics: bool = False,
    ) -> None:  # fmt: skip
        self.alike, self.prefill, self.metrics = alike, prefill, metrics
        self.kept: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in machines]
        self.found = self.missed = 0
        """Calls whose document the server had kept, and others."""
        self.machines, self.chance, self.queues, self.sigma = machines, random.Random(seed), queues, sigma
        limits = Limits(
            concurrency=concurrency, window_rows=max(2_048, concurrency), output_tokens_max=300,
            timeout=TimeoutPolicy(first_byte_s=QUEUE_S),
        )  # fmt: skip
        routes = [Route(endpoint=f"http://gpu-{place}", model="m") for place, _ in enumerate(machines)]
        opened = terms(limits, route=routes[0], fallbacks=tuple(routes[1:]), peers=len(routes) - 1)
        self.names = [route_name(each.endpoint, "", "m") for each in routes]
        document = lambda row: f"document {row // alike:06d} {'word ' * 600}" if alike else ""  # noqa: E731
        self.program = Flat(texts=tuple(f"{document(row)}{row}" for row in range(rows)))
        self.k = codec.open_job(opened)
        self.town = Town(SchedulerSettings())
        self.zero_s = self.town.at_s = 1_000.0
        self.answers: Counter[int] = Counter()
        """Answers by goal."""
        self.answered_s: list[float] = []
        self.at: list[list[float]] = [[] for _ in machines]
        """Times of the answers of each server."""
        self.failures: Counter[str] = Counter()
        self.attempts_counted = 0
        """Largest number of attempts of one call that counted as failed."""
        self._queue: list[deque[Sent]] = [deque() for _ in machines]
        self._serving: list[dict[Sent, None]] = [{} for _ in machines]
        self._inbox: list[events.Event] = []
        self._due, self._wakes_s = False, -math.inf
        """Whether a turn follows at once, and the time of the next turn that time alone asks for."""
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = self._report = 0
        self._acknowledged = [0] * len(machines)
        self._reported, self._claimed_s, self._until_s = 0, -math.inf, -math.inf
        self._counts: dict[tuple[int, int], dict[str, Any]] = {}
        for place, each in enumerate(machines):
            if each.dies_s < math.inf:
                self._after(each.dies_s, self._die, place)
        self._put(events.Opened(opened, 1))
        self._after(0.0, self._renew)
        self._after(REPORT_S, self._tell)

    @property
    def at_s(self) -> float:
        return self.town.at_s

    def run(self, until_s: float) -> Servers:
        """Continue until `until_s` after the beginning, or until the job has ended."""
        end_s = self.zero_s + until_s
        while self._events and self._events[0][0] <= end_s and not self.k.outcome:
            at_s, _, act, told = heapq.heappop(self._events)
            self.town.after(max(0.0, at_s - self.town.at_s))
            self._deliver()
            act(*told)
        return self

    def done(self, from_s: float, until_s: float) -> float:
        """Return the calls answered per second between two times after the beginning."""
        some = sum(self.zero_s + from_s <= at_s < self.zero_s + until_s for at_s in self.answered_s)
        return some / (until_s - from_s)

    def can(self, at_s: float) -> float:
        """Return the calls per second that all servers together can do at a time after the beginning."""
        return sum(each.rate(at_s) for each in self.machines)

    def _after(self, delay_s: float, act: Callable[..., None], *told: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.at_s + delay_s, self._number, act, told))

    def _draw(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)

    # ------------------------------------------------------------------------------------------ the channel

    def _put(self, event: events.Event) -> None:
        self._inbox.append(event)
        if not self._due:
            self._due = True
            self._after(self._draw(TURN_S), self._turn)

    def _turn(self) -> None:
        self._due = False
        batch, self._inbox = tuple(self._inbox), []
        for command in job_step(self.k, self.program, events.Turn(self.at_s, (batch,))):
            if isinstance(command, commands.Call):
                self._send(command)
        due_s = self.k.due_at_s()
        if due_s is not None and not (self.at_s < self._wakes_s <= due_s):
            self._wakes_s = max(due_s, self.at_s + 0.001)
            self._after(self._wakes_s - self.at_s, self._wake)
        want = self.k.demand()
        if want > self._reported and sum(share.permits for share in self.k.shares) < want:
            self._claim()

    def _wake(self) -> None:
        if not self._due and self.at_s >= self._wakes_s:
            self._turn()

    def _renew(self) -> None:
        self._claim()
        self._after(LEASE_S / 3, self._renew)

    def _claim(self) -> None:
        if self.at_s < self._claimed_s + 0.005:
            return
        k, self._claimed_s = self.k, self.at_s
        self._reported = k.demand()
        entries = tuple(
            Claim(name, name, _held(share), self._acknowledged[place], share.memo, "", self.queues)
            for place, (name, share) in enumerate(zip(self.names, k.shares, strict=True))
        )
        claims = Claims(
            "j", 1, self.town.state.cortex, self._reported, k.terms.limits.concurrency, entries,
            call_timeout_s=k.longest_timeout_s, progress=k.successes, peers=k.terms.peers,
        )  # fmt: skip
        for grant in self.town.tell(ChannelJoined(self.at_s, claims)):
            if isinstance(grant, Grant) and grant.for_s:
                self._after(self._draw(MESSAGE_S), self._granted, grant)
        self._deliver()

    def _deliver(self) -> None:
        while self.town.post:
            self._after(self._draw(MESSAGE_S), self._granted, self.town.post.pop(0))

    def _granted(self, grant: Grant) -> None:
        place = self.names.index(grant.route)
        if grant.serial <= self._acknowledged[place]:
            return
        self._acknowledged[place] = grant.serial
        self._put(
            events.PermitsGranted(
                grant.permits, place, grant.starts, grant.generation, grant.requests_per_s, grant.input_tokens_per_s,
                grant.output_tokens_per_s, grant.why, grant.memo, grant.again_s,
            )
        )

    # ------------------------------------------------------------------------------------------ the branch

    def _count(self, sent: Sent) -> dict[str, Any]:
        key = sent.call.route, sent.call.generation
        return self._counts.setdefault(key, {"failed": {}, "samples": [], "prompts": []})

    def _send(self, call: commands.Call) -> None:
        self._after(self._draw(MESSAGE_S), self._sent, Sent(call, 0.0))

    def _sent(self, sent: Sent) -> None:
        place, machine, now_s = sent.call.route, self.machines[sent.call.route], self.at_s - self.zero_s
        sent.begun_s = self.at_s
        counts = self._count(sent)
        counts["begun"] = counts.get("begun", 0) + 1
        at_server = len(self._queue[place]) + len(self._serving[place])
        if machine.dies_s <= now_s < machine.returns_s:
            self._after(self._draw(REFUSED_S), self._failed, sent, FailureKind.TRANSIENT, False)
        elif at_server >= machine.most or machine.throttles_from_s <= now_s < machine.throttles_until_s:
            self._after(self._draw(REFUSED_S), self._failed, sent, FailureKind.THROTTLED, True)
        else:
            sent.tokens = self._size(1_000.0), self._size(200.0)
            self._queue[place].append(sent)
            self._serve(place)

    def _size(self, mean: float) -> int:
        return max(1, round(self.chance.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)))

    def _serve(self, place: int) -> None:
        machine = self.machines[place]
        while self._queue[place] and len(self._serving[place]) < machine.slots:
            sent = self._queue[place].popleft()
            self._serving[place][sent] = None
            slower = machine.slower if self.at_s - self.zero_s >= machine.slow_from_s else 1.0
            prefill = self.prefill * (0.05 if self.alike and self._is_kept(place, sent.call.body) else 1.0)
            parts = prefill * sent.tokens[0] / 1_000 + (1 - self.prefill) * sent.tokens[1] / 200
            sent.served_s = machine.mean_s * parts
            self._after(sent.served_s * slower, self._answered, place, sent)

    def _is_kept(self, place: int, body: bytes) -> bool:
        """Return whether the server has the call's document; it has it from now on."""
        kept, begin = self.kept[place], body.find(b"document ")
        name = body[begin : begin + 15]
        found = name in kept
        kept[name] = None
        kept.move_to_end(name)
        if len(kept) > CACHED:
            kept.popitem(last=False)
        self.found, self.missed = self.found + found, self.missed + (not found)
        return found

    def _answered(self, place: int, sent: Sent) -> None:
        if self._serving[place].pop(sent, 0) == 0:
            return  # the server has died meanwhile
        call, took_s, counts = sent.call, self.at_s - sent.begun_s, self._count(sent)
        for name, more in (
            ("answered", 1), ("input_tokens", sent.tokens[0]), ("output_tokens", sent.tokens[1]), ("latency_s", took_s),
            ("slow", int(took_s > call.timeout_s / 2)),
        ):  # fmt: skip
            counts[name] = counts.get(name, 0) + more
        if len(counts["samples"]) < SAMPLES_MAX:
            counts["samples"].append((took_s, sent.tokens[1]))
            counts["prompts"].append(sent.tokens[0])
        goal = self.k.goals.get(call.goal)
        if goal is not None and goal.status is Status.ASKED:
            self.attempts_counted = max(self.attempts_counted, goal.broken)
        self.answers[call.goal] += 1
        self.answered_s.append(self.at_s)
        self.at[place].append(self.at_s - self.zero_s)
        message = reply("ok", Usage(*sent.tokens))
        self._put(events.Answered(call.goal, call.sample, call.attempt, call.hash, message, took_s, 0.0, "branch:0"))
        self._serve(place)

    def _failed(self, sent: Sent, kind: FailureKind, was_sent: bool) -> None:
        call, failed = sent.call, self._count(sent)["failed"]
        failed[kind.value] = failed.get(kind.value, 0) + 1
        self.failures[kind.value] += 1
        failure = Failure(kind, "no", 429 if kind is FailureKind.THROTTLED else 0, sent=was_sent)
        self._put(events.AttemptFailed(call.goal, call.sample, call.attempt, failure))
        if kind is FailureKind.THROTTLED:
            self._after(0.001, self._tell, False)

    def _die(self, place: int) -> None:
        lost = [*self._serving[place], *self._queue[place]]
        self._serving[place].clear()
        self._queue[place].clear()
        for sent in lost:
            self._failed(sent, FailureKind.TRANSIENT, True)

    def _tell(self, again: bool = True) -> None:
        signals = [
            RouteSignals(
                self.names[place], self.names[place], generation,
                in_flight=len(self._queue[place]) + len(self._serving[place]),
                at_server=(len(self._serving[place]), len(self._queue[place])) if self.metrics else None,
                **{name: tuple(value) if isinstance(value, list) else value for name, value in told.items()},
            )
            for (place, generation), told in self._counts.items()
        ]  # fmt: skip
        self._counts = {}
        self._report += 1
        number = self._report
        report = ProgressReport("branch:0", "b1", "node", number, "calling", 1, done=number, routes=tuple(signals))
        self.town.tell(MemberReported(self.at_s, report))
        self._deliver()
        if again:
            pools = self.town.state.pools.values()
            grows = any(self.at_s - pool.grew_s < REPORT_S for pool in pools)
            self._after(SOON_S if grows else REPORT_S, self._tell)


def _held(share: Any) -> int:
    may = share.permits if share.starts < 0 else min(share.permits, share.in_flight + share.starts)
    return max(may, share.in_flight)
