"""Where calls take long, replies wait for each other in proportion, and no message's answer waits with them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.branch.coalescing import FEW, GATHER_LONG_S, GATHER_S, worth_s
from actors.branch.reply_outbox import ReplyOutbox
from actors.runtime.inline import _InlinePeer
from cortex.state import events
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.virtual_clock import virtually

CALLS = 100


@pytest.mark.parametrize(
    ("took_s", "near_s", "far_s"),
    [(0.0, 0.0, 0.0), (0.02, 0.005, 0.005), (0.04, GATHER_S, GATHER_S), (0.5, GATHER_S, GATHER_S), (1.0, GATHER_S, 0.02),
     (5.0, GATHER_S, 0.1), (12.5, GATHER_S, GATHER_LONG_S), (600.0, GATHER_S, GATHER_LONG_S)],
)  # fmt: skip
def test_how_long_it_is_worth_waiting(took_s: float, near_s: float, far_s: float) -> None:
    assert worth_s(took_s, near=True) == pytest.approx(near_s)
    assert worth_s(took_s, near=False) == pytest.approx(far_s)


class Spread(Model):
    """Answers in order, so many seconds after the first: the text says how many."""

    async def call(self, body: bytes, **asked: Any) -> Any:
        self.pause_s = float(body.split(b'"content":"')[1].split(b'"')[0])
        return await super().call(body, **asked)


def _far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel is in another process."""
    monkeypatch.setattr(_InlinePeer, "near", False)


async def _settled(scene: Scene) -> None:
    """By now the branch knows how long calls take."""
    await scene.send(*(call(goal, "5") for goal in range(1, CALLS)))
    await asyncio.sleep(6)
    scene.channel.heard.clear()


def test_replies_of_slow_calls_wait_for_others_for_a_fiftieth_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _far(monkeypatch)

    async def play(scene: Scene) -> None:
        await _settled(scene)
        ends_s: dict[int, float] = {}
        for goal in range(1_000, 1_000 + 2 * CALLS):  # one each 50 ms: a hundred are under way
            await scene.send(call(goal, "5"))
            ends_s[goal] = scene.now_s() + 5
            await asyncio.sleep(5 / CALLS)
        await asyncio.sleep(6)
        waited = {event.goal: heard_s - ends_s[event.goal] for heard_s, event in scene.channel.heard}
        assert waited.keys() == ends_s.keys()
        last = list(ends_s)[-FEW:]
        assert max(waited.values()) == pytest.approx(0.1, abs=0.001)
        assert len({heard_s for heard_s, event in scene.channel.heard if event.goal not in last}) <= CALLS - FEW / 2 + 1
        assert max(waited[goal] for goal in last[3:]) == pytest.approx(0), "few are left: who would follow?"

    on_stage(play, Spread())


@pytest.mark.parametrize("far", [False, True])
def test_a_message_is_answered_at_once_while_replies_wait_for_long(monkeypatch: pytest.MonkeyPatch, far: bool) -> None:
    if far:
        _far(monkeypatch)

    async def play(scene: Scene) -> None:
        await _settled(scene)
        await scene.send(*(call(1_000 + n, "1" if n == 0 else "5") for n in range(80)))
        scene.branch._outboxes["j"].took_s = 5.0
        await asyncio.sleep(1 + GATHER_S / 2)
        began_s = scene.now_s()
        _, along = await scene.ask(call(5_000, "5"))
        if far:
            assert scene.now_s() == began_s
            assert along == ()
        else:
            assert began_s < scene.now_s() <= began_s + GATHER_S
            assert [event.goal for event in along] == [1_000]

    on_stage(play, Spread())


def test_calls_are_taken_to_be_as_quick_as_the_quickest_of_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in ten is quick: replies wait as it suits such a one."""
    _far(monkeypatch)

    async def play(scene: Scene) -> None:
        await scene.send(*(call(goal, "0.2" if goal % 10 == 0 else "5") for goal in range(1, CALLS)))
        await asyncio.sleep(6)
        slow_s = scene.branch._outboxes["j"].took_s
        await scene.send(call(5_000, "0.2"))
        await asyncio.sleep(1)
        quick_s = scene.branch._outboxes["j"].took_s
        assert quick_s == pytest.approx(0.2)
        await scene.send(call(5_001, "5"))
        await asyncio.sleep(6)
        assert scene.branch._outboxes["j"].took_s == pytest.approx(0.2 + 4.8 / 16)
        assert 0.5 < slow_s < 5.0

    on_stage(play, Spread())


@pytest.mark.parametrize(
    ("took_s", "near", "under_way", "waits_s"),
    [(0.2, False, 64, 0.0), (0.2, False, 65, 0.01), (0.25, False, 32, 0.0), (0.25, False, 33, 0.01), (5.0, False, 33, 0.1),
     (5.0, True, 64, 0.0), (5.0, True, 65, 0.01)],
)  # fmt: skip
def test_how_many_must_be_under_way(took_s: float, near: bool, under_way: int, waits_s: float) -> None:
    async def play() -> None:
        heard_s: list[float] = []

        class Channel:
            name = "channel:j"

            async def ask(self, method: str, *args: Any) -> None:
                heard_s.append(asyncio.get_running_loop().time())

            def tell(self, method: str, *args: Any) -> None:
                raise AssertionError("a courier asks")

        channel = Channel()
        channel.near = near  # type: ignore[attr-defined]
        courier = ReplyOutbox("branch:1", "1", channel, lambda: under_way - 1, worth_s)
        courier.took_s = took_s
        began_s = asyncio.get_running_loop().time()
        courier.add(events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "cut"), took_s))
        await asyncio.sleep(1)
        assert [each_s - began_s for each_s in heard_s] == pytest.approx([waits_s], abs=1e-4)
        await courier.close()

    virtually(play())


@pytest.mark.parametrize("calls", [40, 100])
def test_when_all_are_there_nobody_waits(monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    _far(monkeypatch)

    async def play(scene: Scene) -> None:
        await _settled(scene)
        began_s = scene.now_s()
        await scene.send(*(call(1_000 + n, str(5 + n / 1e4)) for n in range(calls)))
        await asyncio.sleep(8)
        assert len(scene.channel.heard) == calls
        assert max(heard_s for heard_s, _ in scene.channel.heard) == pytest.approx(
            began_s + 5 + (calls - 1) / 1e4, abs=1e-3
        )

    on_stage(play, Spread())


def test_a_quick_reply_does_not_wait_as_it_suits_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, beside many that take a minute each."""
    _far(monkeypatch)

    async def play(scene: Scene) -> None:
        slow = [call(goal, str(0.5 + goal * 0.06), timeout_s=100) for goal in range(1, 1_000)]  # one each 60 ms
        await scene.send(*slow)
        await asyncio.sleep(40)
        for step in range(20):
            began_s = scene.now_s()
            await scene.send(call(5_000 + step, "1"))
            while all(event.goal != 5_000 + step for _, event in scene.channel.heard[-80:]):  # noqa: ASYNC110 - virtual
                await asyncio.sleep(0.001)
            assert scene.now_s() - began_s < 1.03
        await asyncio.sleep(30)

    on_stage(play, Spread())
