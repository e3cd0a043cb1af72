"""What a branch was given to work with: for each family of jobs, the models of its routes. Secrets stay inside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from actors.branch.outcome_counters import OutcomeCounter, OutcomeCounters
from actors.ports.model import Model
from actors.routing.model_factory import routes_of, what_opens


def family_of(job: str) -> str:
    """The job that a user started: its child jobs, named ``job~goal``, work with its credential."""
    return job.partition("~")[0]


class MissingCredential(LookupError):
    """Nobody has brought what opens this route."""


class OpenRoute:
    """One route of a job, open: the model behind it, and what is counted by the generation of its breaker."""

    __slots__ = ("connection", "counts", "model", "route")

    def __init__(self, route: str, arming: bytes, model: Model, counts: dict[int, OutcomeCounter]) -> None:
        self.route = route
        self.connection = arming
        self.model = model
        self.counts = counts

    def count(self, generation: int) -> OutcomeCounter:
        """Where attempts of this generation are counted; ``counts`` has those that were asked for already."""
        found = self.counts.get(generation)
        if found is None:
            found = self.counts[generation] = OutcomeCounter()
        return found


class ModelRegistry:
    """``make_model`` turns an arming into a model; called once for each."""

    def __init__(self, make_model: Callable[[bytes], Model], counts: OutcomeCounters) -> None:
        self._make_model = make_model
        self._counts = counts
        self._connections: dict[str, bytes] = {}
        self._doors: dict[str, tuple[OpenRoute, ...]] = {}
        self._past: dict[str, list[OpenRoute]] = {}
        """What was given before: calls may still be under way through it."""
        self._leaving: dict[int, Model] = {}
        """Models that are to be closed."""

    def __contains__(self, family: str) -> bool:
        return family in self._doors

    def add(self, family: str, arming: bytes) -> list[Model]:
        """Take what opens the routes of a family of jobs. The models that were made for it."""
        known = {door.connection: door.model for doors in self._doors.values() for door in doors}
        fresh: dict[bytes, Model] = {}
        doors = []
        for route, pool, alone in routes_of(arming):
            opens = what_opens(alone)
            model = known.get(opens) or fresh.get(opens)
            if model is None:
                model = fresh[opens] = self._make_model(alone)
            doors.append(OpenRoute(route, opens, model, self._counts.of(route, pool)))
        if self._connections.get(family) != arming:
            self._past.setdefault(family, []).extend(self._doors.get(family, ()))
        self._connections[family] = arming
        self._doors[family] = tuple(doors)
        return list(fresh.values())

    def connection(self, family: str) -> bytes | None:
        """What was given for a family."""
        return self._connections.get(family)

    def open_route(self, family: str, route: int) -> OpenRoute:
        """The route at this place. Raises ``MissingCredential``."""
        try:
            return self._doors[family][route]
        except LookupError:
            raise MissingCredential(family, route) from None

    async def drop(self, family: str) -> None:
        """A family of jobs has ended: what it alone used is closed."""
        self._connections.pop(family, None)
        gone = [*self._doors.pop(family, ()), *self._past.pop(family, ())]
        kept = [door for doors in self._doors.values() for door in doors]
        self._counts.keep({door.route for door in kept})
        for model in (door.model for door in gone):
            if not any(door.model is model for door in kept):
                self._leaving[id(model)] = model
        await self._let_go()

    async def _let_go(self) -> None:
        """Close what nobody needs any more. What is under way when this is cut short is closed by ``close``."""
        while self._leaving:
            key, model = next(iter(self._leaving.items()))
            with contextlib.suppress(Exception):  # whatever it is, nobody needs it any more
                await model.close()
            self._leaving.pop(key, None)

    async def close(self) -> None:
        """Close all."""
        for family in list(self._doors):
            await self.drop(family)
        await self._let_go()
