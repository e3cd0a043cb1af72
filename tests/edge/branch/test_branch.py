"""A branch keeps each attempt's deadline, lets go of what does not stop, and can be drained."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.branch import branch as branch_module
from actors.branch.branch import DRAINING, GRACE_S, SWEEP_S, Branch
from actors.branch.coalescing import GATHER_S, MANY
from actors.branch.reply_outbox import ANSWER_S, QUICK_S
from actors.routing.model_factory import ConnectionSpec, encode, lend
from cortex.journal import codec
from cortex.state import events
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.virtual_clock import virtually

# -- the ladder of an attempt -----------------------------------------------------------------------------------------


def test_an_attempt_ends_at_its_deadline() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(10 + 2 * SWEEP_S)
        ((_, event),) = scene.channel.heard
        assert (event.failure.kind, event.failure.sent) == (FailureKind.TIMED_OUT, True)
        assert 10 <= event.elapsed_s <= 10 + SWEEP_S
        await asyncio.sleep(60)
        assert len(scene.channel.heard) == 1
        assert all(report.overdue_s <= SWEEP_S for _, report in scene.cortex.reports)

    on_stage(play, Model(pause_s=1e9))


def test_a_client_that_ignores_its_cancellation_holds_up_nobody_and_is_told() -> None:
    """Asked to stop, a grace, let go: the channel has its attempt back, the cortex hears that asking did not help."""

    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(10 + GRACE_S + 3 * SWEEP_S)
        assert scene.channel.kinds() == ["timed_out"]
        assert scene.channel.heard[0][0] >= 10 + GRACE_S
        assert not scene.branch.busy
        await asyncio.sleep(2)
        assert scene.cortex.reports[-1][1].overdue_s > GRACE_S
        assert sum(signals.failed.get("timed_out", 0) for signals in scene.signals()) == 1
        await asyncio.sleep(100)
        assert scene.channel.kinds() == ["timed_out", "answered"], "it was paid for: a late reply is told too"
        assert sum(signals.answered for signals in scene.signals()) == 0, "it was counted before"
        assert scene.cortex.reports[-1][1].overdue_s == 0
        assert scene.cortex.reports[-1][1].done == 1
        await scene.send(call(2))
        await asyncio.sleep(10 + 2 * SWEEP_S)
        (hand,) = scene.branch._task_pool.tasks
        assert len(scene.models[0].asked) == 2, "the hand that was held takes on calls again"
        assert hand.cancelling() == 1, "and is asked to stop for this one alone"

    on_stage(play, Model(pause_s=1e9, stubborn_s=60))


@pytest.mark.parametrize("late", [Failure(FailureKind.TRANSIENT, "broken", 500), Failure(FailureKind.CANCELLED, "")])
def test_a_failure_that_comes_after_all_says_nothing_new(late: Failure) -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(200)
        assert scene.channel.kinds() == ["timed_out"]

    on_stage(play, Model(lambda _: late, pause_s=1e9, stubborn_s=60))


def test_what_nobody_waits_for_is_let_go_too() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1, timeout_s=1_000))
        await asyncio.sleep(1)
        await scene.branch.abandon("j", 1, ((1, 1),))
        await asyncio.sleep(GRACE_S + 3 * SWEEP_S)
        assert scene.channel.kinds() == ["cancelled"]
        assert all(not signals.failed and not signals.answered for signals in scene.signals())

    on_stage(play, Model(pause_s=1e9, stubborn_s=60))


def test_the_time_for_which_a_call_is_queued_counts_for_nothing() -> None:
    """The branch has no key yet: the deadline begins when the request goes out."""

    async def whole() -> None:
        scene = Scene(Model(pause_s=3))
        await scene.send(call(1, timeout_s=5))
        await asyncio.sleep(50)
        assert scene.cortex.reports[-1][1].phase == "queued"
        assert (scene.cortex.reports[-1][1].queued, scene.cortex.reports[-1][1].in_flight) == (1, 0)
        await scene.arm()
        await asyncio.sleep(5)
        assert [(type(e), e.elapsed_s) for _, e in scene.channel.heard] == [(events.Answered, 3.0)]
        assert [s.latency_s for s in scene.signals() if s.answered] == [3.0]
        await scene.branch.close()
        await scene.runtime.close()

    virtually(whole())


def test_the_time_for_which_a_prompt_is_counted_counts_for_nothing() -> None:
    model = Model(pause_s=3)
    model.counting_s = 4

    async def play(scene: Scene) -> None:
        await scene.send(msgspec.structs.replace(call(1, "x" * 500, timeout_s=5), prompt_tokens_max=50))
        await asyncio.sleep(9)
        assert [e.elapsed_s for _, e in scene.channel.heard] == [3.0]

    on_stage(play, model)


class Prepared(Model):
    """Model that takes seconds to get ready; a call waits for that, as the client of an API does."""

    def __init__(self, preparing_s: float, pause_s: float) -> None:
        super().__init__(pause_s=pause_s)
        self.preparing_s = preparing_s
        self.ready = asyncio.Event()

    async def prepare(self) -> None:
        await asyncio.sleep(self.preparing_s)
        self.ready.set()

    async def call(self, body: bytes, **options: Any) -> Any:
        await self.ready.wait()
        return await super().call(body, **options)


def test_the_time_for_which_a_model_is_prepared_counts_for_nothing() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1, timeout_s=5))
        await asyncio.sleep(8)
        assert [e.elapsed_s for _, e in scene.channel.heard] == [3.0]

    on_stage(play, Prepared(4.0, 3.0))


def test_a_preparation_that_hangs_ends_with_the_deadline_of_the_attempt() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1, timeout_s=5))
        await asyncio.sleep(6)
        assert scene.channel.kinds() == [FailureKind.TIMED_OUT]
        assert not scene.channel.heard[0][1].failure.may_be_billed, "nothing was sent"

    on_stage(play, Prepared(1e9, 3.0))


def test_what_has_no_key_yet_and_is_abandoned_is_told_at_once() -> None:
    async def whole() -> None:
        scene = Scene()
        await scene.send(call(1))
        await scene.branch.abandon("j", 1, ((1, 1),))
        await asyncio.sleep(0.1)
        assert [(e.failure.kind, e.failure.sent) for _, e in scene.channel.heard] == [(FailureKind.CANCELLED, False)]
        await scene.arm()
        await asyncio.sleep(0.1)
        assert (scene.models[0].asked, len(scene.channel.heard)) == ([], 1)
        await scene.branch.close()
        await scene.runtime.close()

    virtually(whole())


# -- draining ---------------------------------------------------------------------------------------------------------


def test_a_branch_that_drains_finishes_what_it_has_and_takes_nothing_new() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(1), call(2))
        draining = asyncio.create_task(scene.branch.drain())
        await asyncio.sleep(1)
        assert scene.cortex.reports[-1][1].phase == "draining"
        assert await scene.send(call(3)) == DRAINING
        scene.number = 0
        assert await scene.send(call(1), call(2)) == scene.branch.incarnation, "that message was taken before"
        await asyncio.sleep(3)
        assert not draining.done()
        await asyncio.sleep(1 + SWEEP_S)
        assert draining.done()
        assert sorted(event.goal for _, event in scene.channel.heard) == [1, 2]
        assert len(scene.models[0].asked) == 2
        await asyncio.sleep(5)
        reports = len(scene.cortex.reports)
        assert await scene.send(call(4)) == DRAINING
        await asyncio.sleep(1)
        assert len(scene.cortex.reports) == reports + 1, "the cortex may be another by now, and not know"

    on_stage(play, Model(pause_s=4.9))


def test_a_new_key_serves_what_follows_and_ends_nothing_that_is_under_way() -> None:
    first, second = Model(pause_s=5), Model()

    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(1)
        await scene.branch.set_credential(
            "j",
            encode(ConnectionSpec(endpoint="test", given=lend(second), route_name="r0", pool_name="p0")),  # type: ignore[arg-type]
        )
        await scene.send(call(2))
        await asyncio.sleep(10)
        assert (len(first.asked), len(second.asked), scene.channel.kinds()) == (1, 1, ["answered", "answered"])
        assert not first.closed
        await scene.branch.forget("j")
        assert first.closed
        assert second.closed

    on_stage(play, first, second)


def test_a_doubled_message_of_an_ended_job_is_known_for_what_it_is_and_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(branch_module, "PAST_MAX", 3)

    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(1)
        await scene.branch.forget("j")
        await scene.arm()
        scene.number = 0
        await scene.send(call(1))
        await asyncio.sleep(1)
        assert len(scene.models[0].asked) == 1
        for number in range(20):
            await scene.branch.held(f"j{number}", 1)
            await scene.branch.forget(f"j{number}")
        assert len(scene.branch._past) == 3
        assert len(scene.branch._epochs) <= 3
        assert len(scene.branch._acknowledged) <= 3

    on_stage(play)


def test_a_branch_without_a_key_asks_the_peers_that_it_is_told_of() -> None:
    async def play(scene: Scene) -> None:
        scene.runtime._actors["branch:0"] = scene.branch
        other = Branch("branch:1", scene.runtime, scene._made)
        assert not (await other.beat("j"))["armed"]
        await asyncio.sleep(0.1)
        assert not (await other.beat("j", ("branch:1", "branch:9", "branch:0")))["armed"]
        await asyncio.sleep(0.1)
        assert (await other.beat("j"))["armed"]
        await other.close()

    on_stage(play)


# -- what comes along with an answer ------------------------------------------------------------------------------------


def test_what_becomes_of_quick_calls_comes_with_the_answer_and_is_kept_until_it_is_on_disk() -> None:
    async def play(scene: Scene) -> None:
        assert await scene.ask(call(1)) == (scene.branch.incarnation, ()), "nobody knows yet how quick they are"
        await asyncio.sleep(1)
        _, along = await scene.ask(call(2), call(3))
        assert [event.goal for event in along] == [2, 3]
        assert sorted((await scene.branch.held("j", 1))[2]) == [(2, 1), (3, 1)]
        assert scene.branch.busy
        _, along = await scene.ask(call(4), on_disk=2)
        assert [event.goal for event in along] == [4]
        assert (await scene.branch.held("j", 1))[2] == ((4, 1),)
        await scene.branch.on_disk("j", 1, 3)
        assert not scene.branch.busy
        await asyncio.sleep(2 * ANSWER_S)
        assert [event.goal for _, event in scene.channel.heard] == [1], "the others are not told a second time"

    on_stage(play)


def test_calls_that_take_longer_than_the_last_ones_are_not_waited_for() -> None:
    model = Model()

    async def play(scene: Scene) -> None:
        await scene.ask(call(1))
        await asyncio.sleep(1)
        model.pause_s = 3.0
        began_s = scene.now_s()
        assert await scene.ask(call(2)) == (scene.branch.incarnation, ())
        assert scene.now_s() - began_s <= 2 * QUICK_S
        await asyncio.sleep(4)
        began_s = scene.now_s()
        assert await scene.ask(call(3)) == (scene.branch.incarnation, ())
        assert scene.now_s() == began_s, "the last one was slow"
        await asyncio.sleep(4)
        assert [event.goal for _, event in scene.channel.heard] == [1, 2, 3]

    on_stage(play, model)


@pytest.mark.parametrize("error", [RuntimeError, KeyError])
def test_a_model_that_raises_has_failed_for_once_and_its_key_is_there(error: type[Exception]) -> None:
    def answer(text: str) -> object:
        raise error("its own")

    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        await asyncio.sleep(1)
        ((_, event),) = scene.channel.heard
        assert (event.failure.kind, event.failure.message) == ("transient", f"{error.__name__} in the model's client")

    on_stage(play, Model(answer))


def test_many_quick_calls_are_waited_for_beside_others_that_are_slow() -> None:
    model = Model()

    async def play(scene: Scene) -> None:
        await scene.ask(call(1))
        await asyncio.sleep(1)
        model.pause_s = 3.0
        await scene.ask(call(2))
        assert await scene.ask(call(3)) == (scene.branch.incarnation, ()), "nothing came of the last one in time"
        model.pause_s = 0.0
        await scene.send(call(4))
        await asyncio.sleep(1)
        _, along = await scene.ask(*(call(goal) for goal in range(5, 205)))
        assert sorted(event.goal for event in along) == [*range(5, 205)]
        await asyncio.sleep(4)
        assert sorted(event.goal for _, event in scene.channel.heard) == [1, 2, 3, 4]

    on_stage(play, model)


def test_what_is_ready_of_many_slow_calls_comes_with_an_answer() -> None:
    """By itself it would have waited as long for more to go with it, and then been a message of its own."""
    model = Model(pause_s=2.0)

    async def play(scene: Scene) -> None:
        await scene.send(*(call(goal) for goal in range(1, 4)))
        await asyncio.sleep(1.0)
        model.pause_s = 4.0
        await scene.send(*(call(goal) for goal in range(10, 10 + 2 * MANY)))
        await asyncio.sleep(1.0 + GATHER_S / 2)
        began_s = scene.now_s()
        _, along = await scene.ask(call(500))
        assert sorted(event.goal for event in along) == [1, 2, 3]
        assert scene.now_s() == pytest.approx(began_s + GATHER_S), "for more, since many are under way"
        assert (1, 1) in (await scene.branch.held("j", 1))[2], "it is kept until it is on disk"
        await asyncio.sleep(GATHER_S)
        assert scene.channel.heard == []
        assert await scene.ask(call(501), on_disk=scene.number) == (scene.branch.incarnation, ())
        assert (1, 1) not in (await scene.branch.held("j", 1))[2]
        await asyncio.sleep(10)
        assert sorted(event.goal for _, event in scene.channel.heard) == [*range(10, 10 + 2 * MANY), 500, 501]

    on_stage(play, model)


@pytest.mark.parametrize("how", ["the message comes again", "another incarnation of the channel", "a long silence"])
def test_where_the_answer_may_have_been_lost_what_went_with_it_is_told_by_itself(how: str) -> None:
    async def play(scene: Scene) -> None:
        await scene.ask(call(1))
        await asyncio.sleep(1)
        await scene.ask(call(2))
        if how == "the message comes again":
            scene.number -= 1
            assert await scene.ask(call(2)) == (scene.branch.incarnation, ())
        elif how == "another incarnation of the channel":
            assert (await scene.branch.held("j", 2))[2] == ((2, 1),)
        else:
            await asyncio.sleep(ANSWER_S)
        await asyncio.sleep(1)
        assert [event.goal for _, event in scene.channel.heard] == [1, 2]
        assert len(scene.models[0].asked) == 2
        assert not scene.branch.busy

    on_stage(play)


def test_another_incarnation_of_the_channel_is_told_what_the_first_still_waits_for() -> None:
    model = Model()

    async def play(scene: Scene) -> None:
        await scene.ask(call(1))
        await asyncio.sleep(1)
        model.pause_s = QUICK_S / 2
        first = asyncio.create_task(scene.ask(call(2)))
        await asyncio.sleep(QUICK_S / 4)
        assert (await scene.branch.held("j", 2))[2] == ((2, 1),)
        assert await first == (scene.branch.incarnation, ())
        await asyncio.sleep(1)
        assert [event.goal for _, event in scene.channel.heard] == [1, 2]

    on_stage(play, model)


@pytest.mark.parametrize(("neighbour", "long"), [("large", 0), ("large", 300), ("j", 0), ("j", 40)])
def test_replies_of_quick_calls_do_not_wait_for_long_ones(neighbour: str, long: int) -> None:
    """Twenty rounds of twenty calls of 30 ms, beside calls that take long, of a job of their own or of the same one."""

    class Two(Model):
        async def call(self, body: bytes, **asked: Any) -> Any:
            self.pause_s = 5.0 if b"slow" in body else 0.03
            return await super().call(body, **asked)

    async def play(scene: Scene) -> None:
        await scene.branch.set_credential(neighbour, scene.branch._keys.connection("j") or b"")
        if long:
            blob = msgspec.msgpack.encode([call(9_000 + n, "slow", timeout_s=1_000.0) for n in range(long)])
            await scene.branch.work(neighbour, 1, scene.branch.incarnation, 1, blob)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for number in range(2, 22):
            goals = range(100 * number, 100 * number + 20)
            blob = msgspec.msgpack.encode([call(goal, "quick") for goal in goals])
            received = len(scene.channel.heard)
            answer = await scene.branch.work("j", 1, scene.branch.incarnation, number, blob, (), number - 1, True)
            came = 0 if isinstance(answer, str) else len(codec.decode_batch(answer[1]))
            while came + len(scene.channel.heard) - received < 20:  # noqa: ASYNC110 - virtual time, and no event is told
                await asyncio.sleep(0.0005)
        assert loop.time() - began_s < 20 * 0.033

    on_stage(play, Two())


def test_calls_that_wait_for_a_key_are_let_go_with_their_job() -> None:
    async def play(scene: Scene) -> None:
        branch = scene.branch
        await branch.work("k", 1, branch.incarnation, 1, msgspec.msgpack.encode([call(1), call(2)]))
        assert branch.busy
        await branch.forget("k")
        assert not branch.busy
        async with asyncio.timeout(1):
            await branch.drain()

    on_stage(play)
