"""Credentials that a branch asks its peers for: what the driver says, and the end of a job, come first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from actors.branch.branch import Branch
from actors.branch.credential_exchange import HAND_OVER_S
from actors.ports.runtime import PeerGone
from actors.routing.model_factory import ConnectionSpec, encode
from tests.edge.support.virtual_clock import virtually

OLD, NEW = (
    encode(ConnectionSpec(endpoint=name, provider="simulated", route_name="r", pool_name="p"))
    for name in ("old", "new")
)
TRAVEL_S = 0.2


class Idle:
    async def close(self) -> None: ...


class Network:
    """Two branches; answers of peers take ``TRAVEL_S`` seconds to come, those of ``branch:hung`` for ever."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.branches = {name: Branch(name, self, lambda blob: Idle()) for name in ("branch:0", "branch:1")}  # type: ignore[arg-type, return-value]

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def incarnation(self, name: str) -> str:
        return f"{name}.1"

    def node(self) -> str:
        return "n"

    def peer(self, name: str) -> Any:
        network = self

        class Peer:
            async def ask(self, method: str, *args: Any) -> Any:
                network.asked.append(name)
                if name == "branch:hung":
                    await asyncio.Event().wait()
                if name not in network.branches:
                    raise PeerGone(name)
                answer = await getattr(network.branches[name], method)(*args)
                await asyncio.sleep(TRAVEL_S)
                return answer

        return Peer()


def _on_network(scene: Callable[[Network, Branch, Branch], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        network = Network()
        restarted, peer = network.branches.values()
        await peer.set_credential("j", OLD)
        await scene(network, restarted, peer)

    virtually(played())


def test_a_late_answer_of_a_peer_does_not_take_the_place_of_what_the_driver_sent() -> None:
    async def scene(network: Network, restarted: Branch, peer: Branch) -> None:
        await restarted.beat("j", ("branch:1",))
        await asyncio.sleep(TRAVEL_S / 2)
        for branch in (restarted, peer):
            await branch.set_credential("j", NEW)
        await asyncio.sleep(2 * TRAVEL_S)
        assert await restarted.hand_over("j") == NEW

    _on_network(scene)


@pytest.mark.parametrize(("ended", "has"), [("j", False), ("j~3", True)])
def test_a_branch_gets_no_credential_of_a_job_that_has_ended_meanwhile(ended: str, has: bool) -> None:
    async def scene(network: Network, restarted: Branch, peer: Branch) -> None:
        await restarted.beat("j~3", ("branch:1",))
        await asyncio.sleep(TRAVEL_S / 2)
        await restarted.forget(ended)
        await asyncio.sleep(2 * TRAVEL_S)
        assert (await restarted.hand_over("j") is not None) == has
        await restarted.beat("j", ("branch:1",))  # the job was resumed
        await asyncio.sleep(2 * TRAVEL_S)
        assert await restarted.hand_over("j") == OLD

    _on_network(scene)


def test_a_peer_that_hangs_is_passed_over_and_each_is_asked_once_meanwhile() -> None:
    async def scene(network: Network, restarted: Branch, peer: Branch) -> None:
        for _ in range(3):
            await restarted.beat("j", ("branch:0", "branch:gone", "branch:hung", "branch:1"))
            await asyncio.sleep(1.0)
        await asyncio.sleep(HAND_OVER_S)
        assert await restarted.hand_over("j") == OLD
        assert network.asked == ["branch:gone", "branch:hung", "branch:1"]

    _on_network(scene)
