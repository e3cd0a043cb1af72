"""What Ray says of an actor, in our words; and a driver that is itself cut off."""

from __future__ import annotations

import asyncio
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray import cloudpickle, exceptions

from actors.cluster import node_watchdog
from actors.cluster.actor_classes import have_classes
from actors.cluster.node_watchdog import NodeWatchdog
from actors.cluster.ray_peer import RayPeer
from actors.cluster.sockets.client import SocketConnections
from actors.ports.runtime import ClusterLost, PeerGone, PeerUnavailable
from tests.edge.support.virtual_clock import virtually

UNSCHEDULABLE = exceptions.ActorUnschedulableError("the node of its affinity is dead")


class Handle:
    """An actor as Ray shows it: each call answers, raises, or never ends."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    @property
    def hello(self) -> Any:
        return self

    async def remote(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return await self.answer.wait() if isinstance(self.answer, asyncio.Event) else self.answer


class Runtime:
    """``found`` are the handles that looking the name up will give."""

    def __init__(self, known: Handle | None, *found: Handle | Exception, lifeline: NodeWatchdog | None = None) -> None:
        self._known, self._found = known, list(found)
        self.watchdog = lifeline
        self.lines = SocketConnections(None, self.background)

    def background(self, work: Any) -> None:
        raise NotImplementedError

    def known(self, name: str) -> Handle | None:
        return self._known

    def forget(self, name: str) -> None:
        self._known = None

    async def handle(self, name: str) -> Handle:
        found = self._found.pop(0) if self._found else PeerGone(name)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.mark.parametrize(
    ("said", "means", "anew"),
    [
        (exceptions.ActorUnavailableError("away", None), PeerUnavailable, False),
        (exceptions.ActorDiedError(), PeerGone, True),
        (UNSCHEDULABLE, PeerGone, True),
        (exceptions.RaySystemError("the head is away"), PeerUnavailable, True),
    ],
)
async def test_whoever_has_a_dead_actors_name_is_asked_next(
    said: Exception, means: type[Exception], anew: bool
) -> None:
    runtime = Runtime(Handle(said), Handle("the next"))
    peer = RayPeer("channel:j", runtime, exceptions)  # type: ignore[arg-type]
    with pytest.raises(means) as caught:
        await peer.ask("hello")
    assert type(caught.value) is means
    if anew:
        assert await peer.ask("hello") == "the next"
    else:
        assert runtime.known("channel:j") is not None


async def test_a_head_that_is_away_when_a_name_is_looked_up_is_away() -> None:
    peer = RayPeer("cortex", Runtime(None, exceptions.RpcError("no connection")), exceptions)  # type: ignore[arg-type]
    with pytest.raises(PeerUnavailable):
        await peer.ask("hello")


def _cut(alive: Any, answer: Any) -> tuple[float, str]:
    """After how many seconds a driver on node ``n`` was cut off, and why."""

    async def play() -> tuple[float, str]:
        clock = asyncio.get_running_loop().time

        async def nodes() -> tuple[str, ...]:
            return tuple(alive(clock()))

        runtime = Runtime(Handle(answer() if callable(answer) else answer), lifeline=NodeWatchdog("n", nodes, clock))
        peer = RayPeer("channel:j", runtime, exceptions)  # type: ignore[arg-type]
        while True:
            try:
                await peer.ask("hello")
            except ClusterLost as cut:
                return clock(), str(cut)
            except (PeerUnavailable, PeerGone):
                await asyncio.sleep(0.5)

    return virtually(play())  # type: ignore[no-any-return]


def _raised(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("answer", [asyncio.Event, exceptions.ActorUnavailableError("away", None), UNSCHEDULABLE])
def test_a_driver_whose_node_has_died_is_told_soon(answer: Any) -> None:
    at_s, why = _cut(lambda at_s: ["h", "n"] if at_s < 20 else ["h"], answer)
    assert 20 <= at_s < 20 + node_watchdog.LOOK_S + 0.1
    assert "node" in why


def test_a_head_that_is_silent_is_waited_for_and_not_for_ever() -> None:
    def alive(at_s: float) -> list[str]:
        return ["n"] if 30 <= at_s < 40 else _raised(RuntimeError("no head"))

    at_s, why = _cut(alive, asyncio.Event)
    assert 40 + node_watchdog.SILENT_S <= at_s < 40 + node_watchdog.SILENT_S + 2 * node_watchdog.LOOK_S
    assert "head" in why


def test_a_head_that_knows_nothing_of_us_is_not_waited_for() -> None:
    def alive(at_s: float) -> list[str]:
        return ["n"] if at_s < 20 else _raised(RuntimeError("RPC error: WrongClusterID: Perhaps ..."))

    at_s, why = _cut(alive, asyncio.Event)
    assert 20 <= at_s < 20 + node_watchdog.LOOK_S + 0.1
    assert "was restarted without its state" in why


def test_two_looks_that_failed_with_answers_between_them_are_no_long_silence() -> None:
    """On a busy machine a look may take too long, now and then."""

    async def play() -> None:
        line = NodeWatchdog("n", lambda: _raised(RuntimeError("too busy")), asyncio.get_running_loop().time)
        for _ in range(3):
            await line.look()
            assert await line.hold(asyncio.sleep(node_watchdog.LOOK_S / 2, "well")) == "well"
            await asyncio.sleep(node_watchdog.SILENT_S)

    virtually(play())


def _asked_on(nodes: Any, until_s: float) -> tuple[float, str]:
    """After how many seconds a driver whose channel answers at once is cut off, and why; empty by ``until_s``."""

    async def play() -> tuple[float, str]:
        clock = asyncio.get_running_loop().time

        async def living() -> tuple[str, ...]:
            return tuple(nodes(clock()))

        line = NodeWatchdog("n", living, clock)
        while clock() < until_s:
            try:
                assert await line.hold(asyncio.sleep(0, "well")) == "well"
            except ClusterLost as cut:
                return clock(), str(cut)
            await asyncio.sleep(0.5)
        return until_s, ""

    return virtually(play())  # type: ignore[no-any-return]


def test_a_head_that_is_lost_while_the_channel_answers_is_noticed_before_ray_ends_the_process() -> None:
    ends_s = 60.0  # gcs_rpc_server_reconnect_timeout_s
    at_s, why = _asked_on(lambda at_s: ["n"] if at_s < 20 else _raised(RuntimeError("no head")), 200.0)
    assert 20 + node_watchdog.SILENT_S <= at_s < 20 + ends_s - node_watchdog.LOOK_S
    assert "head" in why


def test_a_head_that_never_told_its_nodes_proves_nothing_by_its_silence() -> None:
    """As with Ray's client, which has no connection to it."""
    assert _asked_on(lambda at_s: _raised(AttributeError("gcs_client")), 200.0) == (200.0, "")


def test_a_question_that_nobody_asks_any_more_is_let_go() -> None:
    async def play() -> None:
        line = NodeWatchdog("n", lambda: _raised(AssertionError("looked")))
        for _ in range(5):
            assert await line.hold(asyncio.sleep(node_watchdog.LOOK_S / 2, "well")) == "well"
        question = asyncio.ensure_future(line.hold(asyncio.Event().wait()))
        await asyncio.sleep(0.1)
        question.cancel()
        await asyncio.wait({question})
        assert len(asyncio.all_tasks()) == 1, "a question that nobody asks any more is let go"

    virtually(play())


def test_a_class_that_ray_has_lost_is_our_own_and_put_back_where_ray_looks() -> None:
    class Manager:
        lost = True

        def _load_actor_class_from_gcs(self, job_id: Any, descriptor: Any) -> type:
            assert not self.lost, "Expected str or bytes"
            return int

    class Work:
        def staff(self) -> str:
            return "here"

    kept: dict[tuple[bytes, bytes], bytes] = {}
    kv = SimpleNamespace(_internal_kv_put=lambda key, value, namespace: kept.update({(namespace, key): value}))
    worker = SimpleNamespace(function_actor_manager=Manager())
    for _ in range(2):
        have_classes(
            worker, {"branch": Work}.__getitem__, lambda found: type("Modified", (found,), {}), kv, cloudpickle
        )
    job = SimpleNamespace(hex=lambda: "0a", binary=lambda: b"\n")
    branch = SimpleNamespace(
        class_name="Branch", module_name="m", function_id=SimpleNamespace(binary=lambda: b"hash")
    )  # fmt: skip
    assert worker.function_actor_manager._load_actor_class_from_gcs(job, branch).__mro__[1] is Work
    ((where, written),) = kept.items()
    assert where == (b"fun", b"ActorClass:0a:hash")
    reported = pickle.loads(written)
    assert pickle.loads(reported["class"])().staff() == "here"
    assert (reported["class_name"], reported["module"], reported["job_id"]) == ("Branch", "m", b"\n")
    assert "staff" in json.loads(reported["actor_method_names"])
    Manager.lost = False
    kept.clear()
    assert worker.function_actor_manager._load_actor_class_from_gcs(job, branch) is int
    assert not kept, "what is there is let be"
