"""Numbers of JSON Lines as they are written, and flaws of single columns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.files.batch_request import InvalidRow
from actors.files.json_rows import as_number, cell_text, flawed_line, float_holds, read_cell, read_row
from actors.files.row_values import encode

NUMBERS = ["-0", "-0e0", "0.10", "1E400", "1e-400", "-0.0", "1e2", "1E+2", "12345678901234567.89", "9" * 400, "-" + "9" * 30, "0.1e1"]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_keeps_its_text_however_it_is_nested(text: str) -> None:
    line = f'{{"a":{text},"b":[{text},{{"c":{text}}}]}}'.encode()
    row, flaws = read_row(line)
    assert (encode(row), flaws) == (line, {})


_whole = st.from_regex(r"-?(0|[1-9][0-9]{0,40})", fullmatch=True)
_numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,40})((\.[0-9]{1,40})([eE][-+]?[0-9]{1,4})?|[eE][-+]?[0-9]{1,4})", fullmatch=True)


@given(st.lists(_whole | _numbers, min_size=1))
def test_any_number_keeps_its_text(texts: list[str]) -> None:
    line = f'{{"a":[{",".join(texts)}]}}'.encode()
    assert encode(read_row(line)[0]) == line


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(16, 40))
def test_a_float_holds_its_digits_however_many_are_written(value: float, digits: int) -> None:
    assert float_holds(repr(value))
    assert float_holds(f"{value:.{digits}e}")
    assert as_number(repr(value)) == value


@pytest.mark.parametrize("text", ["1E400", "12345678901234567.89", "0.123456789012345678", "1e-400", "9" * 30 + ".5"])
def test_a_number_that_no_float_holds_is_a_decimal(text: str) -> None:
    assert not float_holds(text)
    assert as_number(text) == Decimal(text)


@pytest.mark.parametrize("text", ["-0", "a -0", "[-0,", ':"-0"', "2026-01-02", "x-0"])
def test_a_text_that_reads_like_a_number_stays(text: str) -> None:
    row = {"a": text, "b": [text, {text: text}]}
    assert read_row(encode(row)) == (row, {})


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_pythons_json_writes_is_a_number(text: str) -> None:
    row, flaws = read_row(f'{{"a":{text},"b":[{text}]}}'.encode())
    assert (encode(row).decode(), flaws) == (f'{{"a":"{text}","b":["{text}"]}}', {})
    assert type(row["a"]) is msgspec.Raw


@pytest.mark.parametrize(
    ("line", "flaws", "row"),
    [
        (r'{"id":1,"a":"x\ud83d","b":"fine"}', {"a": "holds half of a character"}, {"id": 1, "a": "x\ufffd", "b": "fine"}),
        (r'{"a":[{"\ud83d":1}]}', {"a": "holds half of a character"}, {"a": [{"\ufffd": 1}]}),
        ('{"a":' + "9" * 5000 + "}", {"a": "holds a whole number of more than 4,300 digits"}, {"a": None}),
        ('{"id":1,"a":"x","a":"y"}', {"a": "is given twice"}, {"id": 1, "a": "y"}),
        ('{"a" : 1, "b": 2, "\\u0061"\t: 3}', {"a": "is given twice"}, {"a": 3, "b": 2}),
        ('{"a":[{"b":{"c":1,"c":1}}],"d":{"a":0}}', {"a": "holds an object that gives"}, {"a": [{"b": {"c": 1}}], "d": {"a": 0}}),
        ('{"a":{"b":1,"b":2},"a":"x\\ud83d"}', {"a": "holds half of a character"}, {"a": "x\ufffd"}),
    ],
)  # fmt: skip
def test_a_flaw_is_one_columns(line: str, flaws: dict[str, str], row: dict[str, Any]) -> None:
    found, reasons = read_row(line.encode())
    assert found == row
    assert flaws.keys() == reasons.keys()
    assert all(reasons[name].startswith(text) for name, text in flaws.items())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"a":1', "ends too early"), (b'{"a":"\t"}', "invalid control character at character 7"), (b'{"a":"b', r"\(unterminated string\)"), (b'{"a":nan}', "invalid JSON"), (b'[1]', "is no object"), (b'{"a":"\xff"}', "is not UTF-8"),
        (rb'{"\ud83d":1}', "the name of a column holds half"), (b'{"a":' + b"[" * 100_000, "nested too deeply"), (b"{!", "invalid JSON"),
        (b'{!{"row":1}', "invalid JSON"), (flawed_line({}, {}, "is 3"), "is 3"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_row(line: bytes, text: str) -> None:
    with pytest.raises(InvalidRow, match=text):
        read_row(line)


@pytest.mark.parametrize("row", [{"a": '"b":"b":'}, {"a": {"b": 1}, "b": {"b": [{"b": 2}, {"b": 2}]}}, {"": '": '}, {'"': 1, '":': 2}])
def test_names_of_several_objects_and_what_reads_like_names_are_no_flaw(row: dict[str, Any]) -> None:
    assert read_row(encode(row)) == (row, {})


def test_a_flawed_row_comes_back() -> None:
    for number, text in (b"Infinity", b'"Infinity"'), (b"-0", b"-0"):
        row = {"id": 1, "a": None, "b": msgspec.Raw(number), "c": msgspec.Raw(b"1.50")}
        found, flaws = read_row(flawed_line(row, {"a": "is odd"}))
        assert (encode(found), flaws) == (b'{"id":1,"a":null,"b":%b,"c":1.50}' % text, {"a": "is odd"})


@pytest.mark.parametrize("value", [None, 1, "a", "{!a", [1.5], {"a": "x"}, msgspec.Raw(b"-0"), [msgspec.Raw(b"-0")]])
def test_a_cell_comes_back(value: Any) -> None:
    assert encode(read_cell(cell_text(value))) == encode(value)


def test_a_cell_without_a_form_says_why() -> None:
    assert read_cell(cell_text(object())).message.startswith("is of type object")
    assert encode(read_cell(cell_text(float("inf")))) == b'"Infinity"'
