"""Failed rows as text: one line each while they are few, else by kind and message, with when they began."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cli.inspection import failure_groups
from actors.cli.inspection.failure_groups import FailureList
from actors.common.units import clock

AT_S = 1_790_000_000.0


def _failure(n: int, kind: str = "rejected", message: str = "bad", at_s: float = AT_S) -> dict[str, Any]:
    failure = {"kind": kind, "message": message}
    return {"goal": n, "row": f"r{n}", "turn": n, "at_s": at_s, "attempts": 1, "failure": failure}


def _listed(lines_max: int, *failures: dict[str, Any]) -> list[str]:
    found = FailureList(lines_max)
    for each in failures:
        found.take(each)
    return list(found.lines())


def test_few_failures_have_a_line_each_with_its_time() -> None:
    (first, _) = _listed(2, _failure(1), _failure(2))
    assert first.split()[:3] == ["goal:1", "row", "r1"] and first.endswith("1 attempts  rejected: bad")
    assert ":20" in first, "the time"


def test_many_are_grouped_the_largest_first_with_first_and_last_time_and_an_example() -> None:
    rejected = [_failure(n, message=f"messages.{n}: empty (req_{n}a)", at_s=AT_S + n) for n in range(100, 400)]
    cut = [_failure(n, "cut", "at its bound", AT_S) for n in range(3)]
    first, last = _listed(302, *cut, *rejected)
    assert first.split()[0] == "300" and f"{clock(AT_S + 100)} to {clock(AT_S + 399)}" in first
    assert "e.g. row r100" in first and first.endswith("rejected: messages.100: empty (req_100a)")
    assert last.split()[0] == "3" and last.endswith("cut: at its bound")


def test_messages_of_all_kinds_take_no_more_than_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "GROUPS_MAX", 3)
    words = ["ab", "cd", "ef", "gh", "ij"]
    shown = _listed(1, *(_failure(n, message=word) for n, word in enumerate(words)))
    assert len(shown) == 4 and sum(int(line.split()[0]) for line in shown) == 5
    assert shown[0].endswith("other messages") and shown[0].split()[0] == "2"


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_that_was_refused_before_sending_has_no_goal(count: int) -> None:
    refused = _failure(0, "", "no messages")
    assert all("goal:0" not in line for line in _listed(1, *[refused] * count))
