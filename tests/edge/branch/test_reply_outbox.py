"""What a courier takes along, and when it goes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.branch.coalescing import GATHERED, MANY
from actors.branch.reply_outbox import ReplyOutbox
from cortex.state import events
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.virtual_clock import in_virtual_time, virtually


class Channel:
    """Takes whatever comes."""

    name = "channel:j"

    def __init__(self) -> None:
        self.messages: list[int] = []

    async def ask(self, method: str, *args: Any) -> None:
        self.messages.append(len(msgspec.msgpack.decode(args[2])))

    def tell(self, method: str, *args: Any) -> None:
        raise AssertionError("a courier asks")


def _event(goal: int) -> events.AttemptFailed:
    return events.AttemptFailed(goal, "0", 1, Failure(FailureKind.TRANSIENT, "cut"))


@in_virtual_time
async def test_what_is_ready_in_the_same_round_goes_together() -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000)
    courier.add(_event(1))
    asyncio.get_running_loop().call_soon(courier.add, _event(2))
    courier.add(_event(3))
    await _rounds(4)
    assert channel.messages == [3]


@pytest.mark.parametrize(("more", "rounds"), [(False, 1), (True, 2)])
@in_virtual_time
async def test_where_nothing_more_is_under_way_it_goes_a_round_earlier(more: bool, rounds: int) -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: int(more))
    courier.add(_event(1))
    courier.add(_event(2))
    for passed in range(1, rounds + 1):
        assert channel.messages == []
        await asyncio.sleep(0)
        assert passed < rounds or channel.messages == [2]


@in_virtual_time
async def test_where_many_are_under_way_the_first_wait_a_moment_for_more() -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: 0.02)
    courier.add(_event(1))
    await _rounds(4)
    assert channel.messages == [], "it waits"
    courier.add(_event(2))
    async with asyncio.timeout(5):
        while not channel.messages:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
    assert channel.messages == [2]


@in_virtual_time
async def test_a_message_that_is_large_enough_waits_for_nothing() -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: 3600.0)
    for goal in range(GATHERED):
        courier.add(_event(goal + 1))
    await _rounds(4)
    assert channel.messages == [GATHERED]


@pytest.mark.parametrize(
    ("before", "after", "told", "waits"),
    [
        (0, 0, 0, True),
        (3, 0, 3, True),
        (3, GATHERED - 4, GATHERED - 1, True),
        (3, GATHERED - 3, GATHERED, False),
        (GATHERED, 0, GATHERED, False),
    ],
)
@in_virtual_time
async def test_an_answer_takes_along_what_is_ready_and_waits_a_moment_for_more(
    before: int, after: int, told: int, waits: bool
) -> None:
    channel, moment_s = Channel(), 0.02
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: moment_s)
    loop = asyncio.get_running_loop()
    for goal in range(before):
        courier.add(_event(goal + 1))
    began_s = loop.time()
    answer = loop.create_task(courier.gathered(1, 1))
    await asyncio.sleep(0)
    assert not waits or await courier.gathered(1, 2) == b"", "one waits for them already"
    for goal in range(after):
        courier.add(_event(before + goal + 1))
    blob = await answer
    assert len(msgspec.msgpack.decode(blob) if blob else ()) == told
    assert (loop.time() - began_s >= moment_s) is waits
    assert len(courier.keys()) == told, "kept until it is known to be on disk"
    await asyncio.sleep(2 * moment_s)
    assert channel.messages == [], "nothing of it is a message of its own"
    await courier.close()


@in_virtual_time
async def test_what_is_ready_goes_with_an_answer_at_once_where_few_are_under_way() -> None:
    courier = ReplyOutbox("branch:1", "1", Channel(), lambda: 1_000, lambda took_s, near: 0.0)
    assert await courier.gathered(1, 1) == b""
    courier.add(_event(1))
    assert len(msgspec.msgpack.decode(await courier.gathered(1, 2))) == 1


@in_virtual_time
async def test_what_becomes_ready_after_an_answer_goes_by_itself() -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: 0.01)
    assert await courier.gathered(1, 1) == b""
    courier.add(_event(1))
    async with asyncio.timeout(5):
        while not channel.messages:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
    assert channel.messages == [1]


async def _until_sent(channel: Channel) -> float:
    """Seconds until the next message of the courier's own."""
    loop, before = asyncio.get_running_loop(), len(channel.messages)
    began_s = loop.time()
    async with asyncio.timeout(5):
        while len(channel.messages) == before:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    return loop.time() - began_s


def test_what_is_ready_waits_a_moment_for_others_where_many_are_under_way() -> None:
    """In virtual time, looked at every millisecond."""

    async def waits(under_way: int, moment_s: float) -> None:
        channel = Channel()
        courier = ReplyOutbox("branch:1", "1", channel, lambda: under_way, lambda took_s, near: 0.05)
        for _ in range(2):
            courier.add(_event(1))
            assert await _until_sent(channel) == pytest.approx(moment_s, abs=0.002)
        await courier.close()

    virtually(waits(MANY, 0.05))
    virtually(waits(MANY - 1, 0.0))


@in_virtual_time
async def test_so_many_as_go_together_wait_for_nothing() -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: 3600.0)
    for goal in range(GATHERED - 1):
        courier.add(_event(goal))
    await _rounds(4)
    assert channel.messages == []
    courier.add(_event(GATHERED))
    await _rounds(4)
    assert channel.messages == [GATHERED]
    await courier.close()


@in_virtual_time
async def test_as_many_as_fit_wait_for_nothing() -> None:
    channel, moment_s = Channel(), 0.0
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: moment_s)
    large = events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "x" * 50_000))
    for _ in range(2):
        courier.add(large)
        await _until_sent(channel)
        moment_s = 3600.0  # from now on it knows how large they are
    await courier.close()


@in_virtual_time
async def test_what_becomes_ready_while_others_travel_waits_for_more_like_they_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel, moment_s = Channel(), 0.02
    take, arrived = channel.ask, asyncio.Event()

    async def slow(method: str, *args: Any) -> None:
        await take(method, *args)
        await arrived.wait()

    monkeypatch.setattr(channel, "ask", slow)
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: moment_s)
    for goal in (1, 2):  # as many as may be under way
        courier.add(_event(goal))
        await _until_sent(channel)
    courier.add(_event(3))
    await asyncio.sleep(2 * moment_s)
    arrived.set()
    await _rounds(4)
    assert channel.messages == [1, 1], "it waits as long as they did, now that it may go"
    await _until_sent(channel)
    assert channel.messages == [1, 1, 1]
    await courier.close()


@in_virtual_time
async def test_no_answer_waits_for_more_than_fits() -> None:
    """Large replies: a second one would go with another message all the same, so it must not hold up the first."""
    moment_s = 0.0
    courier = ReplyOutbox("branch:1", "1", Channel(), lambda: 1_000, lambda took_s, near: moment_s)
    large = events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "x" * 50_000))
    for _ in range(3):
        courier.add(large)
    assert len(msgspec.msgpack.decode(await courier.gathered(1, 1))) == 1, "now it knows how large they are"
    moment_s = 3600.0
    async with asyncio.timeout(5):
        assert len(msgspec.msgpack.decode(await courier.gathered(1, 2))) == 1, "at once"
    await courier.close()


@in_virtual_time
async def test_a_short_wait_after_a_long_one_is_short() -> None:
    courier = ReplyOutbox("branch:1", "1", Channel(), lambda: 1_000, lambda took_s, near: 3600.0)
    long = asyncio.get_running_loop().create_task(courier.gathered(1, 1))
    for goal in range(GATHERED):
        await asyncio.sleep(0)
        courier.add(_event(goal + 1))
    assert await long
    async with asyncio.timeout(5):
        assert await courier.answer(1, 2, 1) == b""
    await courier.close()


@pytest.mark.parametrize("how", ["another message waits", "nobody knows what was heard"])
@in_virtual_time
async def test_one_who_will_hear_no_answer_takes_nothing_along(how: str) -> None:
    channel = Channel()
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 1_000, lambda took_s, near: 3600.0)
    first = asyncio.get_running_loop().create_task(courier.gathered(1, 1))
    await asyncio.sleep(0)
    if how == "another message waits":
        second = asyncio.get_running_loop().create_task(courier.answer(2, 1, 1))
        await asyncio.sleep(0)
        courier.add(_event(1))
        assert len(msgspec.msgpack.decode(await second)) == 1
    else:
        for goal in range(GATHERED):
            courier.add(_event(goal + 1))
        courier.again()  # in the very round in which there were enough
    async with asyncio.timeout(5):
        assert await first == b""
    await courier.close()


@in_virtual_time
async def test_nothing_sets_out_for_a_channel_that_is_gone() -> None:
    courier = ReplyOutbox("branch:1", "1", Channel(), lambda: 1_000, lambda took_s, near: 3600.0)
    waiting = asyncio.get_running_loop().create_task(courier.gathered(1, 1))
    await asyncio.sleep(0)
    courier.add(_event(1))
    await courier.close()
    await waiting
    assert not courier._tasks


@in_virtual_time
async def test_a_message_that_nobody_answers_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the channel had been killed, and the call to it never came to an end."""
    monkeypatch.setattr("actors.branch.reply_outbox.ANSWER_S", 0.01)
    channel = Channel()
    answer = channel.ask
    asked: list[str] = []

    async def silent_once(method: str, *args: Any) -> Any:
        asked.append(method)
        return await (asyncio.Future() if len(asked) == 1 else answer(method, *args))

    monkeypatch.setattr(channel, "ask", silent_once)
    courier = ReplyOutbox("branch:1", "1", channel, lambda: 0)
    courier.add(_event(1))
    for _ in range(500):
        await asyncio.sleep(0.01)
        if not courier.keys():
            break
    assert (len(asked), channel.messages) == (2, [1])


async def _rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
