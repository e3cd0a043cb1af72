"""How ``top`` finds room: tables of widths, heights and curves."""

from __future__ import annotations

import pytest

from actors.top.layout import Column, TableRow, TopTable, cell, columns_shown, heights, spark

TABLE = TopTable(
    "t",
    (Column("NAME", 0, width_least=22), Column("STATE", 1), Column("DONE", 2, True), Column("WHY", 3, width_max=30)),
    (TableRow("a", ("a-rather-long-name-of-a-job", "running", "1,000", "x" * 50)), TableRow("b", ("b", "ok", "7", ""))),
)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (200, [(0, 27), (1, 7), (2, 5), (3, 30)]),
        (75, [(0, 27), (1, 7), (2, 5), (3, 30)]),
        (70, [(0, 27), (1, 7), (2, 5), (3, 25)]),
        (50, [(0, 27), (1, 7), (2, 5)]),
        (44, [(0, 27), (1, 7), (2, 5)]),
        (40, [(0, 24), (1, 7), (2, 5)]),
        (31, [(0, 22), (1, 7)]),
        (25, [(0, 25)]),
        (8, [(0, 8)]),
    ],
)
def test_columns_of_the_highest_rank_are_left_out_first(width, shown):
    found = columns_shown(TABLE, width)
    assert found == shown
    assert sum(wide for _, wide in found) + 2 * (len(found) - 1) <= width


@pytest.mark.parametrize(
    ("text", "width", "right", "said"),
    [
        ("ab", 4, False, "ab  "),
        ("ab", 4, True, "  ab"),
        ("abcdef", 4, False, "abc…"),
        ("abcd", 4, True, "abcd"),
        ("ab", 1, False, "…"),
    ],
)
def test_a_cell_has_exactly_its_width(text, width, right, said):
    assert cell(text, width, right) == said


WANTED = {"jobs": 6, "routes": 3, "curves": 7, "actors": 12, "nodes": 2}


@pytest.mark.parametrize(
    ("room", "first", "given"),
    [
        (100, "", {"jobs": 6, "routes": 3, "curves": 7, "actors": 12, "nodes": 2}),
        (21, "", {"jobs": 6, "routes": 3, "curves": 7, "actors": 3, "nodes": 2}),
        (21, "actors", {"jobs": 3, "routes": 2, "curves": 2, "actors": 12, "nodes": 2}),
        (12, "", {"jobs": 4, "routes": 2, "curves": 2, "actors": 2, "nodes": 2}),
        (5, "", {"jobs": 3, "routes": 2, "curves": 0, "actors": 0, "nodes": 0}),
        (1, "", {"jobs": 0, "routes": 0, "curves": 0, "actors": 0, "nodes": 0}),
    ],
)
def test_heights(room, first, given):
    found = heights(room, WANTED, first)
    assert found == given
    assert sum(found.values()) <= room


@pytest.mark.parametrize(
    ("values", "width", "said"),
    [
        ([], 4, "    "),
        ([0, 0], 4, "    "),
        ([1, 2, 4, 8], 4, "▂▃▅█"),
        ([8], 4, "   █"),
        ([0.001, 8], 2, "▁█"),
        ([1, 1, 8, 1, 1, 4], 3, "▂█▅"),
        ([9, 1, 1], 2, "█▁"),
        ([1, 2], 0, ""),
    ],
)
def test_a_curve_in_characters(values, width, said):
    assert spark(values, width) == said


def test_a_curve_where_there_is_only_ascii():
    assert spark([1, 2, 4, 8], 4, ascii_only=True) == ":-+%"
    assert spark([1, 8], 2, ascii_only=True).isascii()
