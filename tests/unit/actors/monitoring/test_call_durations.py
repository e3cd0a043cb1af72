"""A provider that has become slow answers each call and fails none: told by what calls took before."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from actors.monitoring.call_durations import CALLS_MIN, WINDOW_S, CallDurations


class Phase(NamedTuple):
    """Some time of a job, looked at twice a second."""

    length_s: float
    in_flight: int
    took_s: float
    """Seconds of an attempt."""
    output_tokens: int = 100
    input_tokens: int = 1_000
    fails: float = 0.0
    """Share of the attempts that fail."""
    seen: float = 1.0
    """Share of the looks that find attempts in flight; the others find none."""


def looks(*phases: Phase, **other: Any) -> list[list[str]]:
    """Return the words at each look, by phase."""
    durations, chance, at_s, words = CallDurations(), random.Random(1), 500.0, []
    answered, failed, written, read = 0.0, 0.0, 0.0, 0.0
    for phase in phases:
        words.append([])
        for _ in range(int(phase.length_s * 2)):
            in_flight = phase.in_flight if chance.random() < phase.seen else 0
            facts = {
                "outcome": "running", "in_flight": in_flight, "attempts": int(answered) + int(failed) + in_flight,
                "paid_calls": int(answered), "failures": {"transient": int(failed)}, "output_tokens": int(written),
                "input_tokens": int(read), "cache_read_tokens": 0, "cache_creation_tokens": int(read), "batches": [],
            }  # fmt: skip
            words[-1].append(durations.words(facts | other, at_s))
            at_s += 0.5
            ended = 0.5 * phase.in_flight * phase.seen / phase.took_s
            failed += ended * phase.fails
            answered += ended * (1 - phase.fails)
            written += ended * (1 - phase.fails) * phase.output_tokens
            read += ended * (1 - phase.fails) * phase.input_tokens / 2
    return words


def told(*phases: tuple[Any, ...], **other: Any) -> list[str]:
    """Return the words at the end of each phase."""
    return [words[-1] for words in looks(*(Phase(*each) for each in phases), **other)]


SLOW = "calls are slow: one takes 5.0 s, where it took 0.5 s"


@pytest.mark.parametrize(
    ("phases", "last"),
    [
        (((60, 4, 0.5), (60, 4, 5.0)), SLOW),
        (((600, 4, 0.5), (600, 4, 5.0)), SLOW),
        (((600, 4, 0.5), (700, 4, 5.0)), ""),  # by now the usual
        (((600, 4, 0.5, 0), (60, 4, 5.0, 0)), SLOW),  # its provider reports no output tokens
        (((600, 4, 0.5, 0, 0), (60, 4, 5.0, 0, 0)), SLOW),  # and no usage at all
        (((60, 4, 0.5), (60, 4, 2.0)), ""),  # four times as long
        (((60, 4, 0.5), (60, 100, 0.5)), ""),  # more at once, none slower
        (((60, 4, 5.0), (60, 4, 0.5)), ""),  # it became quick
        (((60, 4, 0.5), (60, 4, 5.0), (60, 4, 0.5)), ""),  # it is well again
        (((60, 4, 0.5), (60, 4, 1_000.0)), ""),  # too few ended: a hanging provider is told by its silence
        (((60, 4, 0.5), (60, 0, 1.0)), ""),  # nothing is in flight: a pace, a breaker, a block
        (((WINDOW_S - 1, 4, 0.5),), ""),
        (((60, 4, 0.5), (10, 4, 5.0)), ""),  # the window still holds quick ones
        (((60, 4, 0.5), (60, 4, 5.0, 100, 1_000, 0.3)), ""),  # failures are told as such
    ],
)
def test_slow_calls_are_told_by_the_median_half_minute(phases: tuple[Any, ...], last: str) -> None:
    assert told(*phases)[-1] == last


def test_a_provider_ten_times_slower_is_told_within_a_window_and_until_it_is_quick_again() -> None:
    before, slow, after = looks(Phase(600, 8, 1.0), Phase(300, 8, 10.0), Phase(300, 8, 1.0))
    assert not any(before)
    assert all(slow[int(2 * WINDOW_S) :]) and not any(after[int(2 * WINDOW_S) :])


def test_quick_failures_at_the_start_make_no_later_call_slow() -> None:
    refused, well = looks(Phase(40, 1, 0.02, fails=1.0, seen=0.04), Phase(1_200, 4, 3.0))
    assert not any(refused) and not any(well)


@pytest.mark.parametrize("seed", range(5))
def test_short_calls_that_few_looks_find_in_flight_are_not_slow(seed: int) -> None:
    """Calls of 0.1 s, one a second on average, one at a time or several by chance."""
    chance, durations, said, begun, at_s = random.Random(seed), CallDurations(), [], [0.0], 0.0
    while begun[-1] < 1_800:
        begun.append(begun[-1] + chance.expovariate(1.0))
    so_far = 0
    while at_s < 1_800:
        while begun[so_far] <= at_s:
            so_far += 1
        in_flight = sum(at_s < each + 0.1 for each in begun[max(0, so_far - 9) : so_far])
        answered = so_far - in_flight
        facts = {
            "outcome": "running", "in_flight": in_flight, "attempts": so_far, "paid_calls": answered, "failures": {},
            "output_tokens": 9 * answered, "input_tokens": 9 * answered, "cache_read_tokens": 0,
            "cache_creation_tokens": 0,
        }  # fmt: skip
        said.append(durations.words(facts, at_s))
        at_s += 0.5
    assert not any(said)


@pytest.mark.parametrize(
    "later",
    [
        Phase(900, 4, 9.0, output_tokens=600),  # longer answers
        Phase(900, 4, 9.0, input_tokens=6_000),  # longer prompts
    ],
)
def test_rows_sorted_from_short_to_long_are_not_slow(later: Phase) -> None:
    short, long = looks(Phase(300, 4, 1.5), later)
    assert not any(short) and not any(long)


@pytest.mark.parametrize("other", [{"batches": [{"number": 1}]}, {"outcome": "partial"}])
def test_neither_batches_nor_ended_jobs_are_slow(other: dict[str, Any]) -> None:
    assert told((60, 4, 0.5), (60, 4, 5.0), **other) == ["", ""]


def test_few_calls_are_slow_by_chance() -> None:
    took_s = WINDOW_S / (CALLS_MIN - 1)
    assert told((60, 1, 0.1), (60, 1, took_s))[-1] == ""


def test_calls_whose_replies_wait_for_the_journal_are_not_slow() -> None:
    assert told((60, 4, 0.5), (60, 4, 5.0), unsaved_s=20.0) == ["", ""]
