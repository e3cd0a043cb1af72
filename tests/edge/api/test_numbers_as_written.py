"""Numbers of JSON and CSV stay as they are written: in prompts, ids and results, in all forms in and out."""

from __future__ import annotations

import csv
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import cortex
from actors.files.batch_request import RowRules

NUMBERS = [
    "0", "-0", "-0.0", "-0e0", "0.0", "1E5", "1e+5", "-1.50e-3", "1.10", "7", "-7", "18446744073709551616", "9223372036854775807",
    "-9223372036854775809", "123456789012345678901234567890", "12345678901234567.89", "1e400", "-1E-400",
]  # fmt: skip
IDS = {"-0": "0", "1": "1", "1E5": "100000", "2.0": "2", "18446744073709551616": "18446744073709551616"}
"""Whole numbers as an id is written, and the row that it names."""
LINES = [f'{{"id":"r{place}","n":{text},"deep":{{"a":[{text}, {{"b":{text}}}]}}}}' for place, text in enumerate(NUMBERS)]
INPUTS: dict[str, Any] = {
    "in.jsonl": "\n".join(LINES) + "\n",
    "in.json": "[\n" + ",\n".join(LINES) + "\n]\n",
    "in.csv": "id,n,deep\n" + "".join(f'r{place},{text},"{{""a"":[{text},{{""b"":{text}}}]}}"\n' for place, text in enumerate(NUMBERS)),
    "memory": [
        {"id": f"r{place}", "n": msgspec.Raw(text.encode()), "deep": {"a": [msgspec.Raw(text.encode()), {"b": msgspec.Raw(text.encode())}]}}
        for place, text in enumerate(NUMBERS)
    ],
}  # fmt: skip


def _echo(prompt: str) -> str:
    return prompt


def _batch(tmp_path: Path, given: Any, prompt: str, output: str = "", **more: Any) -> Any:
    more |= {"id": "id", "with_input": True, "state": str(tmp_path / "state"), "model": _echo}
    return cortex.batch(given, prompt, output=str(tmp_path / output) if output else "", **more)


def _given(tmp_path: Path, name: str) -> Any:
    content = INPUTS[name]
    if not isinstance(content, str):
        return content
    (tmp_path / name).write_text(content)
    return str(tmp_path / name)


def _told(number: str) -> Any:
    """A number of JSON as a value of Python: the sign of zero and all digits are kept."""
    whole = number.lstrip("-").isdecimal() and number != "-0"
    value: Any = int(number) if whole else float(number)
    return value if whole or Decimal(number) == Decimal(repr(value)) else Decimal(number)


def _same(found: Any, told: Any) -> bool:
    return type(found) is type(told) and found == told and math.copysign(1, found) == math.copysign(1, told)


@pytest.mark.parametrize("name", INPUTS)
def test_each_number_is_the_one_of_the_input(tmp_path: Path, name: str) -> None:
    given = _given(tmp_path, name)
    lines = _batch(tmp_path, given, "{{n}} {{deep}}", "out.jsonl")
    quoted = name.endswith(".csv")
    for place, (text, line) in enumerate(zip(NUMBERS, (tmp_path / "out.jsonl").read_text().splitlines(), strict=True)):
        deep = f'{{"a":[{text},{{"b":{text}}}]}}'
        row = {"id": f"r{place}", "n": text if quoted else msgspec.Raw(text.encode())}
        row |= {"deep": deep if quoted else msgspec.Raw(deep.encode()), "answer": f"{text} {deep}", "error": None}
        assert line == msgspec.json.encode(row).decode()
        if not quoted:
            assert _same(lines.rows[place]["n"], _told(text)), text
            assert _same(lines.rows[place]["deep"]["a"][0], _told(text)), text


@pytest.mark.parametrize("output", ["out.csv", "out.tsv", "out.csv.gz", "out.parquet"])
@pytest.mark.parametrize("name", INPUTS)
def test_each_number_is_its_text_in_a_table(tmp_path: Path, name: str, output: str) -> None:
    _batch(tmp_path, _given(tmp_path, name), "{{n}}", output)
    if output.endswith(".parquet"):
        rows = pq.read_table(tmp_path / output).to_pylist()  # text: no type of Parquet holds all of these numbers
    else:
        rows = _cells(tmp_path / output)
    assert [row["n"] for row in rows] == [row["answer"] for row in rows] == NUMBERS
    assert [json.loads(row["deep"], parse_int=str, parse_float=str)["a"][0] for row in rows] == NUMBERS


def _cells(path: Path) -> list[dict[str, str]]:
    import gzip

    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", newline="") as file:  # type: ignore[operator]
        return list(csv.DictReader(file, delimiter="\t" if ".tsv" in path.name else ","))


def test_minus_zero_in_a_column_of_numbers_keeps_its_sign(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"id":"a","n":1}\n{"id":"b","n":-0}\n{"id":"c","n":null}\n')
    answers = _batch(tmp_path, str(tmp_path / "in.jsonl"), "{{id}}", "out.parquet")
    for found in pq.read_table(tmp_path / "out.parquet"), answers.to_arrow():
        assert [str(each) for each in found["n"].to_pylist()] == ["1.0", "-0.0", "None"]


def test_ids(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id":{text},"n":1}}\n' for text in IDS))
    for output in "out.jsonl", "out.csv":
        _batch(tmp_path, str(tmp_path / "in.jsonl"), "{{id}}", output, job=output)
        rows = (tmp_path / output).read_text().splitlines()[output.endswith(".csv") :]
        expected = [f"{text},1,{text}," if output.endswith(".csv") else f'{{"id":{text},"n":1,"answer":"{text}","error":null}}' for text in IDS]
        assert rows == expected
    (tmp_path / "two.jsonl").write_text('{"id":-0,"n":1}\n{"id":0.0,"n":1}\n')
    answers = _batch(tmp_path, str(tmp_path / "two.jsonl"), "{{id}}", accept_bad=1.0)
    assert (len(answers.rows), answers.unreadable) == (1, 1)  # the same number


@pytest.mark.parametrize("text", [text for text in NUMBERS if text != "1e400"])
def test_requests(text: str) -> None:
    messages = f'[{{"role":"user","content":[{{"type":"tool_result","content":"x","n":{text}}}]}}]'
    line = f'{{"custom_id":"a","params":{{"temperature":{text},"messages":{messages},"max_tokens":5,"model":"m"}}}}'
    row = RowRules(also_known=["temperature"]).read(line.encode())
    assert row.body.decode() == f'{{"max_tokens":5,"messages":{messages},"model":"m","temperature":{text}}}'
