"""Actors of one node ask each other over Unix sockets, where those can be trusted; by Ray where there is none."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from actors.cluster import lines, sockets
from actors.cluster.lifeline import Lifeline
from actors.cluster.lines import Line, Lines
from actors.cluster.listener import Listener
from actors.cluster.raypeer import RayPeer
from actors.cluster.sockets import Sockets, sockets_of
from actors.ports import Away, ClusterError, Gone, Unbegun

NAME = "channel:j"


class Unreadable(Exception):
    """One that cannot be made again from what it was made of."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Actor:
    """Answers, raises, or waits, as it is asked. ``here`` tells two processes of one actor apart."""

    def __init__(self, here: str = "first") -> None:
        self.here = here
        self.go_on = asyncio.Event()
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    async def call(self, method: str, args: tuple[Any, ...]) -> Any:
        self.heard.append((method, args))
        if method == "wait":
            await self.go_on.wait()
        if method == "raise":
            raise args[0]
        return self.here, *args


class Background:
    """Runs what nobody waits for, until a test does."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def done(self) -> None:
        tasks, self.tasks = self.tasks, []
        await asyncio.gather(*tasks)


class Node:
    """A node: its sockets, and whom it has."""

    def __init__(self, folder: str) -> None:
        self.sockets = Sockets(folder, "n")
        self.background = Background()
        self.lines = Lines(self.sockets, self.background)
        self.listeners: list[Listener] = []

    async def opened(self, actor: Actor, name: str = NAME) -> Listener:
        listener = Listener(self.sockets, name, actor.call)
        await listener.open()
        self.listeners.append(listener)
        return listener

    async def line(self, name: str = NAME) -> Line:
        """The line to an actor, found."""
        found = self.lines.to(name)
        if found is None:
            await self.background.done()
            found = self.lines.to(name)
        assert found is not None
        return found


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(lines, "AGAIN_S", 0.0)
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as folder:  # a socket's path must be short
        made = Node(folder)
        yield made
        await made.background.done()
        made.lines.close()
        for listener in made.listeners:
            listener.close()
        for _ in range(5):  # both ends of each line hear of it
            await asyncio.sleep(0)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.001)


# -- what is said ------------------------------------------------------------------------------------------------------


async def test_each_question_has_its_own_answer_however_they_overtake_each_other_and_however_large_they_are(
    node: Node,
) -> None:
    actor = Actor()
    await node.opened(actor)
    line = await node.line()
    waiting = asyncio.create_task(line.ask("wait", ("slow",)))
    large = os.urandom(3_000_000)
    sizes = [0, 1, 11, 12, 13, 65_535, 65_536, 3_000_000]
    answers = await asyncio.gather(*(line.ask("say", (number, large[:size])) for number, size in enumerate(sizes)))
    assert answers == [("first", number, large[:size]) for number, size in enumerate(sizes)]
    assert not waiting.done()
    actor.go_on.set()
    assert await waiting == ("first", "slow")


async def test_letters_are_put_together_from_whatever_pieces_they_come_in() -> None:
    class Kept(sockets.Letters):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[tuple[int, bytes]] = []

        def took(self, number: int, letter: bytes) -> None:
            self.kept.append((number, letter))

    written = bytearray()
    sender = sockets.Letters()
    sender.transport = SimpleNamespace(is_closing=lambda: False, write=written.extend)
    letters = [(number, b"x" * size) for number, size in enumerate([0, 1, 5, 40, 0, 300])]
    for letter in letters:
        sender.send(*letter)
    for piece in (1, 2, 7, 12, 13, 100, len(written)):
        taker = Kept()
        for start in range(0, len(written), piece):
            taker.data_received(bytes(written[start : start + piece]))
        assert taker.kept == letters, piece


@pytest.mark.parametrize("error", [ClusterError("one line"), Unbegun("not yet"), Gone("x"), ValueError("y")])
async def test_what_the_actor_raises_is_raised_where_it_was_asked(node: Node, error: Exception) -> None:
    await node.opened(Actor())
    with pytest.raises(type(error)) as caught:
        await (await node.line()).ask("raise", (error,))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)


async def test_what_cannot_travel_is_told_in_words(node: Node) -> None:
    async def call(method: str, args: tuple[Any, ...]) -> Any:
        if method == "raise":
            raise Unreadable("a", "b")
        return lambda: None

    await node.opened(SimpleNamespace(call=call), "other")  # type: ignore[arg-type]
    other = await node.line("other")
    with pytest.raises(RuntimeError, match="Unreadable: a b"):
        await other.ask("raise", ())
    with pytest.raises(Exception, match="pickle"):
        await other.ask("say", ())
    assert other.serves


async def test_an_actor_that_ends_and_cancels_what_it_does_is_away_and_nobody_who_asks_is_cancelled(node: Node) -> None:
    await node.opened(Actor())
    line = await node.line()
    with pytest.raises(Away):
        await line.ask("raise", (asyncio.CancelledError(),))
    assert line.serves


async def test_whoever_waits_no_more_disturbs_nobody(node: Node) -> None:
    actor = Actor()
    await node.opened(actor)
    line = await node.line()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await line.ask("wait", ())
    actor.go_on.set()
    assert await line.ask("say", (1,)) == ("first", 1)


# -- who is there ------------------------------------------------------------------------------------------------------


async def test_where_a_line_breaks_off_the_actor_is_away_and_its_next_process_is_found(node: Node) -> None:
    await node.opened(Actor())
    line = await node.line()
    waiting = asyncio.create_task(line.ask("wait", ()))
    await asyncio.sleep(0.01)
    line.transport.abort()  # as if its process were killed
    with pytest.raises(Away):
        await waiting
    await node.opened(Actor("second"))
    assert node.lines.to(NAME) is None, "until it is found it is asked by Ray"
    assert await (await node.line()).ask("say", ()) == ("second",)


async def test_one_that_has_made_way_for_its_next_process_takes_no_file_of_that_one_along(node: Node) -> None:
    first = await node.opened(Actor())
    second = await node.opened(Actor("second"))
    first.close()
    assert await (await node.line()).ask("say", ()) == ("second",)
    second.close()
    assert not os.path.exists(node.sockets.path(NAME))
    assert os.listdir(Path(node.sockets.path(NAME)).parent) == []


async def test_a_socket_that_a_dead_process_left_behind_is_nobody(node: Node) -> None:
    node.sockets.bound(node.sockets.path(NAME)).close()
    assert node.lines.to(NAME) is None
    await node.background.done()
    assert node.lines.to(NAME) is None


async def test_another_node_of_this_machine_and_another_release_are_not_asked_here(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = node.sockets.path(NAME)
    folder = str(Path(here).parent.parent)
    assert Sockets(folder, "m").path(NAME) != here
    monkeypatch.setattr(sockets, "__version__", "another")
    assert node.sockets.path(NAME) != here
    assert sockets_of(None, "n") is None
    assert Lines(None, node.background).to(NAME) is None


async def test_no_more_lines_than_a_process_may_have_files(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINES_MAX", 2)
    for name in "abc":
        await node.opened(Actor(), name)
    await node.line("a")
    await node.line("b")
    assert node.lines.to("c") is None
    assert node.background.tasks == []
    node.lines.forget("a")
    await node.line("c")


def test_a_line_serves_the_loop_that_it_was_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "AGAIN_S", 0.0)
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as folder:
        node = Node(folder)

        async def asked(here: str) -> Any:
            listener = await node.opened(Actor(here))
            line = await node.line()
            try:
                return line, await line.ask("say", ())
            finally:
                listener.close()

        first, answer = asyncio.run(asked("first"))
        assert answer == ("first",)
        second, answer = asyncio.run(asked("second"))  # as the next cell of a notebook
        assert answer == ("second",)
        assert second is not first
        with asyncio.Runner() as runner, asyncio.Runner() as another:
            line, _ = runner.run(asked("third"))
            assert another.run(_seen(node)) is None, "a loop that lives has it"
            assert runner.run(_seen(node)) is line
            runner.run(_closed(node))


async def _seen(node: Node) -> Line | None:
    return node.lines.to(NAME)


async def _closed(node: Node) -> None:
    node.lines.close()
    for _ in range(5):
        await asyncio.sleep(0)


# -- who is trusted ----------------------------------------------------------------------------------------------------


def _open_to_others(folder: Path) -> None:
    folder.chmod(0o755)


def _moved(folder: Path) -> None:
    elsewhere = folder.with_name("elsewhere")
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("spoilt", [_open_to_others, _moved])
async def test_a_folder_that_others_might_have_written_to_is_not_used(
    node: Node, spoilt: Callable[[Path], None]
) -> None:
    await node.opened(Actor())
    spoilt(Path(node.sockets.path(NAME)).parent)
    assert node.lines.to(NAME) is None
    assert node.background.tasks == []
    later = await node.opened(Actor(), "later")
    assert later._server is None
    assert not os.path.exists(node.sockets.path("later"))


async def test_a_folder_of_another_user_is_not_used(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.opened(Actor())
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert node.lines.to(NAME) is None
    assert node.background.tasks == []


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not tell who is at the other end")
@pytest.mark.parametrize("side", ["asked", "asks"])
async def test_another_user_at_the_other_end_is_not_spoken_with(
    node: Node, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Actor()
    await node.opened(actor)
    ours = sockets.is_ours
    assert sockets.is_ours((await node.line()).transport)
    node.lines.forget(NAME)
    mine = os.geteuid()
    judged: list[bool] = []

    def is_ours(transport: Any) -> bool:
        asks = isinstance(transport.get_protocol(), Line)
        with monkeypatch.context() as other:
            other.setattr(os, "geteuid", lambda: mine + (1 if asks == (side == "asks") else 0))
            judged.append(ours(transport))
        return judged[-1]

    monkeypatch.setattr(sockets, "is_ours", is_ours)
    assert node.lines.to(NAME) is None
    await node.background.done()
    await _until(lambda: False in judged)
    if (line := node.lines.to(NAME)) is not None:
        with pytest.raises(Away):
            await line.ask("say", ())
    assert actor.heard == []


async def test_where_a_path_is_too_long_there_is_no_socket(node: Node) -> None:
    far = Sockets("/tmp/" + "x" * 90, "n")
    listener = Listener(far, NAME, Actor().call)
    await listener.open()
    listener.close()
    assert Lines(far, node.background).to(NAME) is None


# -- beside Ray --------------------------------------------------------------------------------------------------------


class Ray:
    """An actor as Ray shows it, and a runtime that finds it."""

    lifeline: Lifeline | None = None

    def __init__(self, found: Lines, answer: Any) -> None:
        self.lines = found
        self._answer = answer
        self.asked: list[str] = []

    def known(self, name: str) -> Any:
        return self

    async def handle(self, name: str) -> Any:
        return self

    def forget(self, name: str) -> None:
        self.lines.forget(name)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        raise NotImplementedError

    def __getattr__(self, method: str) -> Any:
        async def remote(*letter: bytes) -> Any:
            self.asked.append(method)
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer

        return SimpleNamespace(remote=remote)


async def test_a_peer_is_asked_over_its_socket_and_by_ray_what_other_releases_understand(node: Node) -> None:
    actor = Actor()
    await node.opened(actor)
    await node.line()
    ray = Ray(node.lines, ("release", 1))
    peer = RayPeer(NAME, ray, exceptions)
    assert await peer.ask("status", 7) == ("first", 7)
    assert ray.asked == []
    assert await peer.ask("hello") == ("release", 1)
    assert ray.asked == ["hello"]
    assert actor.heard == [("status", (7,))]


async def test_what_became_of_one_whose_line_broke_off_is_asked_of_ray(node: Node) -> None:
    listener = await node.opened(Actor())
    line = await node.line()
    ray = Ray(node.lines, exceptions.ActorDiedError())
    peer = RayPeer(NAME, ray, exceptions)
    waiting = asyncio.create_task(peer.ask("wait"))
    await asyncio.sleep(0.01)
    listener.close()
    line.transport.abort()
    with pytest.raises(Away):
        await waiting
    with pytest.raises(Gone):
        await peer.ask("status")
    assert ray.asked == ["status"]
