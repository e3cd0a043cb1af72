"""Places of a worker: which tools begin while slow ones hold most of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.worker.run_places import FIRST_MAX, RUNS_MAX, TOOL_RUNS_MAX, has_place


def filled(*wanted: int) -> list[int]:
    """Runs of tools that want so many, one after the other."""
    runs: Counter[int] = Counter()
    for tool, most in enumerate(wanted):
        while runs[tool] < most and has_place(runs[tool], runs.total()):
            runs[tool] += 1
    return [runs[tool] for tool in range(len(wanted))]


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        ((200,), [200]), ((900,), [TOOL_RUNS_MAX]), ((150, 5), [150, 5]), ((224, 900), [224, 28]),
        ((150, 150, 1), [150, 93, 1]), ((900, 900, 900, 900), [224, 28, 4, 1]),
    ],
)  # fmt: skip
def test_a_tool_gets_most_of_a_worker_and_leaves_room_for_the_next(wanted: tuple[int, ...], runs: list[int]) -> None:
    assert filled(*wanted) == runs


def test_as_many_tools_as_there_are_first_places_begin_at_once() -> None:
    runs = filled(*(900,) * (FIRST_MAX + 3))
    assert min(runs) >= 1 and sum(runs) <= RUNS_MAX + FIRST_MAX


def test_tools_that_want_places_in_turn_get_equally_many() -> None:
    runs: Counter[int] = Counter()
    for turn in range(900):
        runs[turn % 2] += has_place(runs[turn % 2], runs.total())
    assert (runs[0], runs[1]) == (120, 119)


def test_a_tool_with_its_own_bound_has_no_more() -> None:
    assert has_place(3, 3, 4) and not has_place(4, 4, 4)


@given(st.lists(st.tuples(st.integers(0, FIRST_MAX - 1), st.integers(-300, 300)), max_size=80))
def test_whatever_began_and_ended_a_tool_with_no_run_begins_at_once(steps: list[tuple[int, int]]) -> None:
    runs: Counter[int] = Counter()
    for tool, change in steps:
        for _ in range(max(0, change)):
            runs[tool] += has_place(runs[tool], runs.total())
        runs[tool] -= min(runs[tool], max(0, -change))
        assert runs.total() <= RUNS_MAX + FIRST_MAX and runs[tool] <= TOOL_RUNS_MAX
        busy = sum(count > 0 for count in runs.values())
        assert has_place(0, runs.total()) or busy > FIRST_MAX - 1
