"""Each branch gets the present connection of a job, however many changes of it it has missed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.common.process_owner import this_owner
from actors.driver.credential_sender import CredentialSender
from actors.driver.driver import Driver
from actors.jobs.opening import Opening
from actors.ports.runtime import PeerGone, PeerUnavailable
from actors.routing.model_factory import ConnectionSpec
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.failure import Failure, FailureKind
from policies.failures.route_choice import pool_name, route_name
from tests.edge.support.in_process_job import FunctionModel, ListSink, ListSource, armed, reply, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

CHANGED_S = 5.0
"""Seconds after the start from which the first server refuses the old key, or a second server is there."""
PROBED_S = 120.0
"""Seconds after which a blocked route is open again for certain: the scheduler grants a probe a minute."""
ROUTE = Route(endpoint="test", model="m", credential="old")
TERMS = JobTerms(
    job="j", program="batch", params_json=b"{}", fingerprint="f", streams=True, fresh=True, route=ROUTE,
    limits=Limits(concurrency=8, window_rows=64, blocked_wait_s=7_200.0),
)  # fmt: skip


class Missing(VirtualRuntime):
    """Runtime of two branches. ``branch:1`` does not answer the next ``times`` times it is sent a connection, from
    ``CHANGED_S`` on. ``how``: ``refused`` or ``hangs``."""

    def __init__(self, how: str, times: int) -> None:
        super().__init__(branches=2)
        self.how, self.times = how, times
        self.sent: list[str] = []

    def peer(self, name: str) -> Any:
        real, runtime = super().peer(name), self
        if name != "branch:1":
            return real

        class Branch:
            near = True

            def __getattr__(self, attribute: str) -> Any:
                return getattr(real, attribute)

            async def ask(self, method: str, *args: Any) -> Any:
                if method == "set_credential" and runtime.monotonic_s() > CHANGED_S:
                    runtime.sent.append(name)
                    if len(runtime.sent) <= runtime.times:
                        if runtime.how == "hangs":
                            await asyncio.Event().wait()
                        raise PeerUnavailable(name)
                return await real.ask(method, *args)

        return Branch()


class Changing:
    """Key file whose key is renewed, or a job whose servers become two, at ``CHANGED_S``."""

    def __init__(self, terms: JobTerms, connection: ConnectionSpec, then: JobTerms, other: ConnectionSpec) -> None:
        self.terms, self.connection = terms, connection
        self._then, self._other = then, other

    def read(self) -> bool:
        if self.terms is self._then or asyncio.get_running_loop().time() <= CHANGED_S:
            return False
        self.terms, self.connection = self._then, self._other
        return True

    async def change(self, addresses: tuple[str, ...]) -> str:
        self.terms, self.connection = self._then, self._other
        return ""


def _driver(runtime: VirtualRuntime, folder: Path, connection: ConnectionSpec, count: int, **named: Any) -> Driver:
    opening = Opening(terms=TERMS, owner=this_owner("inline"), who="test")
    source = ListSource(rows(count))
    return Driver(runtime, str(folder), opening, connection, source=source, sink=ListSink(), **named)


@pytest.mark.parametrize("how", ["refused", "hangs"])
def test_a_branch_that_missed_a_renewed_key_gets_it_and_the_job_goes_on(tmp_path: Path, how: str) -> None:
    async def renewed() -> None:
        runtime = Missing(how, times=3)
        refusal = Failure(FailureKind.UNAUTHORISED, "invalid x-api-key", 401)
        old = FunctionModel(lambda body: refusal if runtime.monotonic_s() > CHANGED_S else reply("ok"), pause_s=0.2)
        new = FunctionModel(pause_s=0.2)
        now = msgspec.structs.replace(TERMS, route=msgspec.structs.replace(ROUTE, credential="new"))
        rotation: Any = Changing(TERMS, armed(TERMS, old), now, armed(now, new))
        driver = _driver(runtime, tmp_path, rotation.connection, 600, rotation=rotation)
        facts = await driver.run()
        assert (facts["outcome"], facts["rows_succeeded"]) == ("complete", 600)
        assert runtime.monotonic_s() < PROBED_S, "it took turns with the old key for as long as there was work"
        assert 3 < len(runtime.sent) <= 3 + 3, "until it has the key, and not for ever"
        await runtime.close()

    virtually(renewed())


@pytest.mark.parametrize("how", ["refused", "hangs"])
def test_a_branch_that_missed_a_new_server_gets_it_and_calls_go_there(tmp_path: Path, how: str) -> None:
    async def added() -> None:
        runtime = Missing(how, times=3)
        first, second = FunctionModel(pause_s=1.0), FunctionModel(endpoint="other", pause_s=1.0)
        further = Route(endpoint="other", model="m", credential="old")
        now = msgspec.structs.replace(TERMS, fallbacks=(further,), peers=1)
        place = ("other", "old", "m")
        beside = msgspec.structs.replace(
            armed(TERMS, second), endpoint="other", route_name=route_name(*place), pool_name=pool_name(*place)
        )
        whole = msgspec.structs.replace(armed(TERMS, first), fallbacks=(beside,))
        servers: Any = Changing(TERMS, armed(TERMS, first), now, whole)
        driver = _driver(runtime, tmp_path, servers.connection, 600, servers=servers)
        driving = asyncio.create_task(driver.run())
        await asyncio.sleep(CHANGED_S + 0.1)
        await driver._change_servers("ann", ("other",))
        await asyncio.sleep(10.0)
        branch: Any = runtime.find("branch:1")
        assert len(branch._keys.routes["j"]) == 2
        assert driver._facts["routes"][1]["why"] == "", driver._facts["routes"]
        count = len(second.asked)
        facts = await driving
        assert (facts["outcome"], facts["rows_succeeded"]) == ("complete", 600)
        assert len(second.asked) > count > 0
        await runtime.close()

    virtually(added())


class Branches:
    """Branches that take a connection, or fail as told."""

    def __init__(self) -> None:
        self.living = ["branch:0", "branch:1"]
        self.fail: dict[str, list[Exception]] = {}
        self.has: dict[str, bytes] = {}
        self.sent: list[tuple[str, bytes]] = []

    def peer(self, name: str) -> Any:
        branches = self

        class Peer:
            async def ask(self, method: str, *args: Any) -> Any:
                if method == "staff":
                    return tuple(branches.living), ()
                branches.sent.append((name, args[1]))
                await asyncio.sleep(0.1)
                if failures := branches.fail.get(name):
                    raise failures.pop(0)
                branches.has[name] = args[1]

        return Peer()


async def _looks(sender: CredentialSender, count: int, unarmed: tuple[str, ...] = ()) -> None:
    for _ in range(count):
        sender.look(unarmed)
        await asyncio.sleep(0.5)


def test_all_branches_get_it_again_after_one_had_missed_it_and_then_none_does() -> None:
    async def sent() -> None:
        there = Branches()
        sender = CredentialSender("j", there, b"old")  # type: ignore[arg-type]
        await sender.send(there.living)
        await _looks(sender, 3)
        assert there.sent == [("branch:0", b"old"), ("branch:1", b"old")]
        sender.change(b"new")
        there.fail["branch:1"] = [PeerUnavailable("branch:1")] * 2
        there.sent.clear()
        await sender.send(there.living)
        there.living.append("branch:2")  # restarted, with the connection of branch:1
        assert not sender.came_late()
        await _looks(sender, 5)
        assert there.has == dict.fromkeys(there.living, b"new")
        assert [name for name, _ in there.sent] == ["branch:0", *["branch:1"] * 3, *sorted(there.living)]
        assert sender.came_late() and not sender.came_late()

    virtually(sent())


def test_an_answer_to_an_earlier_connection_says_nothing_of_the_present_one() -> None:
    async def sent() -> None:
        there = Branches()
        sender = CredentialSender("j", there, b"old")  # type: ignore[arg-type]
        there.fail["branch:1"] = [PeerUnavailable("branch:1")]
        await sender.send(there.living)
        sender.look(())  # the old one is on its way
        await asyncio.sleep(0.05)
        sender.change(b"new")
        there.fail["branch:1"] = []
        await sender.send(["branch:0"])
        await _looks(sender, 4)
        assert there.has == dict.fromkeys(there.living, b"new")

    virtually(sent())


def test_a_branch_that_is_gone_is_not_waited_for_and_one_without_a_connection_gets_it() -> None:
    async def sent() -> None:
        there = Branches()
        there.fail["branch:1"] = [PeerGone("branch:1")]
        sender = CredentialSender("j", there, b"old")  # type: ignore[arg-type]
        await sender.send(there.living)
        there.sent.clear()
        await _looks(sender, 2)
        assert there.sent == []
        await _looks(sender, 1, ("branch:1",))
        assert there.sent == [("branch:1", b"old")] and there.has["branch:1"] == b"old"
        await sender.close()

    virtually(sent())
