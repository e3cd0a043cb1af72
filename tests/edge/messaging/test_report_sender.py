"""A branch counts what becomes of attempts and tells the cortex: each once, in time, and nothing while it is idle."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest

from actors.branch.outcome_counters import FIRST_MAX
from actors.messaging.report_sender import AGAIN_S, REPORT_S, URGENT_S
from cortex.scheduler.reports import RouteSignals
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import RateLimits, ReportedBucket
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.in_process_job import reply

LIMITS = RateLimits(requests=ReportedBucket(50, 40, 1.0))


# -- what is counted --------------------------------------------------------------------------------------------------

TOLD = {
    "ok": reply("ok"),
    "throttled": Failure(FailureKind.THROTTLED, "slow down", 429, retry_after_s=7.0),
    "less": Failure(FailureKind.THROTTLED, "slow down", 429, retry_after_s=3.0),
    "overloaded": Failure(FailureKind.OVERLOADED, "busy", 529),
    "blocked": Failure(FailureKind.BLOCKED, "no credit", 400),
    "refused connection": Failure(FailureKind.TRANSIENT, "no connection", sent=False),
}


def test_attempts_are_counted_by_route_and_generation_and_nothing_that_was_never_asked() -> None:
    own, other = Model(TOLD.__getitem__, pause_s=0.5), Model(TOLD.__getitem__, pause_s=6)
    own.rate = LIMITS

    async def play(scene: Scene) -> None:
        lines = ["ok", "ok", "throttled", "less", "overloaded", "refused connection"]
        calls = [call(goal, text) for goal, text in enumerate(lines)]
        calls += [call(20, "ok", generation=1), call(21, "blocked", generation=1), call(22, "ok", route=1)]
        calls.append(msgspec.structs.replace(call(23, "x" * 999), prompt_tokens_max=1))
        scene.cortex.wanted_s = 100
        await scene.send(*calls)
        await scene.branch.abandon("j", 1, ((5, 1),))  # before it was sent
        await asyncio.sleep(200)
        # How many are told before the first answer depends on when calls go out; the last two tell what became of them.
        *before, first, second = [report for _, report in scene.cortex.reports]
        begun = Counter()
        for report in (*before, first, second):
            begun.update({(signals.route, signals.generation): signals.begun for signals in report.routes})
        assert begun == {("r0", 0): 5, ("r0", 1): 2, ("r1", 0): 1}
        assert [signals.route for signals in second.routes] == ["r1"]
        by_place = {(s.route, s.generation): s for s in (*first.routes, *second.routes) if s.answered or s.failed}
        old = by_place["r0", 0]
        assert old == RouteSignals(
            "r0", "p0", 0, begun=old.begun, answered=2, failed={"throttled": 2, "overloaded": 1}, input_tokens=20,
            output_tokens=4, latency_s=1.0, samples=((0.5, 2), (0.5, 2)), retry_after_s=7.0, rate=LIMITS,
            prompts=(10, 10),
        )  # fmt: skip
        new = by_place["r0", 1]
        assert (new.answered, new.failed, new.message) == (1, {"blocked": 1}, "no credit")
        slow = by_place["r1", 0]
        assert (slow.pool, slow.slow, slow.latency_s, slow.samples, slow.rate) == ("p1", 1, 6.0, ((6.0, 2),), None)
        assert [s.in_flight for s in first.routes if s.route == "r1"] == [1]
        assert second.routes[-1].in_flight == 0
        assert (first.in_flight, first.done, second.done) == (1, 9, 10)

    on_stage(play, own, other)


def test_a_refused_connection_counts_against_the_route() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1, "refused connection"))
        await asyncio.sleep(1)
        assert [signals.failed for signals in scene.signals()] == [{"transient": 1}]

    on_stage(play, Model(TOLD.__getitem__))


def test_a_route_without_a_key_here_asks_nobody() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1, route=1))
        await asyncio.sleep(1)
        ((_, event),) = scene.channel.heard
        assert (event.failure.kind, event.failure.sent) == (FailureKind.BLOCKED, False)
        assert scene.models[0].asked == []

    on_stage(play)


def test_counts_do_not_grow_with_the_generations_that_are_over() -> None:
    async def play(scene: Scene) -> None:
        for generation in range(50):
            await scene.send(call(generation, generation=generation))
            await asyncio.sleep(1)
        counts = scene.branch._keys.open_route("j", 0).counts
        assert len(counts) <= 2
        await scene.branch.forget("j")
        assert scene.branch._counts._routes == {}
        assert scene.models[0].closed

    on_stage(play)


# -- how it is told ---------------------------------------------------------------------------------------------------


def test_what_was_not_heard_is_told_again_under_its_number_and_counted_once() -> None:
    async def play(scene: Scene) -> None:
        scene.cortex.deaf = 3
        await scene.send(*(call(goal) for goal in range(5)))
        await asyncio.sleep(AGAIN_S / 2)
        await scene.send(*(call(goal) for goal in range(5, 12)))
        await asyncio.sleep(10 * AGAIN_S)
        entries = [(report.number, sum(s.answered for s in report.routes)) for _, report in scene.cortex.reports]
        assert entries == [(1, 5)] * 4 + [(2, 7)]

    on_stage(play, Model(pause_s=0.01))


@pytest.mark.parametrize(
    ("text", "at_once"), [("ok", False), ("overloaded", False), ("throttled", True), ("blocked", True)]
)
def test_what_others_wait_for_is_told_at_once(text: str, at_once: bool) -> None:
    model = Model(TOLD.__getitem__)

    async def play(scene: Scene) -> None:
        await scene.send(*(call(goal, "ok") for goal in range(FIRST_MAX)))
        await asyncio.sleep(10)
        scene.cortex.reports.clear()
        sent_s = scene.now_s()
        await scene.send(call(100, text), call(101, text), call(102, text))
        await asyncio.sleep(REPORT_S - 0.001)
        times = [at_s - sent_s for at_s, _ in scene.cortex.reports]
        assert times[:1] == ([0.0] if at_once else [])
        assert times[1:] in ([], [pytest.approx(URGENT_S)]), (
            "what ended a round of the loop later follows, but no faster"
        )

    on_stage(play, model)


def test_the_first_of_a_generation_are_told_as_they_end_but_not_faster_than_may_be() -> None:
    """They may be probes, for which the whole cluster waits."""
    answers = {str(place): place * URGENT_S / 4 for place in range(FIRST_MAX + 4)}

    class Staggered(Model):
        async def call(self, body: bytes, **of_call: Any) -> Any:
            await asyncio.sleep(answers[msgspec.json.decode(body)["messages"][0]["content"]])
            return reply("ok")

    async def play(scene: Scene) -> None:
        await scene.send(*(call(int(place), place, generation=7) for place in answers))
        await asyncio.sleep(REPORT_S)
        times = [at_s for at_s, _ in scene.cortex.reports]
        entries = [sum(s.answered for s in report.routes) for _, report in scene.cortex.reports]
        assert entries[0] == 1, "the first is told alone"
        assert all(later - sooner >= URGENT_S - 1e-9 for sooner, later in itertools.pairwise(times))
        assert sum(entries) >= FIRST_MAX
        assert times[-1] < REPORT_S

    on_stage(play, Staggered())


def test_an_idle_branch_says_so_once_and_then_nothing() -> None:
    async def play(scene: Scene) -> None:
        loop = asyncio.get_running_loop()
        await scene.send(call(1))
        await asyncio.sleep(5)
        assert [report.phase for _, report in scene.cortex.reports][-1] == "idle"
        number, jumps = len(scene.cortex.reports), loop.jumps  # type: ignore[attr-defined]
        await asyncio.sleep(600)
        assert (len(scene.cortex.reports), loop.jumps - jumps) == (number, 1)  # type: ignore[attr-defined]

    on_stage(play)


def test_reports_come_as_often_as_they_are_wanted() -> None:
    async def play(scene: Scene) -> None:
        scene.cortex.wanted_s = 2.0
        await scene.send(call(1, timeout_s=1_000))
        await asyncio.sleep(21)
        times = [at_s for at_s, _ in scene.cortex.reports]
        assert times == [REPORT_S + 2 * place for place in range(11)]
        assert [report.number for _, report in scene.cortex.reports] == list(range(1, 12))
        assert {report.phase for _, report in scene.cortex.reports} == {"calling"}

    on_stage(play, Model(pause_s=100))


def test_it_is_starting_while_its_client_is_being_imported() -> None:
    class Preparing(Model):
        async def prepare(self) -> None:
            await asyncio.sleep(5)

    async def play(scene: Scene) -> None:
        assert (await scene.branch.beat("j"))["phase"] == "starting"
        await asyncio.sleep(1)
        assert (await scene.branch.beat("j"))["phase"] == "starting"
        await asyncio.sleep(5)
        assert (await scene.branch.beat("j"))["phase"] == "idle"
        assert (await scene.branch.ping())[:2] == (scene.branch.incarnation, "inline")

    on_stage(play, Preparing())
