"""Models and credentials of a branch: for each family of jobs, the models of its routes. Secrets stay inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from actors.branch.outcome_counters import OutcomeCounter, OutcomeCounters
from actors.branch.route_breakers import RouteBreaker, RouteBreakers
from actors.ports.model import Model
from actors.routing.model_factory import routes_of, what_opens

PAST_MAX: Final = 8
"""Earlier models of each route that stay open: one for each time that a key or an address was changed."""


def family_of(job: str) -> str:
    """Return the job that the user started. Its child jobs, named ``job~goal``, use its credential."""
    return job.partition("~")[0]


class MissingCredential(LookupError):
    """No credential for this route has been received."""


class OpenRoute:
    """Route of a job with its model, its breaker, and its outcome counters by generation of the breaker."""

    __slots__ = ("breaker", "connection", "counts", "model", "route")

    def __init__(
        self, route: str, connection: bytes, model: Model, counts: dict[int, OutcomeCounter], breaker: RouteBreaker
    ) -> None:
        self.route = route
        self.connection = connection
        self.model = model
        self.counts = counts
        self.breaker = breaker

    def count(self, generation: int) -> OutcomeCounter:
        """Return the counter of this generation, made at first use."""
        found = self.counts.get(generation)
        if found is None:
            found = self.counts[generation] = OutcomeCounter()
        return found


class ModelRegistry:
    """Models by family and route. ``make_model`` makes a model of an encoded connection; it is called once for each."""

    def __init__(
        self, make_model: Callable[[bytes], Model], counts: OutcomeCounters, breakers: RouteBreakers
    ) -> None:
        self._make_model = make_model
        self._counts = counts
        self._breakers = breakers
        self._connections: dict[str, bytes] = {}
        self.routes: dict[str, tuple[OpenRoute, ...]] = {}
        """Open routes of each family, by their numbers."""
        self._past: dict[str, list[Model]] = {}
        """Models of each family that none of its routes has any more, the latest last: calls may still be under way on
        them."""
        self._leaving: dict[int, Model] = {}
        """Models to be closed."""

    def __contains__(self, family: str) -> bool:
        return family in self.routes

    def add(self, family: str, connection: bytes) -> list[Model]:
        """Accept the connections of a family's routes. Returns the models that were newly made."""
        known = {door.connection: door.model for doors in self.routes.values() for door in doors}
        fresh: dict[bytes, Model] = {}
        doors = []
        for route, pool, alone in routes_of(connection):
            opens = what_opens(alone)
            model = known.get(opens) or fresh.get(opens)
            if model is None:
                model = fresh[opens] = self._make_model(alone)
            doors.append(OpenRoute(route, opens, model, self._counts.of(route, pool), self._breakers.of(route)))
        if self._connections.get(family) != connection:
            self._retire(family, {id(door.model) for door in doors})
        self._connections[family] = connection
        self.routes[family] = tuple(doors)
        return list(fresh.values())

    def _retire(self, family: str, used: set[int]) -> None:
        """Keep the models of a family that its new routes do not use, the latest ``PAST_MAX`` of them: a key is read
        anew every few minutes at most, and no call takes as long as that many renewals."""
        past = {id(model): model for model in self._past.pop(family, ())}
        past |= {id(door.model): door.model for door in self.routes.get(family, ())}
        kept = [model for key, model in past.items() if key not in used]
        most = PAST_MAX * len(used)
        elsewhere = {id(door.model) for name, doors in self.routes.items() if name != family for door in doors}
        self._leaving |= {id(model): model for model in kept[:-most] if id(model) not in elsewhere}
        if kept:
            self._past[family] = kept[-most:]

    def connection(self, family: str) -> bytes | None:
        """Return the encoded connection of a family; None if there is none."""
        return self._connections.get(family)

    def open_route(self, family: str, route: int) -> OpenRoute:
        """Return the route with this number. Raises ``MissingCredential``."""
        try:
            return self.routes[family][route]
        except LookupError:
            raise MissingCredential(family, route) from None

    async def drop(self, family: str) -> None:
        """Remove an ended family of jobs, and close the models that only it used."""
        self._connections.pop(family, None)
        gone = [*(door.model for door in self.routes.pop(family, ())), *self._past.pop(family, ())]
        kept = [route for doors in self.routes.values() for route in doors]
        names = {route.route for route in kept}
        self._counts.keep(names)
        self._breakers.keep(names)
        for model in gone:
            if not any(route.model is model for route in kept):
                self._leaving[id(model)] = model
        await self.let_go()

    async def let_go(self) -> None:
        """Close the models that are not used any more. If this is cancelled, ``close`` closes the rest."""
        while self._leaving:
            key, model = next(iter(self._leaving.items()))
            with contextlib.suppress(Exception):  # errors do not matter: the model is not used any more
                await model.close()
            self._leaving.pop(key, None)

    async def close(self) -> None:
        """Close all models."""
        for family in list(self.routes):
            await self.drop(family)
        await self.let_go()
