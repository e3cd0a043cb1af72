"""Errors of files, as Python names what they say to give."""

from __future__ import annotations

import inspect

import pytest

import cortex
from actors.api.argument_names import _NAMES, in_python


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("give --encoding cp1252 (line 2 then reads 'é') or --encoding mac_roman (line 2", 'give encoding="cp1252" (line 2 then reads \'é\') or encoding="mac_roman" (line 2'),
        ("is UTF-8, not cp1252: leave --encoding out", "is UTF-8, not cp1252: leave encoding out"),
        ("give --delimiter ',' or --delimiter ';'", "give delimiter=',' or delimiter=';'"),
        ("line 3 names them: give --skip-lines 2", "line 3 names them: give skip_lines=2"),
        ("give --no-header if its first line is a row", "give no_header=True if its first line is a row"),
        ("give --quoting backslash (with --quoting minimal such", 'give quoting="backslash" (with quoting="minimal" such'),
        ("has no column 'x', which --id names", "has no column 'x', which id names"),
        ("give each row one, or leave --id out", "give each row one, or leave id out"),
        ("give --answer-as NAME, rename the column, or leave --with-input out", 'give answer_as="NAME", rename the column, or leave with_input out'),
        ("is no list of bad lines: give --bad FILE, or --overwrite", 'is no list of bad lines: give bad="FILE", or overwrite=True'),
        ("did you mean --idea, or a--id?", "did you mean --idea, or a--id?"),
    ],
)  # fmt: skip
def test_options_are_arguments(text: str, expected: str) -> None:
    assert in_python(text) == expected == in_python(expected)


def test_every_one_is_an_argument_of_batch() -> None:
    assert {name.replace("-", "_") for name in _NAMES.split("|")} <= set(inspect.signature(cortex.batch).parameters)
