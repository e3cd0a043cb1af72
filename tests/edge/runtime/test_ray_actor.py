"""An actor's process: it comes back by itself, and ends itself when nobody needs it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.cluster.sockets.serialization import cause_of, post, sealed
from actors.journal.journal import StateFolder, StoreError
from actors.ports.runtime import ChannelNotStarted, PeerGone, PeerUnavailable
from actors.runtime import ray_actor
from actors.runtime.ray_actor import ActorHost, methods, process_class
from cortex import __version__
from tests.support.patience import PATIENCE_S


class FakeActor:
    """What any role's actor shows to its seat. ``trouble`` is raised by the next starts."""

    trouble: list[Exception] = []  # noqa: RUF012 - shared by all that a seat makes
    made: list[FakeActor] = []  # noqa: RUF012
    epoch = 0
    """Newest epoch of the job's journal."""

    def __init__(self) -> None:
        self.over = self.busy = False
        self.began: list[bool] = []
        self.started: list[tuple[Any, ...]] = []
        self.closed = self.drained = False
        self.stopped: tuple[str, str] | None = None
        self.made.append(self)

    async def begin(self, again: bool) -> None:
        self.began.append(again)

    async def start(self, *args: Any) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        self.started.append(args)

    def newest_epoch(self) -> int:
        return FakeActor.epoch

    async def drain(self) -> None:
        self.drained = True
        while self.busy:  # noqa: ASYNC110 - a fake has no event
            await asyncio.sleep(0)

    async def stop(self, how: str, who: str) -> None:
        self.stopped = (how, who)

    async def status(self) -> bytes:
        return b"fine"

    async def close(self) -> None:
        self.closed = True


class World:
    """A runtime with a cortex that answers or not."""

    cluster = "local"

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.cortex_lives = True
        self.away: Exception = PeerGone("cortex")
        self.headers = b""
        self.clock: Callable[[], float] = asyncio.get_running_loop().time

    def monotonic_s(self) -> float:
        return self.clock()

    def node(self) -> str:
        return "n1"

    def peer(self, name: str) -> Any:
        return self

    async def names(self, prefix: str) -> tuple[str, ...]:
        return (f"{prefix}j",)

    async def ask(self, method: str, *args: Any) -> bytes:
        if not self.cortex_lives:
            raise self.away
        return self.headers if method == "observe" else b""

    async def end_self(self) -> None:
        self.ended.set()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor, "LEASE_S", 0.01)
    monkeypatch.setattr(ray_actor, "FORLORN_S", 0.03)
    monkeypatch.setattr(ray_actor, "IDLE_S", 0.03)
    monkeypatch.setattr(ray_actor, "_RETRY_S", 0.001)
    monkeypatch.setattr(ray_actor, "HEADERS_S", 0.01)
    monkeypatch.setattr(ray_actor, "settle", lambda: None)
    monkeypatch.setattr(FakeActor, "trouble", [])
    monkeypatch.setattr(FakeActor, "made", [])
    monkeypatch.setattr(FakeActor, "epoch", 0)
    monkeypatch.setattr(ActorHost, "_made", lambda self: FakeActor())


def _seat(role: str, world: World, again: bool = False) -> ActorHost:
    return ActorHost(role, role, (), world, again)  # type: ignore[arg-type]


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0)


async def test_a_new_channel_answers_only_when_it_was_told_to_begin() -> None:
    seat = _seat("channel", World())
    assert (await seat.call("hello", ()))[0] == __version__
    with pytest.raises(PeerUnavailable, match="has not begun"):
        await seat.call("status", ())
    await seat.call("start", (b"opening",))
    assert await seat.call("status", ()) == b"fine"
    assert FakeActor.made[-1].started == [(b"opening",)]


async def test_an_actor_tells_which_long_questions_it_is_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before it has begun, and not those that have failed."""
    seat, going_on = _seat("channel", World()), asyncio.Event()

    async def start(self: FakeActor, *args: Any) -> None:
        await going_on.wait()
        raise StoreError("the disk is full")

    monkeypatch.setattr(FakeActor, "start", start)
    assert await seat.call("serving", ()) == ()
    asked = asyncio.create_task(seat.call("start", (b"opening",)))
    await asyncio.sleep(0.02)
    assert await seat.call("serving", ()) == ("start",)
    going_on.set()
    with pytest.raises(StoreError):
        await asked
    assert await seat.call("serving", ()) == ()


@pytest.mark.parametrize("began", [False, True])
async def test_a_channel_does_not_begin_for_a_request_that_another_run_has_overtaken(began: bool) -> None:
    """Its driver may have ended since, and the job with it: the process was cut off, and is thought dead."""
    world = World()
    seat = _seat("channel", world)
    if began:
        await seat.call("start", (b"first",))
    asked = asyncio.Event()

    async def ask(method: str, *args: Any) -> bytes:
        asked.set()
        await asyncio.sleep(0)
        FakeActor.epoch = 2  # another channel has taken the journal over
        return b""

    world.ask = ask  # type: ignore[method-assign]
    late = asyncio.create_task(seat.call("start", (b"late",)))
    await asked.wait()
    with pytest.raises(PeerUnavailable, match="another run has begun"):
        await late
    assert all((b"late",) not in actor.started for actor in FakeActor.made)
    await seat.call("start", (b"again",))  # a driver that lives asks again
    assert FakeActor.made[-1].started == [(b"again",)]


@pytest.mark.parametrize(
    ("cluster", "job", "shown"),
    [("10.0.0.1:6379", "j", True), ("local", "j", None), ("inline", "j", None), ("10.0.0.1:6379", "j~1", None)],
)
async def test_a_channel_that_outlives_its_driver_shows_that_it_lives(
    cluster: str, job: str, shown: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actor, "_SHOWN_AGAIN_S", 0.001)
    folder, world = StateFolder(tmp_path).prepare(), World()
    world.cluster = cluster
    seat = ActorHost("channel", "c", (job, str(tmp_path)), world, False)  # type: ignore[arg-type]
    with folder.attend(job) if shown else contextlib.nullcontext():  # an earlier channel, which is fenced
        await seat.call("start", (b"opening",))
        await asyncio.sleep(0.01)
    if shown:
        await _until(lambda: bool(folder.is_attended(job)) and seat._tasks[-1].done())
    assert folder.is_attended(job) is shown
    seat._attending.close()  # as the end of its process does
    assert folder.is_attended(job) is (False if shown else None)


@pytest.mark.parametrize(("role", "method"), [("branch", "unlisted"), ("branch", "_made"), ("cortex", "begin")])
async def test_a_method_that_is_not_listed_cannot_be_called(
    role: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ray and by socket alike, though the actor has it and it would answer."""
    called = False

    async def answering(*args: Any) -> None:
        nonlocal called
        called = True

    seat = _seat(role, World())
    monkeypatch.setattr(seat._actor, method, answering, raising=False)
    for ask in (lambda: seat.call(method, ()), lambda: seat.handle(method, sealed(()))):
        with pytest.raises(AttributeError, match=f"{method} is no remote method of a {role}"):
            await ask()
    assert not called


async def test_a_channel_that_came_back_begins_by_itself_and_whoever_asks_waits() -> None:
    FakeActor.trouble += [PeerUnavailable("cortex"), PeerGone("cortex")]
    seat = _seat("channel", World(), again=True)
    await _until(lambda: bool(FakeActor.made[-1].started))
    assert await seat.call("status", ()) == b"fine"
    assert FakeActor.made[-1].started == [()]


async def test_a_channel_that_cannot_come_back_says_why_and_may_be_begun_anew() -> None:
    FakeActor.trouble += [OSError("the disk is gone")]
    seat = _seat("channel", World(), again=True)
    await _until(lambda: seat._failed is not None)
    with pytest.raises(OSError, match="the disk is gone"):
        await seat.call("status", ())
    await seat.call("start", (b"opening",))
    assert await seat.call("status", ()) == b"fine"


async def test_a_channel_that_is_begun_again_closes_what_it_was() -> None:
    seat = _seat("channel", World())
    await seat.call("start", (b"first",))
    first = FakeActor.made[-1]
    await seat.call("start", (b"second",))
    assert first.closed
    assert FakeActor.made[-1].started == [(b"second",)]


async def test_a_channel_that_asked_for_it_itself_begins_anew_until_it_has_begun() -> None:
    seat = _seat("channel", World())
    await seat.call("start", (b"first",))
    first = FakeActor.made[-1]
    FakeActor.trouble += [PeerUnavailable("cortex"), PeerGone("cortex")]
    await seat.call("start", ())
    assert first.closed
    assert await seat.call("status", ()) == b"fine", "whoever asks waits"
    assert FakeActor.made[-1].started == [()]


async def test_who_asks_while_a_channel_makes_way_is_answered_by_the_new_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seat = _seat("channel", World())
    await seat.call("start", (b"first",))
    first, asked = FakeActor.made[-1], []

    async def close() -> None:
        asked.append(asyncio.create_task(seat.call("status", ())))
        await asyncio.sleep(0.01)

    async def status() -> bytes:
        return b"late"

    monkeypatch.setattr(first, "close", close)
    monkeypatch.setattr(first, "status", status)
    await seat.call("start", (b"second",))
    assert await asked[0] == b"fine"


async def test_a_channel_works_on_until_a_cortex_is_there_for_the_run_that_takes_its_place() -> None:
    world = World()
    seat = _seat("channel", world)
    await seat.call("start", (b"first",))
    world.cortex_lives = False
    with pytest.raises(PeerGone):
        await seat.call("start", (b"second",))
    assert await seat.call("status", ()) == b"fine"
    assert not FakeActor.made[-1].closed
    world.cortex_lives = True
    await seat.call("start", (b"second",))
    assert FakeActor.made[-1].started == [(b"second",)]


async def test_who_asks_a_channel_hears_whether_it_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_actor, "COMING_BACK_S", 0.01)
    FakeActor.trouble += [PeerUnavailable("cortex")] * 1_000
    with pytest.raises(PeerUnavailable) as coming:
        await _seat("channel", World(), again=True).call("status", ())
    with pytest.raises(ChannelNotStarted):
        await _seat("channel", World()).call("status", ())
    assert not isinstance(coming.value, ChannelNotStarted)


async def test_a_channel_that_a_driver_has_begun_meanwhile_does_not_begin_once_more() -> None:
    FakeActor.trouble += [PeerUnavailable("cortex")]
    seat = _seat("channel", World(), again=True)
    await _until(lambda: not FakeActor.trouble)
    await seat.call("start", (b"opening",))
    await asyncio.sleep(0.01)
    assert FakeActor.made[-1].started == [(b"opening",)]
    assert [actor.started for actor in FakeActor.made[:-1]] == [[], []], "the first failed, and the one before it"


async def test_a_channel_that_fails_to_begin_leaves_nothing_open() -> None:
    FakeActor.trouble += [PeerUnavailable("cortex")]
    seat = _seat("channel", World())
    with pytest.raises(PeerUnavailable, match="cortex"):
        await seat.call("start", (b"opening",))
    assert FakeActor.made[-1].closed


async def test_a_cortex_that_cannot_come_back_yet_tries_again() -> None:
    """Nobody else starts it; and one who is silent does not keep it from coming back."""
    world = World()
    found = world.names
    trouble = [RuntimeError("the head is busy")]

    async def names(prefix: str) -> tuple[str, ...]:
        if trouble:
            raise trouble.pop()
        return await found(prefix)

    async def ask(method: str, *args: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    world.names, world.ask = names, ask  # type: ignore[method-assign, assignment]
    seat = _seat("cortex", world, again=True)
    assert await seat.call("status", ()) == b"fine"
    assert FakeActor.made[-1].began == [True]


async def test_a_cortex_that_came_back_knows_it() -> None:
    seat = _seat("cortex", World(), again=True)
    assert await seat.call("status", ()) == b"fine"
    assert FakeActor.made[-1].began == [True]


async def test_a_first_cortex_does_not_begin_again() -> None:
    seat = _seat("cortex", World())
    assert await seat.call("status", ()) == b"fine"
    assert FakeActor.made[-1].began == []


@pytest.mark.parametrize("away", [PeerGone("cortex"), RuntimeError("the head is away")])
async def test_who_hears_of_no_cortex_ends_itself_once_nothing_is_in_flight(
    away: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.cortex_lives, world.away = False, away
    _seat("branch", world)
    actor = FakeActor.made[-1]
    actor.busy = True
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.ended.wait(), 0.1)
    actor.busy = False
    await asyncio.wait_for(world.ended.wait(), PATIENCE_S)
    assert actor.closed and "no cortex has answered for at least 0 s: this branch ends" in caplog.text


@pytest.mark.parametrize("role", ["branch", "worker", "channel"])
async def test_one_that_is_told_to_end_finishes_first(role: str) -> None:
    world = World()
    seat = _seat(role, world)
    if role == "channel":
        await seat.call("start", (b"opening",))
    actor = FakeActor.made[-1]
    actor.busy = True
    seat.end_requested()
    seat.end_requested()
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not world.ended.is_set()
    assert actor.drained == (role != "channel")
    assert actor.stopped == (("drain", "the end of its node") if role == "channel" else None)
    actor.busy, actor.over = False, True
    await asyncio.wait_for(world.ended.wait(), PATIENCE_S)
    assert actor.closed


async def test_who_hears_of_a_cortex_stays() -> None:
    world = World()
    _seat("branch", world)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.ended.wait(), 0.1)


async def test_the_channel_of_an_ended_job_stays_while_somebody_asks() -> None:
    world, now_s = World(), 0.0
    world.clock = lambda: now_s
    seat = _seat("channel", world)
    await seat.call("start", (b"opening",))
    FakeActor.made[-1].over = True
    for _ in range(20):
        now_s += ray_actor.IDLE_S / 2
        await asyncio.sleep(2 * ray_actor.LEASE_S)
        assert not world.ended.is_set()
        await seat.call("status", ())
    now_s += ray_actor.IDLE_S
    await asyncio.wait_for(world.ended.wait(), PATIENCE_S)


async def test_a_channel_that_was_never_begun_does_not_stay() -> None:
    world = World()
    _seat("channel", world)
    FakeActor.made[-1].over = True
    await asyncio.wait_for(world.ended.wait(), PATIENCE_S)


@pytest.mark.parametrize(
    ("role", "some"),
    [
        ("channel", {"start", "feed", "deliver", "results", "status", "stop", "rejoin", "close"}),
        ("branch", {"set_credential", "work", "held", "beat", "hand_over", "forget"}),
        ("cortex", {"staff", "join", "leave"}),
        ("worker", {"run"}),
    ],
)
def test_a_role_can_be_asked_what_its_actor_does(role: str, some: set[str]) -> None:
    assert some | {"hello"} <= set(methods(role))
    assert not [name for name in methods(role) if name.startswith("_")]


def test_an_actor_that_cancels_what_it_does_cancels_nobody_else() -> None:
    """It ends: whoever asked it is told that it is away, and tries again."""
    assert isinstance(cause_of(asyncio.CancelledError(), "channel:j"), PeerUnavailable)
    assert cause_of(error := ValueError("so"), "channel:j") is error


async def test_what_is_asked_and_answered_travels_as_one_string_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray has a serializer in Python for all else; and ``hello`` is understood by other releases."""
    posted: list[tuple[str, tuple[Any, ...]]] = []
    seat = _seat("branch", World())

    async def beat(*args: Any) -> Any:
        return {"armed": args == ("j", ("branch:1",))}

    monkeypatch.setattr(seat._actor, "beat", beat, raising=False)

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        async def remote(self, *args: Any) -> Any:
            posted.append((self.name, args))
            return await _hosted(seat, self.name)(*args)

    class Handle:
        hello, beat = Method("hello"), Method("beat")

    assert await post(Handle, "beat", ("j", ("branch:1",))) == {"armed": True}
    assert (await post(Handle, "hello", ()))[0] == __version__
    (_, (letter,)), (_, nothing) = posted
    assert isinstance(letter, bytes)
    assert isinstance(await seat.handle("beat", letter), bytes)
    assert nothing == ()


def _hosted(seat: ActorHost, method: str) -> Any:
    """The method of the class that Ray runs, on a seat."""
    hosted: Any = object.__new__(process_class("branch"))
    hosted.seat = seat
    return getattr(hosted, method)


@pytest.mark.parametrize("role", ["channel", "cortex"])
async def test_one_that_came_back_asks_those_that_live_what_a_collector_wants_to_see(role: str) -> None:
    world = World()
    world.headers = msgspec.msgpack.encode({"traces": (("x-key", "secret"),)})
    seat = _seat(role, world, again=True)
    await _until(lambda: seat._ready)
    assert await seat.call("observe", ()) == world.headers
    assert "secret" not in repr(vars(seat).get("_failed"))


class Telling:
    """Telemetry that notes in which thread it was closed, and after how many closed actors."""

    def __init__(self) -> None:
        self.closed: list[tuple[bool, bool]] = []

    def close(self) -> None:
        in_loop = threading.current_thread() is threading.main_thread()
        self.closed.append((in_loop, FakeActor.made[-1].closed))


@pytest.mark.parametrize("role", ["channel", "cortex"])
@pytest.mark.parametrize("how", ["asked", "told to end", "alone"])
async def test_a_process_that_ends_lets_out_what_it_has_to_tell_once_its_actor_is_closed(role: str, how: str) -> None:
    world = World()
    seat = _seat(role, world)
    telling = world.telemetry = Telling()  # type: ignore[attr-defined]
    if role == "channel":
        await seat.call("start", (b"opening",))
    if how == "asked":
        await seat.call("close", ())
        with pytest.raises(ChannelNotStarted):  # whoever closed it may have died before it ended the process
            await seat.call("status", ())
    elif how == "told to end":
        FakeActor.made[-1].over = True
        seat.end_requested()
        await _until(world.ended.is_set)
    elif role == "channel":
        FakeActor.made[-1].over = True
        await _until(world.ended.is_set)
    else:
        return  # a cortex waits for its jobs
    assert telling.closed[0] == (False, True)
