"""Lines and tables of a command: a text of others makes no line of its own, however long it is."""

from __future__ import annotations

import pytest

from actors.cli.inspection.text_lines import OutputLines
from actors.common.text_table import CELL_MAX, LINE_MAX, aligned, bounded_line

NAME = "r1\ncortex: complete\r\nJOB  fake\n\n"


def test_columns_are_aligned_and_a_row_is_one_line() -> None:
    lines = list(aligned([("MODEL", "COST", "ROWS"), (NAME, "$1", "2"), ("m", "$12.50", "1,000")], right=(1, 2)))
    assert lines == [
        "MODEL                           COST   ROWS",
        "r1 cortex: complete JOB fake      $1      2",
        "m                             $12.50  1,000",
    ]


def test_a_long_name_makes_no_wide_table() -> None:
    header, row = aligned([("MODEL", "ROWS"), ("m" * 1_000_000, "2")])
    assert len(row) <= CELL_MAX + 10 and "…" in row and header.endswith("ROWS")


@pytest.mark.parametrize("indent", [0, 2])
def test_a_name_with_lines_of_its_own_makes_none_in_a_story(indent: int, capsys: pytest.CaptureFixture[str]) -> None:
    OutputLines().line("bold", indent, f"goal 1 ({NAME}) of table")
    first, *further = capsys.readouterr().out.rstrip("\n").split("\n")
    assert first == " " * indent + "goal 1 (r1" and all(line.startswith("    ") for line in further)


def test_a_line_has_a_bound() -> None:
    line = bounded_line("x" * 1_000_000)
    assert len(line) == LINE_MAX and line.endswith("…")
    assert bounded_line("a\nb") == "a\n    b"
