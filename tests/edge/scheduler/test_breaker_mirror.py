"""The mirror in pybreaker: it hears what it is told, and never moves by itself."""

from __future__ import annotations

import logging

import pybreaker
import pytest

from actors.scheduler.breaker_mirror import BreakerMirror
from policies.failures.breaker import BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def test_the_words_are_pybreaker_s() -> None:
    assert set(BreakerState) == {pybreaker.STATE_CLOSED, pybreaker.STATE_OPEN, pybreaker.STATE_HALF_OPEN}


def test_listeners_hear_each_move_once_and_in_order() -> None:
    entries: list[tuple[str, str, str]] = []
    mirror = BreakerMirror(lambda *said: entries.append(said))
    for state in (OPEN, OPEN, HALF_OPEN, CLOSED):
        mirror.moved("tool:fetch", state)
    assert entries == [
        ("tool:fetch", "closed", "open"),
        ("tool:fetch", "open", "half-open"),
        ("tool:fetch", "half-open", "closed"),
    ]
    assert [(one.name, one.current_state) for one in mirror] == [("tool:fetch", "closed")]


def test_one_that_listens_later_hears_of_old_subjects_too() -> None:
    mirror = BreakerMirror()
    mirror.moved("node:a", OPEN)
    lines: list[str] = []
    mirror.listen(lambda subject, _old, new: lines.append(f"{subject} {new}"))
    mirror.moved("node:a", HALF_OPEN)
    mirror.moved("node:b", OPEN)
    assert lines == ["node:a half-open", "node:b open"]


def test_a_listener_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def raises(_subject: str, _old: str, _new: str) -> None:
        raise RuntimeError("told by a test")

    lines: list[str] = []
    mirror = BreakerMirror(raises, lambda _subject, _old, new: lines.append(new))
    with caplog.at_level(logging.ERROR):
        mirror.moved("a", OPEN)
    assert mirror.state("a") == "open"
    assert lines == ["open"]
    assert "told by a test" in caplog.text


def test_it_does_not_move_by_itself() -> None:
    """Somebody may hold one and call through it: neither failures nor time may move what only mirrors."""
    mirror = BreakerMirror()
    mirror.moved("a", OPEN)
    mirror.moved("a", CLOSED)
    (breaker,) = mirror
    for _ in range(50):
        with pytest.raises(ZeroDivisionError):
            breaker.call(lambda: 1 / 0)
    assert mirror.state("a") == "closed"
    mirror.moved("a", OPEN)
    with pytest.raises(pybreaker.CircuitBreakerError):
        breaker.call(lambda: None)
    assert mirror.state("a") == "open"


def test_what_is_forgotten_is_gone() -> None:
    mirror = BreakerMirror()
    mirror.moved("a", OPEN)
    mirror.forget("a")
    mirror.forget("a")
    assert (len(mirror), mirror.state("a")) == (0, "closed")
