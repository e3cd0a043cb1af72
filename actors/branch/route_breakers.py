"""Breakers at a branch: a pybreaker ``CircuitBreaker`` for each route stands before the send.

Whether a breaker is open is decided by the scheduler (``policies.failures.breaker``). Its decisions come with the
answers to the branch's reports and move the storage of pybreaker's breaker; pybreaker itself moves nothing. Three
properties of pybreaker 1.4 are the reason (``src/pybreaker/__init__.py``): it counts consecutive failures only, half
open it admits every call, and it holds its lock during the guarded call. So only the admission of a call is guarded,
which takes microseconds, and a call carries the generation of the breaker under which the scheduler granted it.

A call that is not admitted raises ``CircuitBreakerError`` and is given back to its channel unsent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import pybreaker
from pybreaker import CircuitBreakerError

from cortex.scheduler.reports import BreakerStanding, ReportAnswer
from cortex.scheduler.state import LEASE_S
from policies.failures.breaker import BreakerState

__all__ = ["KNOWN_S", "CircuitBreakerError", "RouteBreaker", "RouteBreakers"]

KNOWN_S: Final = LEASE_S
"""Seconds for which a decision of the scheduler counts without another word of it: as long as a lease, after which a
channel begins nothing either. A call that comes later was granted by a scheduler that this branch has not heard, so
that it is sent."""
WAIT_LEAST_S: Final = 0.1
"""Least seconds that a message batch waits for an open breaker."""
_NEVER_BY_ITSELF: Final = 2**31
"""Threshold of failures and of successes, and seconds of timeout, that pybreaker never reaches."""

_log = logging.getLogger("cortex.branch")


class DecidedStorage(pybreaker.CircuitBreakerStorage):
    """Storage of one breaker: the state that the scheduler decided. pybreaker reads it and can change nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.decided = BreakerState.CLOSED

    @property
    def state(self) -> str:
        """State that the scheduler decided."""
        return self.decided

    @state.setter
    def state(self, state: str) -> None:
        """Ignore what pybreaker concludes."""

    @property
    def counter(self) -> int:
        """Number of failures: always 0, since they are counted elsewhere."""
        return 0

    @property
    def success_counter(self) -> int:
        """Number of good probes: always 0, since they are counted elsewhere."""
        return 0

    @property
    def opened_at(self) -> datetime:
        """Time of the opening: always now, so that pybreaker never ends the stay by its own clock."""
        return datetime.now(UTC)

    @opened_at.setter
    def opened_at(self, at: datetime) -> None:
        """Ignore the time."""


class MoveLog(pybreaker.CircuitBreakerListener):
    """Listener that logs each move of a breaker as its branch hears of it."""

    def __init__(self, branch: str) -> None:
        self._branch = branch

    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        """Log the move. Called by pybreaker inside its lock."""
        was = old_state.name if old_state is not None else ""
        fields = {
            "event": "breaker.heard", "subject": f"route:{cb.name}", "was": was, "now": new_state.name,
            "branch": self._branch,
        }  # fmt: skip
        _log.info("a branch heard that a breaker moved", extra={"fields": fields})


class RouteBreaker:
    """Breaker of one route at one branch. Not thread safe, like the branch that holds it."""

    __slots__ = ("_clock", "_known_until_s", "_storage", "_until_s", "breaker", "generation", "shut")

    def __init__(self, route: str, clock: Callable[[], float], listener: pybreaker.CircuitBreakerListener) -> None:
        self._clock = clock
        self._storage = DecidedStorage(route)
        self.breaker = pybreaker.CircuitBreaker(
            fail_max=_NEVER_BY_ITSELF, reset_timeout=_NEVER_BY_ITSELF, success_threshold=_NEVER_BY_ITSELF,
            exclude=[CircuitBreakerError], listeners=[listener], state_storage=self._storage, name=route,
        )  # fmt: skip
        self.shut = False
        """False while closed, as far as known: the one thing that the path of a call reads."""
        self.generation = 0
        """Generation of the latest move that was heard."""
        self._until_s = self._known_until_s = 0.0

    @property
    def state(self) -> str:
        """State as pybreaker has it: ``closed``, ``open`` or ``half-open``."""
        return self.breaker.state.name

    def again_s(self) -> float:
        """Return the seconds until the open breaker is probed, as far as known; 0 if it is not open."""
        return max(0.0, self._until_s - self._clock()) if self._storage.decided is BreakerState.OPEN else 0.0

    def wait_s(self) -> float:
        """Return the seconds that a message batch must wait for the open breaker; 0: it may be submitted."""
        if not self.shut:
            return 0.0
        try:
            self.admit(None)
        except CircuitBreakerError:
            return max(WAIT_LEAST_S, self.again_s())
        return 0.0

    def admit(self, generation: int | None) -> None:
        """Let a call pass that was granted in this generation. Raises ``CircuitBreakerError`` if it must not be sent.

        None: the call carries no generation, as a message batch does; it passes unless the breaker is open. Needed only
        while ``shut``.
        """
        if self._clock() >= self._known_until_s:
            self._move(BreakerState.CLOSED)
        elif generation is not None and generation > self.generation:
            self.generation = generation  # the grant is a later word of the scheduler than the last answer
            self._move(BreakerState.HALF_OPEN)
        self.breaker.call(self._probe, generation)

    def _probe(self, generation: int | None) -> None:
        """Pass a probe, which the scheduler counted when it granted it. Half open, pybreaker would admit all."""
        if self.shut and generation is not None and generation < self.generation:
            raise CircuitBreakerError("the breaker is half open, and its probes are out")

    def told(self, standing: BreakerStanding | None, heard_s: float, anew: bool) -> None:
        """Take the scheduler's word; None: the breaker is closed. ``anew``: of another scheduler than the last.

        A word that is older than the grant of a call that came meanwhile changes nothing.
        """
        self._known_until_s = heard_s + KNOWN_S
        if standing is None:
            self._move(BreakerState.CLOSED)
        elif anew or not self.shut or standing.generation >= self.generation:
            self.generation, self._until_s = standing.generation, heard_s + standing.for_s
            self._move(standing.state)

    def _move(self, state: BreakerState) -> None:
        self.shut = state is not BreakerState.CLOSED
        self._storage.decided = state
        _ = self.breaker.state  # pybreaker notices that its storage has moved, and tells its listeners


class RouteBreakers:
    """Breakers of the routes of one branch. ``clock``: monotonic seconds."""

    def __init__(self, branch: str, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.listener = MoveLog(branch)
        self._routes: dict[str, RouteBreaker] = {}
        self._cortex = ""
        self._said: dict[str, BreakerStanding] = {}
        self._heard_s = float("-inf")

    def of(self, route: str) -> RouteBreaker:
        """Return the breaker of a route; look it up once, not for each call."""
        found = self._routes.get(route)
        if found is None:
            found = self._routes[route] = RouteBreaker(route, self._clock, self.listener)
            if route in self._said and self._clock() < self._heard_s + KNOWN_S:
                found.told(self._said[route], self._heard_s, anew=True)
        return found

    def heard(self, answer: ReportAnswer) -> None:
        """Take the scheduler's answer to a report. A restarted scheduler that does not know yet says nothing."""
        if answer.breakers is None:
            return
        anew, self._cortex = answer.cortex != self._cortex, answer.cortex
        self._heard_s = self._clock()
        if not (answer.breakers or self._said or anew):
            return
        self._said = {standing.route: standing for standing in answer.breakers}
        for route, breaker in self._routes.items():
            breaker.told(self._said.get(route), self._heard_s, anew)

    def keep(self, routes: set[str]) -> None:
        """Remove the other routes."""
        for route in [name for name in self._routes if name not in routes]:
            del self._routes[route]
