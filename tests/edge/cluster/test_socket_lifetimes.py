"""Actors of one node ask each other over Unix sockets: who is there, who has died, and who comes back."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from actors.cluster.sockets import addresses, client
from actors.cluster.sockets.addresses import SocketAddresses, sockets_of
from actors.cluster.sockets.client import SocketConnection, SocketConnections
from actors.ports.runtime import PeerUnavailable
from tests.edge.support.socket_actors import NAME, Actor, Node, a_node, until
from tests.support.patience import PATIENCE_S


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(client, "AGAIN_S", 0.0)
    async with a_node() as made:
        yield made


# -- who is there ------------------------------------------------------------------------------------------------------


async def test_where_a_line_breaks_off_the_actor_is_away_and_its_next_process_is_found(node: Node) -> None:
    await node.opened(Actor())
    line = await node.line()
    waiting = asyncio.create_task(line.ask("wait", ()))
    await asyncio.sleep(0.01)
    line.transport.abort()  # as if its process were killed
    with pytest.raises(PeerUnavailable):
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


async def test_a_process_that_is_forked_off_does_not_hold_a_line_that_its_parent_had() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_accepted_socket(addresses.FramedSocket, ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there are threads; the child does nothing with them
        child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        transport.abort()
        theirs.setblocking(False)
        async with asyncio.timeout(PATIENCE_S):
            assert await loop.sock_recv(theirs, 1) == b"", "as if this process had died"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it was killed
        theirs.close()


ANOTHER = """
import asyncio, os, sys
from actors.cluster.sockets.server import SocketServer
from actors.cluster.sockets.addresses import SocketAddresses

async def call(method, args):
    if method == "fork" and os.fork() == 0:
        import signal
        signal.alarm(300)
        signal.pause()
    await asyncio.sleep(300)

async def live():
    await SocketServer(SocketAddresses(sys.argv[1], "n"), sys.argv[2], call).open()
    print("there", flush=True)
    await asyncio.sleep(300)

if sys.argv[3] == "uvloop":
    import uvloop
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(live())
else:
    asyncio.run(live())
"""


@pytest.mark.parametrize("method", ["wait", "fork"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_whoever_asks_a_process_that_is_killed_hears_of_it_though_a_child_of_it_lives_on(
    loop: str, method: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="cx-", dir="/tmp") as folder:
        command = [sys.executable, "-c", ANOTHER, folder, NAME, loop]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"

        async def asked() -> None:
            node = Node(folder)
            waiting = asyncio.create_task((await node.line()).ask(method, ()))
            await asyncio.sleep(0.3)
            process.kill()
            with pytest.raises(PeerUnavailable):
                async with asyncio.timeout(PATIENCE_S):
                    await waiting
            node.lines._looked_s.clear()
            assert node.lines.to(NAME) is None
            await node.background.done()
            assert node.lines.to(NAME) is None, "nobody is found where it was"

        try:
            if loop == "uvloop":
                uvloop = pytest.importorskip("uvloop")
                asyncio.Runner(loop_factory=uvloop.new_event_loop).run(asked())
            else:
                asyncio.run(asked())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


async def test_one_that_does_not_greet_is_asked_by_ray(node: Node) -> None:
    """A process that hangs is connected to all the same, and so is one without a file left for it."""
    listening = node.sockets.bound(node.sockets.path(NAME))
    listening.listen()
    try:
        for _ in range(3):
            assert node.lines.to(NAME) is None
            await node.background.done()
        assert node.background.tasks == []
        node.lines.forget(NAME)
    finally:
        listening.close()


async def test_an_actor_is_looked_for_now_and_then(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(client, "AGAIN_S", 1.0)
    monkeypatch.setattr(client.time, "monotonic", lambda: now_s)
    node.sockets.bound(node.sockets.path(NAME)).close()
    looked = []
    for _ in range(30):
        node.lines.to(NAME)
        looked.append(len(node.background.tasks))
        await node.background.done()
        now_s += 0.1
    assert sum(looked) == 3, looked


async def test_whoever_is_closed_looks_for_nobody_more(node: Node) -> None:
    await node.opened(Actor())
    assert node.lines.to(NAME) is None
    node.lines.close()
    await node.background.done()
    assert node.lines._lines == {}
    assert node.lines.to(NAME) is None
    assert node.background.tasks == []


async def test_one_that_was_closed_and_begins_again_is_there_again(node: Node) -> None:
    listener = await node.opened(Actor())
    await listener.open()
    listener.close()
    await listener.open()
    assert await (await node.line()).ask("say", ()) == ("first",)


async def test_lines_that_are_over_make_room_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOKED_MAX", 10)
    for number in range(3 * client.LINES_MAX // 2):
        name = f"channel:{number}"
        listener = await node.opened(Actor(), name)
        line = await node.line(name)
        listener.close()
        line.transport.abort()
        await until(lambda line=line: line.over)  # type: ignore[misc]
    assert len(node.lines._looked_s) <= 10
    await node.opened(Actor())
    await node.line()


async def test_another_node_of_this_machine_and_another_release_are_not_asked_here(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = node.sockets.path(NAME)
    folder = str(Path(here).parent.parent)
    assert SocketAddresses(folder, "m").path(NAME) != here
    monkeypatch.setattr(addresses, "__version__", "another")
    assert node.sockets.path(NAME) != here
    assert sockets_of(None, "n") is None
    assert SocketConnections(None, node.background).to(NAME) is None


async def test_no_more_lines_than_a_process_may_have_files(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LINES_MAX", 2)
    for name in "abc":
        await node.opened(Actor(), name)
    await node.line("a")
    await node.line("b")
    assert node.lines.to("c") is None
    assert node.background.tasks == []
    (await node.line("a")).close()
    await node.line("c")


def test_a_line_serves_the_loop_that_it_was_made_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGAIN_S", 0.0)
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


async def _seen(node: Node) -> SocketConnection | None:
    return node.lines.to(NAME)


async def _closed(node: Node) -> None:
    node.lines.close()
    for _ in range(5):
        await asyncio.sleep(0)
