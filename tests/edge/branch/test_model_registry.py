"""Models of a branch: one for each connection, open as long as calls may be under way on them, and no longer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actors.branch.model_registry import PAST_MAX, ModelRegistry
from actors.branch.outcome_counters import OutcomeCounters
from actors.branch.route_breakers import RouteBreakers
from actors.routing.model_factory import ConnectionSpec, encode


class Opened:
    def __init__(self, connection: bytes) -> None:
        self.connection, self.closed = connection, 0

    async def close(self) -> None:
        self.closed += 1


class Stage:
    def __init__(self) -> None:
        self.made: list[Opened] = []
        self.registry = ModelRegistry(self._make, OutcomeCounters(), RouteBreakers("branch:0", lambda: 0.0))  # type: ignore[arg-type]

    def _make(self, connection: bytes) -> Opened:
        self.made.append(Opened(connection))
        return self.made[-1]

    async def take(self, servers: Sequence[str], family: str = "j") -> None:
        own, *others = (ConnectionSpec(endpoint=each, route_name=each, pool_name="p") for each in servers)
        self.registry.add(family, encode(ConnectionSpec(endpoint=own.endpoint, route_name="own", fallbacks=tuple(others))))
        await self.registry.let_go()

    def open(self) -> int:
        return sum(not each.closed for each in self.made)

    def past(self) -> int:
        return sum(map(len, self.registry._past.values()))


async def test_servers_that_come_and_go_leave_no_earlier_routes() -> None:
    """As those of a name do: a server that is gone keeps its place, and the connection of it."""
    stage = Stage()
    servers = ["http://name"]
    for number in range(300):
        servers.append(f"http://10.0.{number}.1")
        await stage.take(servers)
    assert (stage.open(), stage.past()) == (301, 0)
    await stage.registry.drop("j")
    assert stage.open() == 0 and all(each.closed == 1 for each in stage.made)


@pytest.mark.parametrize("routes", [1, 3])
async def test_models_of_earlier_keys_stay_open_for_a_time_alone(routes: int) -> None:
    stage = Stage()
    for number in range(4 * PAST_MAX):
        await stage.take([f"http://server-{at}/{number}" for at in range(routes)])
    assert stage.past() == PAST_MAX * routes
    assert stage.open() == (1 + PAST_MAX) * routes
    assert all(not each.closed for each in stage.made[-(1 + PAST_MAX) * routes :]), "the latest ones"
    await stage.registry.close()
    assert stage.open() == 0 and all(each.closed == 1 for each in stage.made)


async def test_a_model_that_another_family_uses_stays_open() -> None:
    stage = Stage()
    await stage.take(["http://shared"], family="other")
    await stage.take(["http://shared"])
    for number in range(3 * PAST_MAX):
        await stage.take([f"http://server/{number}"])
    assert not stage.made[0].closed
    await stage.registry.drop("j")
    assert not stage.made[0].closed and stage.open() == 1
    await stage.registry.drop("other")
    assert stage.open() == 0
