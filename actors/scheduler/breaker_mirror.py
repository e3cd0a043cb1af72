"""Mirror of the breakers: one pybreaker ``CircuitBreaker`` per subject, for its names, states and listeners.

Only the scheduler's commands move it, and nothing is read back: which breaker is open was decided as a value
(``policies.failures.breaker``). Calls never go through a breaker of pybreaker, since that holds its lock for the whole
guarded call, admits every call when half open, counts a cancellation as a failure, and counts only failures in a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import pybreaker

from policies.failures.breaker import BreakerState

MoveHandler = Callable[[str, str, str], None]
"""Listener: subject, earlier state and new state, as in ``BreakerState``."""

_log: Final = logging.getLogger("cortex.breakers")
_NEVER_BY_ITSELF: Final = 2**31
"""Threshold of failures, and seconds of timeout, large enough that pybreaker never changes a state by itself."""


class _MoveListener(pybreaker.CircuitBreakerListener):
    """Listener that passes a change of state on. An error of the receiver is logged, since it must not disturb the
    cortex.
    """

    def __init__(self, listener: MoveHandler) -> None:
        self._on_move = listener

    def state_change(
        self, cb: pybreaker.CircuitBreaker, old_state: object, new_state: pybreaker.CircuitBreakerState
    ) -> None:
        """Called by pybreaker inside its lock."""
        try:
            self._on_move(cb.name or "", getattr(old_state, "name", ""), new_state.name)
        except Exception:
            _log.exception("a listener of breakers failed")


class BreakerMirror:
    """Breakers of a cluster, by subject. Not thread safe, like the actor that holds it."""

    def __init__(self, *listener: MoveHandler) -> None:
        self._breakers: dict[str, pybreaker.CircuitBreaker] = {}
        self._listeners = [_MoveListener(one) for one in listener]

    def moved(self, subject: str, new: BreakerState) -> None:
        """Carry out one change of state. An unknown subject counts as closed before."""
        breaker = self._breakers.get(subject)
        if breaker is None:
            breaker = self._breakers[subject] = pybreaker.CircuitBreaker(
                fail_max=_NEVER_BY_ITSELF, reset_timeout=_NEVER_BY_ITSELF, name=subject, listeners=self._listeners
            )
        if breaker.current_state == new:
            return
        if new is BreakerState.OPEN:
            breaker.open()
        elif new is BreakerState.HALF_OPEN:
            breaker.half_open()
        else:
            breaker.close()

    def forget(self, subject: str) -> None:
        """Remove a subject whose job has ended, or whose node has left."""
        self._breakers.pop(subject, None)

    def listen(self, listener: MoveHandler) -> None:
        """Add a listener, called on every change from now on."""
        one = _MoveListener(listener)
        self._listeners.append(one)
        for breaker in self._breakers.values():
            breaker.add_listener(one)

    def state(self, subject: str) -> str:
        """Return the state of pybreaker: ``closed``, ``open`` or ``half-open``. An unknown subject is ``closed``."""
        breaker = self._breakers.get(subject)
        return BreakerState.CLOSED if breaker is None else str(breaker.current_state)

    def __iter__(self) -> Iterator[pybreaker.CircuitBreaker]:
        return iter(tuple(self._breakers.values()))

    def __len__(self) -> int:
        return len(self._breakers)
