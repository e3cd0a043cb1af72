"""Silence of a provider that hangs: told when the oldest call waits much longer than calls took before."""

from __future__ import annotations

from typing import Any

import pytest

from actors.monitoring.stall_detector import UNSAVED_S, SilenceClock, StallDetector, silence_words, unsaved_words

BEGAN_S = 1_000.0


def facts(**other: Any) -> dict[str, Any]:
    """Four calls in flight since the 20th second; before that 80 calls ended, of 1 s each."""
    return {
        "outcome": "running", "in_flight": 4, "oldest_asked_at_s": BEGAN_S + 20, "began_at_s": BEGAN_S, "calls": 84,
        "reused_calls": 0, "batches": [], "epoch": 1, "routes": (), **other,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("other", "after_s", "told"),
    [
        ({}, 9.0, ""),
        ({}, 10.0, "no reply for 10.0 s to the oldest of 4 calls in flight; a call took 1.0 s before"),
        ({"calls": 8}, 50.0, ""),  # 20 s each: 50 s are not long
        ({"calls": 8}, 100.0, "no reply for 1 min 40 s to the oldest of 4 calls in flight; a call took 20.0 s before"),
        ({"calls": 4}, 10.0, "no reply for 10.0 s to the oldest of 4 calls in flight"),  # none has ended yet
        ({"in_flight": 1, "calls": 1}, 12.0, "no reply for 12.0 s to the call in flight"),
        ({"epoch": 2, "began_at_s": 0.0, "oldest_asked_at_s": 1e6}, 299.0, ""),  # it rested for days
        ({"epoch": 2, "began_at_s": 0.0, "oldest_asked_at_s": 1e6}, 300.0, "no reply for 5 min 00 s to the oldest of 4 calls in flight"),
        ({"in_flight": 0, "oldest_asked_at_s": 0.0}, 99.0, ""),
        ({"batches": [{"number": 1}]}, 99.0, ""),
        ({"outcome": "partial"}, 99.0, ""),
    ],
)  # fmt: skip
def test_the_silence_is_told_by_what_calls_took_before(other: dict[str, Any], after_s: float, told: str) -> None:
    found = facts(**other)
    assert silence_words(found, after_s) == told


def test_it_is_logged_once_and_so_is_its_end() -> None:
    seen, clock, lines = StallDetector(), SilenceClock(), []
    for after_s in (0.0, 11.0, 12.0):  # by the monotonic clock: that of the day may be set meanwhile
        lines += seen.news(facts(), 0.0, clock.words(facts(), 500.0 + after_s))
    other = facts(oldest_asked_at_s=BEGAN_S + 33)
    lines += seen.news(other, 0.0, clock.words(other, 513.0))
    assert len(lines) == 2
    assert lines[0].startswith("waits: no reply for 11.0 s to the oldest of 4 calls in flight")
    assert lines[1] == "calls are answered again: the job goes on"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"unsaved_s": UNSAVED_S - 0.1}, ""),
        (
            {"unsaved_s": 85.0},
            "the disk or database of the journal has not answered for 1 min 25 s: replies wait to be saved",
        ),
        ({"unsaved_s": 85.0, "outcome": "partial"}, ""),
        ({}, ""),
    ],
)
def test_replies_that_wait_for_the_journal_are_no_silence_of_the_provider(other: dict[str, Any], told: str) -> None:
    assert unsaved_words(facts(**other)) == told
