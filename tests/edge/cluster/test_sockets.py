"""Actors of one node ask each other over Unix sockets: what is said there, and who is trusted."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from actors.cluster.node_watchdog import NodeWatchdog
from actors.cluster.ray_peer import RayPeer
from actors.cluster.sockets import addresses, client
from actors.cluster.sockets.addresses import SocketAddresses
from actors.cluster.sockets.client import SocketConnection, SocketConnections
from actors.cluster.sockets.server import SocketServer
from actors.ports.runtime import ChannelNotStarted, ClusterError, PeerGone, PeerUnavailable
from tests.edge.support.socket_actors import NAME, Actor, Node, Unreadable, a_node, until


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(client, "AGAIN_S", 0.0)
    async with a_node() as made:
        yield made


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
    class Kept(addresses.FramedSocket):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[tuple[int, bytes]] = []

        def on_frame(self, number: int, letter: bytes) -> None:
            self.kept.append((number, letter))

    written = bytearray()
    sender = addresses.FramedSocket()
    sender.transport = SimpleNamespace(is_closing=lambda: False, write=written.extend)
    letters = [(number, b"x" * size) for number, size in enumerate([0, 1, 5, 40, 0, 300])]
    for letter in letters:
        sender.send(*letter)
    for piece in (1, 2, 7, 12, 13, 100, len(written)):
        taker = Kept()
        for start in range(0, len(written), piece):
            taker.data_received(bytes(written[start : start + piece]))
        assert taker.kept == letters, piece


@pytest.mark.parametrize(
    "error", [ClusterError("one line"), ChannelNotStarted("not yet"), PeerGone("x"), ValueError("y")]
)
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


class Panic(BaseException):
    """As a library that is not written in Python raises it."""


async def test_whatever_is_raised_whoever_asked_does_not_wait_for_ever(node: Node) -> None:
    await node.opened(Actor())
    line = await node.line()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    with pytest.raises(RuntimeError, match="Panic: of a library"):
        await line.ask("raise", (Panic("of a library"),))


async def test_an_actor_that_ends_and_cancels_what_it_does_is_away_and_nobody_who_asks_is_cancelled(node: Node) -> None:
    await node.opened(Actor())
    line = await node.line()
    with pytest.raises(PeerUnavailable):
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
    ours = addresses.is_ours
    line = await node.line()
    assert addresses.is_ours(line.transport)
    line.close()
    mine = os.geteuid()
    judged: list[bool] = []

    def is_ours(transport: Any) -> bool:
        asks = isinstance(transport.get_protocol(), SocketConnection)
        with monkeypatch.context() as other:
            other.setattr(os, "geteuid", lambda: mine + (1 if asks == (side == "asks") else 0))
            judged.append(ours(transport))
        return judged[-1]

    monkeypatch.setattr(addresses, "is_ours", is_ours)
    assert node.lines.to(NAME) is None
    await node.background.done()
    await until(lambda: False in judged)
    if (found := node.lines.to(NAME)) is not None:
        with pytest.raises(PeerUnavailable):
            await found.ask("say", ())
    assert actor.heard == []


async def test_where_a_path_is_too_long_there_is_no_socket(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    folder = Path(node.sockets.path(NAME)).parent.parent / ("x" * 70)
    folder.mkdir()
    far = SocketAddresses(str(folder), "n")
    with caplog.at_level("INFO", "cortex.socket"):
        await SocketServer(far, NAME, Actor().call).open()
    assert "too long" in caplog.text
    assert SocketConnections(far, node.background).to(NAME) is None
    assert node.background.tasks == []


# -- beside Ray --------------------------------------------------------------------------------------------------------


class Ray:
    """An actor as Ray shows it, and a runtime that finds it."""

    watchdog: NodeWatchdog | None = None

    def __init__(self, found: SocketConnections, answer: Any) -> None:
        self.lines = found
        self._answer = answer
        self.asked: list[str] = []

    def known(self, name: str) -> Any:
        return self

    async def handle(self, name: str) -> Any:
        return self

    def forget(self, name: str) -> None:
        pass

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
    with pytest.raises(PeerUnavailable):
        await waiting
    with pytest.raises(PeerGone):
        await peer.ask("status")
    assert ray.asked == ["status"]
