"""A provider that has become slow answers each call and fails none: told by what calls took before."""

from __future__ import annotations

from typing import Any

import pytest

from actors.monitoring.call_durations import CALLS_MIN, WINDOW_S, CallDurations


def told(*phases: tuple[float, int, float], **other: Any) -> list[str]:
    """Return the words at the end of each phase: (seconds, attempts in flight, seconds of an attempt), looked at twice
    a second."""
    durations, at_s, ended, words = CallDurations(), 500.0, 0.0, []
    for length_s, in_flight, took_s in phases:
        text = ""
        for _ in range(int(length_s * 2)):
            facts = {"outcome": "running", "in_flight": in_flight, "attempts": int(ended) + in_flight, "batches": []}
            text = durations.words(facts | other, at_s)
            at_s += 0.5
            ended += 0.5 * in_flight / took_s
        words.append(text)
    return words


@pytest.mark.parametrize(
    ("phases", "last"),
    [
        (((60, 4, 0.5), (60, 4, 5.0)), "calls are slow: one takes 5.0 s, where it took 0.5 s"),
        (((60, 4, 0.5), (60, 4, 2.0)), ""),  # four times as long
        (((60, 4, 0.5), (60, 100, 0.5)), ""),  # more at once, none slower
        (((60, 4, 5.0), (60, 4, 0.5)), ""),  # it became quick
        (((60, 4, 0.5), (60, 4, 5.0), (60, 4, 0.5)), ""),  # it is well again
        (((60, 4, 0.5), (60, 4, 1_000.0)), ""),  # too few ended: a hanging provider is told by its silence
        (((60, 4, 0.5), (60, 0, 1.0)), ""),  # nothing is in flight: a pace, a breaker, a block
        (((WINDOW_S - 1, 4, 0.5),), ""),
        (((60, 4, 0.5), (10, 4, 5.0)), ""),  # the window still holds quick ones
    ],
)
def test_slow_calls_are_told_by_the_quickest_half_minute(phases: tuple[Any, ...], last: str) -> None:
    assert told(*phases)[-1] == last


@pytest.mark.parametrize("other", [{"batches": [{"number": 1}]}, {"outcome": "partial"}])
def test_neither_batches_nor_ended_jobs_are_slow(other: dict[str, Any]) -> None:
    assert told((60, 4, 0.5), (60, 4, 5.0), **other) == ["", ""]


def test_few_calls_are_slow_by_chance() -> None:
    took_s = WINDOW_S / (CALLS_MIN - 1)
    assert told((60, 1, 0.1), (60, 1, took_s))[-1] == ""


def test_calls_whose_replies_wait_for_the_journal_are_not_slow() -> None:
    assert told((60, 4, 0.5), (60, 4, 5.0), unsaved_s=20.0) == ["", ""]
