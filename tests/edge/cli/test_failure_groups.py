"""Failed rows as text: one line each while they are few, else by kind and message, with when they began."""

from __future__ import annotations

from typing import Any

import pytest

from actors.cli.inspection import failure_groups
from actors.cli.inspection.failure_groups import FailureList, line_of
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


def test_a_program_gets_the_columns_that_it_knows() -> None:
    assert line_of(_failure(7)) == f"{'goal:7':<12} {'row r7':<20} turn       7   1 attempts  rejected: bad"


@pytest.mark.parametrize(
    "form",
    [
        "HTTP {}", "HTTP/1.1 {} for req_9", "HTTP Error {}", "http{}", "status {}", "status_code={}", "status code: {}", '"code": {},',
        "Error code: {} - overloaded", "the provider answered with status {} and no explanation", "{} Server Error: busy for url",
        "Server error '{} Service Unavailable' for url 'http://10.0.0.1:80/'", "{} Bad Gateway", "[Errno {}] fault", "exit status {}",
    ],
)  # fmt: skip
def test_messages_of_two_statuses_are_two_groups_and_of_two_rows_one(form: str) -> None:
    one, two = form.format(429), form.format(503)
    assert len(_listed(0, _failure(1, message=one), _failure(2, message=two))) == 2
    rows = [_failure(n, message=f"row {n} (req_{n}): {one}") for n in (1, 2, 429, 503)]
    assert len(_listed(0, *rows)) == 1


def test_a_status_beside_the_message_makes_a_group_and_is_shown() -> None:
    failures = [_failure(n, message="try again later") for n in (1, 2)]
    for each, status in zip(failures, (429, 529), strict=True):
        each["failure"]["status"] = status
    one, two = _listed(0, *failures)
    assert one.endswith("try again later (HTTP 429)") and two.endswith("(HTTP 529)")


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
