"""The breakers' mirror: one pybreaker ``CircuitBreaker`` a subject, for its names, states and listeners.

It is moved only by the scheduler's commands, and nothing is read back: what is open was decided as a value
(``policies.failures.breaker``). Calls never go through a breaker of pybreaker. It holds its lock for the whole guarded
call, admits everyone when half open, takes a cancellation for a failure, and counts failures in a row only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import pybreaker

from policies.failures.breaker import BreakerState

Heard = Callable[[str, str, str], None]
"""Subject, the state it left, the state it is in now; in the words of ``BreakerState``."""

_log: Final = logging.getLogger("cortex.breakers")
_NEVER_BY_ITSELF: Final = 2**31
"""Failures that pybreaker would count, and seconds that it would wait, before it moved without being told."""


class _MoveListener(pybreaker.CircuitBreakerListener):
    """Passes a move on. Whoever listens must not disturb the cortex, so that what it raises is logged."""

    def __init__(self, listener: Heard) -> None:
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
    """All breakers of a cluster, by subject. Not thread safe by itself, like the actor that holds it."""

    def __init__(self, *listener: Heard) -> None:
        self._breakers: dict[str, pybreaker.CircuitBreaker] = {}
        self._listeners = [_MoveListener(one) for one in listener]

    def moved(self, subject: str, new: BreakerState) -> None:
        """Carry out one move. A subject unseen so far was closed."""
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
        """It is no subject any more: its job has ended, or its node has left."""
        self._breakers.pop(subject, None)

    def listen(self, listener: Heard) -> None:
        """Tell this one too, of every move from now on."""
        one = _MoveListener(listener)
        self._listeners.append(one)
        for breaker in self._breakers.values():
            breaker.add_listener(one)

    def state(self, subject: str) -> str:
        """``closed``, ``open`` or ``half-open``, as pybreaker has it."""
        breaker = self._breakers.get(subject)
        return BreakerState.CLOSED if breaker is None else str(breaker.current_state)

    def __iter__(self) -> Iterator[pybreaker.CircuitBreaker]:
        return iter(tuple(self._breakers.values()))

    def __len__(self) -> int:
        return len(self._breakers)
