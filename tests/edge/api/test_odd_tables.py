"""Every record of a generated odd table is told once, in all forms in and out, and each reader finds what was told.

pytest --hypothesis-profile explore tests/edge/api/test_odd_tables.py searches further.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cortex
from actors.api.tables import Answers, RowsError
from tests.support.odd_tables.comparison import alike
from tests.support.odd_tables.delimited import delimited_tables
from tests.support.odd_tables.json_lines import json_lines_tables
from tests.support.odd_tables.memory import OddRows, odd_rows
from tests.support.odd_tables.parquet import parquet_tables
from tests.support.odd_tables.readback import BEYOND_FLOATS, READERS, TEXTS_ALONE, form_of
from tests.support.odd_tables.table import ID, TEXT, OddTable

PROMPT = "Say: "
OUTPUTS = ("out.csv", "out.tsv", "out.csv.gz", "out.jsonl", "out.jsonl.gz", "out.parquet")
TABLES = {"delimited": delimited_tables(), "json lines": json_lines_tables(), "parquet": parquet_tables()}
steady = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
Row = dict[str, Any]


def _echo(prompt: str) -> str:
    return prompt.removeprefix(PROMPT)


def _batch(path: Path, table: OddTable, output: Path, **more: Any) -> Answers:
    """Ask all rows of a table. A property of the file that is refused as unclear is given then."""
    more |= {"accept_bad": "100%", "id": ID, "with_input": True, "output": str(output), "state": str(output.parent / "state")} | table.options
    try:
        return cortex.batch(str(path), PROMPT + "{{text}}", model=_echo, **more)
    except RowsError as error:
        if not any(f"{name}=" in str(error) for name in table.if_unclear):
            raise
    return cortex.batch(str(path), PROMPT + "{{text}}", model=_echo, **more, **table.if_unclear)


def _accounted(table: OddTable, answers: Answers, rows: list[Row]) -> None:
    """Each record is told once: its row has an answer, or the record is among the bad ones."""
    assert answers.bad_count == len(answers.bad) == len(table.told), (answers.bad, [each.odd for each in table.told])
    if all(each.line for each in table.told):
        lines = [int(re.match(r"(?:line|row) (\d+): ", text)[1]) for text in answers.bad]  # type: ignore[index]
        assert lines == [each.line for each in table.told], answers.bad
    failed = [row for row in rows if row["error"]]
    assert len(rows) - len(failed) == len(table.asked)
    assert len(failed) + answers.unreadable == len(table.told)
    assert max(Counter(str(row[ID]).strip() for row in rows).values()) == 1


def _read_as_told(table: OddTable, rows: list[Row], *, texts_alone: bool) -> None:
    """Each reader finds the cells and the answer of each row that was asked."""
    answered = [row for row in rows if not row["error"]]
    for row, record in zip(answered, table.asked, strict=True):
        assert alike(row["answer"], record.cells[TEXT]), record.line
        for name, value in record.cells.items():
            if isinstance(value, str) or not texts_alone:
                assert alike(row.get(name), value), (record.line, name)
        assert {name for name, value in row.items() if value not in (None, "")} <= {*table.columns, "answer"}


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _listed(table: OddTable, answers: Answers, output: Path) -> None:
    """Each told record that has no line in the results is listed once, with the line in which it begins."""
    path = output.with_name(f"{output.name}.bad.jsonl")
    listed = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    assert len(listed) == answers.unreadable
    places = [each.get("line") or each["row"] for each in listed]
    assert places == sorted(set(places))
    if all(each.line for each in table.told):
        assert set(places) <= {each.line for each in table.told}
    assert all(each["reason"] for each in listed)
    if table.is_utf8:
        content = table.text
        for each in listed:
            raw = content[each["offset"] : each["offset"] + each["size"]]
            assert each["cut"] if each.get("cut") else raw.decode(errors="replace").rstrip("\r\n") == each["text"].rstrip("\r\n")


def _check(table: OddTable, answers: Answers, output: Path) -> None:
    assert answers.outcome == "complete"
    _listed(table, answers, output)
    refused_by = BEYOND_FLOATS if any(each.odd == "1e400" for each in table.records) else ()
    for read in READERS[form_of(output)]:
        if read in refused_by:
            continue
        rows = read(output)
        _accounted(table, answers, rows)
        _read_as_told(table, rows, texts_alone=read in TEXTS_ALONE)


@pytest.mark.parametrize("form", TABLES)
def test_every_record_is_told_once_and_each_reader_finds_what_was_told(form: str) -> None:
    @steady
    @given(TABLES[form], st.sampled_from(OUTPUTS))
    def holds(table: OddTable, output: str) -> None:
        with _folder() as folder:
            (folder / table.name).write_bytes(table.content)
            answers = _batch(folder / table.name, table, folder / output)
            _check(table, answers, folder / output)

    holds()


@pytest.mark.parametrize("form", TABLES)
def test_a_pipe_is_read_as_a_file_is(form: str) -> None:
    @settings(steady, max_examples=5)
    @given(TABLES[form], st.sampled_from(OUTPUTS))
    def holds(table: OddTable, output: str) -> None:
        with _folder() as folder:
            path = folder / table.name
            os.mkfifo(path)
            writer = threading.Thread(target=path.write_bytes, args=(table.content,))
            writer.start()
            answers = _batch(path, table, folder / output, job="j")
            writer.join()
            _check(table, answers, folder / output)

    holds()


@settings(steady, max_examples=40)
@given(odd_rows(), st.sampled_from(OUTPUTS))
def test_rows_in_memory_are_told_once_and_come_back(odd: OddRows, output: str) -> None:
    with _folder() as folder:
        options = {"id": ID, "with_input": True, "accept_bad": "100%", "state": str(folder / "state"), "model": _echo}
        answers = cortex.batch(odd.rows, PROMPT + "{{text}}", output=str(folder / output), **options)
        _check(odd.table, answers, folder / output)
        frame = answers.to_pandas()
        for rows in (
            answers.rows, answers.to_arrow().to_pylist(), answers.to_polars().to_dicts(),
            frame.astype(object).where(frame.notna(), None).to_dict("records"),
        ):  # fmt: skip
            _accounted(odd.table, answers, rows)
            _read_as_told(odd.table, rows, texts_alone=False)
