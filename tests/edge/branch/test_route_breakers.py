"""A breaker of pybreaker stands before each send: what the scheduler decided is what a branch does, and no more."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pybreaker
import pytest

from actors.branch import batch_executor
from actors.branch.route_breakers import KNOWN_S, CircuitBreakerError, RouteBreaker, RouteBreakers
from actors.messaging.report_sender import REPORT_S
from cortex.scheduler.reports import BreakerStanding, ReportAnswer
from cortex.state import events
from policies.failures.breaker import BreakerState
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.virtual_clock import virtually

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Table:
    """Breakers of a branch and a clock that is set by hand."""

    def __init__(self) -> None:
        self.at_s = 100.0
        self.breakers = RouteBreakers("branch:0", lambda: self.at_s)
        self.own = self.breakers.of("r")

    def told(self, state: BreakerState | None, generation: int = 1, for_s: float = 5.0, cortex: str = "c1") -> None:
        """Take an answer about the route; CLOSED: no breaker is open; None: the scheduler does not know yet."""
        some = () if state is CLOSED else (BreakerStanding("r", state or OPEN, generation, for_s),)
        self.breakers.heard(ReportAnswer(0.25, cortex, None if state is None else some))

    def passes(self, generation: int | None) -> bool:
        """Return whether a call of this generation is sent, as a branch asks."""
        try:
            if self.own.shut:
                self.own.admit(generation)
        except CircuitBreakerError:
            return False
        return True


def test_the_words_are_pybreakers() -> None:
    assert set(BreakerState) == {pybreaker.STATE_CLOSED, pybreaker.STATE_OPEN, pybreaker.STATE_HALF_OPEN}


PASSES = {
    # (what the scheduler said, generation of the call): whether it is sent
    ("closed", 0): True,
    ("closed", 3): True,
    ("closed", None): True,
    ("open", 0): False,
    ("open", 3): False,  # nothing is granted in the generation of an opening
    ("open", 4): True,  # granted after the answer that told of the opening
    ("open", None): False,
    ("half-open", 0): False,  # granted before the opening
    ("half-open", 2): False,
    ("half-open", 3): True,  # a probe
    ("half-open", 4): True,
    ("half-open", None): True,  # a message batch is one request
}


@pytest.mark.parametrize("said", PASSES)
def test_a_call_is_sent_by_the_generation_in_which_it_was_granted(said: tuple[str, int | None]) -> None:
    table = Table()
    table.told(BreakerState(said[0]), generation=3)
    assert table.passes(said[1]) is PASSES[said]
    assert table.own.state == ("half-open" if said == ("open", 4) else said[0])


def test_a_grant_that_came_first_tells_of_the_move_and_an_older_answer_takes_nothing_back() -> None:
    table = Table()
    table.told(OPEN, 1)
    assert table.passes(2)
    table.told(OPEN, 1)
    assert (table.own.state, table.own.generation) == ("half-open", 2)
    assert table.passes(2) and not table.passes(1)
    table.told(OPEN, 3)
    assert (table.own.state, table.passes(2)) == ("open", False)
    table.told(CLOSED)
    assert table.passes(0)


def test_no_word_of_the_scheduler_holds_longer_than_a_lease() -> None:
    table = Table()
    table.told(OPEN, 1, for_s=900.0)
    table.at_s += KNOWN_S - 0.1
    assert not table.passes(0)
    assert table.own.again_s() == pytest.approx(900.0 - KNOWN_S + 0.1)
    table.at_s += 0.1
    assert table.passes(0)
    assert (table.own.state, table.own.shut) == ("closed", False)
    table.told(OPEN, 1)
    assert not table.passes(0), "it is heard again"


def test_a_restarted_scheduler_counts_once_it_knows() -> None:
    table = Table()
    table.told(OPEN, 5)
    table.told(None, cortex="c2")
    assert not table.passes(0), "its channels have not told it yet"
    table.at_s += KNOWN_S
    assert table.passes(0), "what it does not know renews nothing"
    table.told(OPEN, 5)
    table.told(HALF_OPEN, 2, cortex="c2")
    assert (table.own.generation, table.own.state) == (2, "half-open"), "it counts generations of its own"
    table.told(CLOSED, cortex="c3")
    assert table.passes(0)


def test_a_route_that_comes_later_begins_with_what_was_said() -> None:
    table = Table()
    table.breakers.heard(ReportAnswer(0.25, "c1", (BreakerStanding("late", OPEN, 1, 5.0),)))
    assert table.breakers.of("late").state == "open"
    assert table.own.state == "closed"
    table.breakers.keep({"r"})
    table.at_s += KNOWN_S
    assert table.breakers.of("late").state == "closed", "and with nothing that was said long ago"
    assert table.breakers.of("r") is table.own


def test_pybreaker_moves_nothing_by_itself() -> None:
    """Neither failures nor successes nor its own clock: the storage has no other hand than the scheduler's."""
    table = Table()
    own = table.own.breaker
    for _ in range(50):
        with pytest.raises(ZeroDivisionError):
            own.call(lambda: 1 / 0)
    assert own.current_state == "closed"
    table.told(HALF_OPEN, 2)
    own.call(lambda: None)
    assert own.current_state == "half-open"
    table.told(OPEN, 3)
    for move in (own.close, own.half_open):
        move()
        assert table.own.state == "open"
    with pytest.raises(CircuitBreakerError):
        own.call(lambda: None)
    assert (own.fail_counter, own.success_counter) == (0, 0)


def test_its_listener_logs_each_move_once(caplog: pytest.LogCaptureFixture) -> None:
    table = Table()
    with caplog.at_level(logging.INFO, "cortex.branch"):
        for state, generation in ((OPEN, 1), (OPEN, 1), (HALF_OPEN, 2), (CLOSED, 3), (CLOSED, 3)):
            table.told(state, generation)
    told = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(each["was"], each["now"]) for each in told] == [
        ("closed", "open"), ("open", "half-open"), ("half-open", "closed"),
    ]  # fmt: skip
    assert {(each["subject"], each["branch"], each["event"]) for each in told} == {
        ("route:r", "branch:0", "breaker.heard")
    }


# -- a branch ------------------------------------------------------------------------------------------------------


async def opened(scene: Scene, generation: int = 1, state: BreakerState = OPEN) -> None:
    """Let the breaker of the first route move, and the branch hear of it: a call under way keeps it reporting."""
    await scene.send(call(99, "busy", timeout_s=1_000))
    scene.cortex.breakers = (BreakerStanding("r0", state, generation, 5.0),)
    await asyncio.sleep(2 * REPORT_S)


def busy() -> Model:
    """Return a model that works on the call of ``opened`` for long, and answers others at once."""
    model = Model()
    ask = model.call

    async def slowly(body: bytes, **more: Any) -> Any:
        if b"busy" in body:
            await asyncio.sleep(100.0)
        return await ask(body, **more)

    model.call = slowly  # type: ignore[method-assign]
    return model


def given_back(scene: Scene) -> list[int]:
    """Return the goals whose calls came back unsent."""
    return [event.goal for _, event in scene.channel.heard if isinstance(event, events.GivenBack)]


@pytest.mark.parametrize("stands", [True, False])
def test_a_call_that_reaches_an_open_breaker_comes_back_unsent(stands: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the breaker the same call is sent: it is what stands between."""
    if not stands:
        monkeypatch.setattr(pybreaker.CircuitBreaker, "call", lambda self, function, *args: None)

    async def play(scene: Scene) -> None:
        await opened(scene)
        await scene.send(call(1), call(2))
        await asyncio.sleep(1.0)
        assert scene.models[0].asked == (["hi", "hi"] if not stands else [])
        assert given_back(scene) == ([1, 2] if stands else [])
        if stands:
            back = [event for _, event in scene.channel.heard]
            assert back[0] == events.GivenBack(1, "0", 1, 1, back[0].again_s, "branch:0")
            assert 4.0 < back[0].again_s <= 5.0
            assert sum(signals.given_back for signals in scene.signals()) == 2
            assert sum(signals.begun for signals in scene.signals()) == 1, "the one under way, which goes on"
            assert not any(signals.failed for signals in scene.signals())

    on_stage(play, busy())


def test_a_branch_hears_within_the_time_of_a_report() -> None:
    async def play(scene: Scene) -> None:
        await scene.send(call(99, "busy", timeout_s=1_000))
        await asyncio.sleep(1.0)
        scene.cortex.breakers = (BreakerStanding("r0", OPEN, 1, 5.0),)
        await asyncio.sleep(REPORT_S + 0.01)
        await scene.send(call(1))
        await asyncio.sleep(0.1)
        assert given_back(scene) == [1]
        scene.cortex.breakers = ()
        await asyncio.sleep(REPORT_S + 0.01)
        await scene.send(call(2))
        await asyncio.sleep(0.1)
        assert scene.channel.kinds() == ["given back", "answered"]

    on_stage(play, busy())


def test_half_open_the_one_probe_goes_through_and_no_call_of_before() -> None:
    async def play(scene: Scene) -> None:
        await opened(scene, 2, HALF_OPEN)
        old = [call(goal, f"old {goal}") for goal in range(1, 50)]
        await scene.send(*old[:25], call(50, "probe", generation=2), *old[25:])
        await asyncio.sleep(1.0)
        assert scene.models[0].asked == ["probe"]
        assert sorted(given_back(scene)) == list(range(1, 50))

    on_stage(play, busy())


def test_another_route_goes_on() -> None:
    async def play(scene: Scene) -> None:
        await opened(scene)
        await scene.send(call(1), call(2, route=1))
        await asyncio.sleep(1.0)
        assert (given_back(scene), scene.models[1].asked) == ([1], ["hi"])

    on_stage(play, busy(), Model())


def test_what_waits_in_the_branch_while_the_breaker_opens_comes_back() -> None:
    """A prompt that is being counted, and a call whose credential is still to come."""
    model = busy()
    model.counting_s = 3.0

    async def play(scene: Scene) -> None:
        await scene.send(msgspec.structs.replace(call(1, "x" * 500), prompt_tokens_max=50))
        await opened(scene)
        await asyncio.sleep(3.0)
        assert (given_back(scene), model.asked) == ([1], [])

    on_stage(play, model)

    async def whole() -> None:
        scene = Scene(Model())
        scene.cortex.breakers = (BreakerStanding("r0", OPEN, 1, 5.0),)
        await scene.send(call(1))
        await asyncio.sleep(1.0)
        await scene.arm()
        await asyncio.sleep(1.0)
        assert (given_back(scene), scene.models[0].asked) == ([1], [])
        await scene.branch.close()
        await scene.runtime.close()

    virtually(whole())


def test_an_answer_under_way_is_not_cut_off() -> None:
    model = Model(pause_s=3.0)

    async def play(scene: Scene) -> None:
        await scene.send(call(1))
        scene.cortex.breakers = (BreakerStanding("r0", OPEN, 1, 5.0),)
        await asyncio.sleep(4.0)
        assert scene.channel.kinds() == ["answered"]

    on_stage(play, model)


def test_without_a_scheduler_a_branch_neither_refuses_for_ever_nor_forgets_at_once() -> None:
    async def play(scene: Scene) -> None:
        await opened(scene)
        scene.cortex.deaf = 1_000
        await asyncio.sleep(KNOWN_S - 1.0)
        await scene.send(call(1))
        await asyncio.sleep(2.0)
        assert given_back(scene) == [1]
        await scene.send(call(2))
        await asyncio.sleep(1.0)
        assert scene.channel.kinds() == ["given back", "answered"]

    on_stage(play, busy())


def test_an_answer_of_a_message_may_bring_what_was_given_back() -> None:
    async def play(scene: Scene) -> None:
        await scene.ask(call(3))  # calls are quick: answers wait for them
        await opened(scene)
        _, brought = await scene.ask(call(1), call(2))
        assert [type(event) for event in brought] == [events.GivenBack, events.GivenBack]

    on_stage(play, busy())


class Batches:
    """Message batches of a provider, which counts submissions."""

    def __init__(self) -> None:
        self.submitted = 0

    async def submit(self, rows: Any, timeout_s: float) -> str:
        self.submitted += 1
        return "batch_1"


def test_a_message_batch_is_not_submitted_through_an_open_breaker() -> None:
    model, batches = busy(), Batches()
    model.batches = batches  # type: ignore[attr-defined]

    async def play(scene: Scene) -> None:
        async def submit() -> batch_executor.OrderReply:
            order = batch_executor.encode(batch_executor.SubmitOrder((), scene.runtime.steady_s() + 60.0, scene.branch.incarnation))
            return batch_executor.decode_reply(await scene.branch.batches("j", 1, 0, order))

        await opened(scene)
        reply = await submit()
        assert (reply.failure, reply.name, batches.submitted) == (None, "", 0)
        assert 4.0 < reply.given_back_s <= 5.0
        scene.cortex.breakers = (BreakerStanding("r0", HALF_OPEN, 2, 0.0),)
        await asyncio.sleep(2 * REPORT_S)
        assert ((await submit()).name, batches.submitted) == ("batch_1", 1)

    on_stage(play, model)


def test_a_branch_with_batches_alone_hears_that_the_breaker_is_closed() -> None:
    """Orders are not reported; a submission that comes back makes the branch ask."""
    model, batches = Model(), Batches()
    model.batches = batches  # type: ignore[attr-defined]

    async def play(scene: Scene) -> None:
        order = batch_executor.encode(batch_executor.SubmitOrder((), scene.runtime.steady_s() + 60.0, scene.branch.incarnation))
        scene.cortex.breakers = (BreakerStanding("r0", OPEN, 1, 1.0),)
        await scene.send(call(1))
        await asyncio.sleep(1.0)
        scene.cortex.breakers = ()
        assert batch_executor.decode_reply(await scene.branch.batches("j", 1, 0, order)).given_back_s > 0
        await asyncio.sleep(1.0)
        assert batch_executor.decode_reply(await scene.branch.batches("j", 1, 0, order)).name == "batch_1"

    on_stage(play, model)


def test_the_path_of_a_call_reads_one_attribute_while_the_breaker_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any) -> None:
        raise AssertionError("asked while closed")

    monkeypatch.setattr(RouteBreaker, "admit", never)

    async def play(scene: Scene) -> None:
        await scene.send(*[call(goal) for goal in range(5)])
        await asyncio.sleep(1.0)
        assert scene.channel.kinds() == ["answered"] * 5

    on_stage(play, Model())
