"""The progress bar: what it says, by a clock of the test's; on a terminal one line, whatever the width."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from actors.api.progress_bar import BAR_LEAST, ProgressBar, bar_width, fitted, parts


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def _facts(done: int, **more: Any) -> dict[str, Any]:
    return {
        "job": "j", "results": done, "calls": done, "rows_expected": 0, "cost_usd": None, "reused_calls": 0,
        "rows_failed": 0, "rows_failed_by_kind": {}, "rows_refused": 0, "failures": {}, "waits": "",
    } | more  # fmt: skip


def _line(seconds: float, facts: list[dict[str, Any]], rows: int | None = 1000) -> str:
    clock = Clock()
    bar = ProgressBar(io.StringIO(), rows, clock=clock)
    text = ""
    for each in facts:
        text = bar.line(each)
        clock.now_s += seconds
    return text


@pytest.mark.parametrize(
    ("facts", "rows", "said"),
    [
        ([_facts(0), _facts(50)], 1000, "j: 50/1,000 rows, 5.0/s, 3m10s left"),
        ([_facts(0), _facts(50)], None, "j: 50 rows, 5.0/s"),
        ([_facts(0, calls=0), _facts(0, calls=1)], None, "j: 1 call, 0.1/s"),
        ([_facts(1000), _facts(1000)], 1000, "j: 1,000/1,000 rows, 0.0/s"),
        ([_facts(900), _facts(950, reused_calls=900)], 1000, "j: 950/1,000 rows, 5.0/s, 0m10s left, 900 reused"),
        ([_facts(7, cost_usd=0.25)], None, "j: 7 rows, 0.0/s, $0.25"),
        ([_facts(7, cost_usd=0.25, max_cost_usd=5.0)], None, "j: 7 rows, 0.0/s, $0.25 of $5"),
        (
            [_facts(7, rows_failed=3, rows_failed_by_kind={"malformed": 2}, rows_refused=1)], None,
            "j: 7 rows, 0.0/s, 3 failed (2 malformed, 1 refused before sending)",
        ),
        (
            [_facts(7, failures={"throttled": 12, "timed_out": 1}, waits="paced")], None,
            "j: 7 rows, 0.0/s, attempts failed: 12 throttled, 1 timed_out, paced",
        ),
        ([_facts(7, unarmed=["branch:1"])], None, "j: 7 rows, 0.0/s, waiting for a key"),
    ],
)  # fmt: skip
def test_the_line(facts, rows, said):
    assert _line(10.0, facts, rows) == said


def test_a_line_every_five_seconds_where_no_terminal_is_and_only_if_something_changed():
    clock, out = Clock(), io.StringIO()
    bar = ProgressBar(out, 1000, clock=clock)
    for second in range(21):
        bar.show(_facts(min(second, 12)))
        clock.now_s += 1.0
    lines = out.getvalue().splitlines()
    assert [line.split(" rows")[0] for line in lines] == ["j: 5/1,000", "j: 10/1,000", "j: 12/1,000"]
    assert all("\x1b" not in line for line in lines)


def test_the_same_as_json():
    clock, out = Clock(), io.StringIO()
    bar = ProgressBar(out, 1000, form="json", clock=clock)
    bar.show(_facts(0))
    clock.now_s += 10
    bar.show(_facts(50, failures={"throttled": 2}, waits="paced"))
    reported = json.loads(out.getvalue())["progress"]
    assert reported == {
        "job": "j", "unit": "rows", "done": 50, "expected": 1000, "rate_per_s": 5.0, "left_s": 190.0, "cost_usd": None,
        "max_cost_usd": None, "reused_calls": 0, "rows_failed": 0, "rows_failed_by_kind": {},
        "attempts_failed": {"throttled": 2}, "waits": "paced", "deadline_at_risk": None, "projected_end_s": None,
    }  # fmt: skip


FULL = _facts(
    123_456, cost_usd=1.5, max_cost_usd=20.0, reused_calls=99_000, rows_failed=31, rows_failed_by_kind={"malformed": 31},
    failures={"throttled": 1200, "overloaded": 44}, waits="the breaker of claude-haiku-4-5 is open; probed at 14:02:11",
)  # fmt: skip


@pytest.mark.parametrize("width", [10, 20, 30, 40, 60, 79, 100, 160, 300])
def test_what_does_not_fit_is_left_out_and_nothing_wraps(width):
    clock = Clock()
    bar = ProgressBar(io.StringIO(), 1_000_000, clock=clock)
    bar.facts(FULL)
    clock.now_s += 5.0
    text = fitted(parts(bar.facts(FULL)), width)
    assert len(text) <= width
    assert text.startswith("123,456/1"[: width - 1])


def test_in_little_room_how_far_how_fast_and_why_it_waits_come_first():
    facts = ProgressBar(io.StringIO(), 1_000_000, clock=Clock()).facts(FULL)
    assert fitted(parts(facts), 90) == (
        "123,456/1,000,000 rows, 0.0/s, the breaker of claude-haiku-4-5 is open; probed at 14:02:11"
    )
    assert "attempts failed" not in fitted(parts(facts), 100)
    assert fitted(parts(facts), 400).endswith(", j")


def test_on_eighty_columns_failed_rows_are_told_beside_rate_time_and_cost():
    clock = Clock()
    bar = ProgressBar(io.StringIO(), 20_000, clock=clock)
    facts = _facts(18_000, cost_usd=1.82, max_cost_usd=5.0, rows_failed=12, rows_failed_by_kind={"malformed": 12},
                   waits="the pool's limit", failures={"overloaded": 400})  # fmt: skip
    bar.facts(facts)
    clock.now_s += 10.0
    text = fitted(parts(bar.facts(facts | {"results": 19_700})), 79 - bar_width(79) - 1)
    assert text == "19,700/20,000 rows, 170/s, 0m01s left, $1.82 of $5, 12 failed"


@pytest.mark.parametrize(("width", "bar"), [(20, 0), (40, 0), (48, 0), (49, BAR_LEAST), (60, 12), (80, 16), (200, 24)])
def test_the_bar_itself_gives_way_to_the_figures(width, bar):
    assert bar_width(width) == bar


@pytest.mark.parametrize("columns", [20, 40, 80, 160])
@pytest.mark.parametrize("colour", [True, False])
def test_on_a_terminal_it_stays_one_line(monkeypatch, columns, colour):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    bar = ProgressBar(out, 1_000_000, clock=Clock())
    bar.show(FULL)
    bar.show(FULL | {"results": 200_000})
    bar.print_line("j: it stays")
    shown = out.getvalue()
    bar.close()
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "\n")
    lines = [line for line in drawn.split("\n") if line.strip()]
    assert all(len(line) < columns for line in lines), lines
    assert "j: it stays" in lines
    coloured = re.search(r"\x1b\[[0-9;]*3[0-9]", shown) is not None
    assert not coloured or (colour and columns > 48)
    assert out.getvalue().endswith("\x1b[?25h") or "\x1b[?25h" in out.getvalue()  # the cursor is back


def test_a_terminal_that_cannot_be_written_over_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    clock, out = Clock(), Terminal()
    bar = ProgressBar(out, 1000, clock=clock)
    bar.show(_facts(0))
    clock.now_s += 6
    bar.show(_facts(6))
    assert out.getvalue() == "j: 6/1,000 rows, 1.0/s, 16m34s left\n"


@pytest.mark.parametrize(("form", "elsewhere", "count"), [("json", True, 2), ("json", False, 0), ("text", True, 0)])
def test_warnings_of_failed_rows_stand_in_the_json_of_a_command_whose_job_logs_elsewhere(form, elsewhere, count):
    out, clock = io.StringIO(), Clock()
    bar = ProgressBar(out, 1000, form=form, clock=clock, elsewhere=elsewhere)
    for failed in (0, 20, 40):
        bar.show(FULL | {"rows_succeeded": 10 * failed // 4, "rows_failed": failed, "rows_failed_by_kind": {"cut": failed}})
    found = [line for line in out.getvalue().splitlines() if "job.rows_failing" in line]
    assert len(found) == count and all('"level":"warning"' in line for line in found)
