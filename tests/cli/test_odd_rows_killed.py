"""Many rows, some of them odd, killed and resumed: every record is told once, and exit code and counts are right."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import Done, ended, environment, started
from tests.cli.table_files import SIM
from tests.support.odd_tables.many import NOTE, PROMPT_TOKENS_MAX, Outcome, records
from tests.support.odd_tables.table import ID, TEXT, Fate

IN_FLIGHT = 200
COMMAND = (
    "batch", "t.csv", "--prompt", "Answer with one of: bug, praise. {{text}}", "--id", ID, "--with-input", "-o", "o.jsonl",
    *SIM, "--sim", "latency_ms=20", "--concurrency", IN_FLIGHT, "--prompt-tokens-max", PROMPT_TOKENS_MAX, "--job", "j", "--json", "--bad", "bad.jsonl",
)  # fmt: skip


def _write(path: Path, count: int) -> tuple[list[Outcome], list[bytes]]:
    """Write the table. Return what becomes of each record, and the bytes of the unreadable ones."""
    found, unreadable = [], []
    with path.open("wb") as file:
        file.write(f"{ID},{TEXT},{NOTE}\n".encode())
        for record, outcome in records(count):
            raw = (record if isinstance(record, bytes) else record.encode()) + b"\n"
            file.write(raw)
            found.append(outcome)
            unreadable += [] if outcome.cells else [raw]
    return found, unreadable


def _killed(folder: Path, command: tuple[Any, ...], when: Callable[[], bool]) -> None:
    """Kill a command as soon as ``when``. The command must not have ended before."""
    with started(*command, cwd=folder, env=environment(CORTEX_STATE=str(folder / "state"))) as child:
        while not when():
            assert child.poll() is None or when(), child.communicate()
            time.sleep(0.01)
        child.kill()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _run(folder: Path, kills: int, size_bytes: int) -> Done:
    """Kill the job ``kills`` times, evenly over the bytes of its results, and take it to its end."""
    output, resume = folder / "o.jsonl", ("resume", "j", "--json")
    for kill in range(kills):
        enough = size_bytes * kill // kills + 1
        _killed(folder, resume if kill % 2 else COMMAND, lambda: _size(output) >= enough)  # noqa: B023
    with started(*resume, cwd=folder, env=environment(CORTEX_STATE=str(folder / "state"))) as child:
        return ended(child, 300)


def _told_once(folder: Path, outcomes: list[Outcome], done: Done) -> None:
    rows = [json.loads(line) for line in (folder / "o.jsonl").read_bytes().split(b"\n") if line]
    told = {row[ID]: row for row in rows}
    assert len(told) == len(rows)
    expected = {each.cells[ID]: each for each in outcomes if each.cells}
    assert told.keys() == expected.keys()
    for key, outcome in expected.items():
        row = told[key]
        assert {name: row[name] for name in outcome.cells} == outcome.cells
        if outcome.fate is Fate.ASKED:
            assert row["answer"] in ("bug", "praise") and row["error"] is None, row
        else:
            assert row["answer"] is None and row["error"].startswith(outcome.error), row
    failed = sum(each.fate is Fate.TOLD for each in expected.values())
    unreadable = len(outcomes) - len(expected)
    last = done.last
    counts = [last[name] for name in ("rows", "rows_succeeded", "rows_failed", "rows_unreadable")]
    assert counts == [len(outcomes), len(rows) - failed, failed, unreadable], last


def _listed_once(folder: Path, unreadable: list[bytes]) -> None:
    content = (folder / "t.csv").read_bytes()
    listed = [json.loads(line) for line in (folder / "bad.jsonl").read_bytes().splitlines()]
    assert [content[each["offset"] : each["offset"] + each["size"]] for each in listed] == unreadable
    ends = re.compile(rb"\r\n|\r|\n")  # a lone CR in a cell is a line end as well
    number, offset = 1, 0
    for each in listed:
        number, offset = number + len(ends.findall(content, offset, each["offset"])), each["offset"]
        assert each["reason"] and each["line"] == number, each


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (2_000, 1),
        pytest.param(20_000, 5, marks=pytest.mark.long),
        pytest.param(100_000, 10, marks=pytest.mark.release),
    ],
)  # fmt: skip
def test_every_record_of_a_killed_job_is_told_once(tmp_path: Path, count: int, kills: int, tell: Any) -> None:
    began_s = time.monotonic()
    outcomes, unreadable = _write(tmp_path / "t.csv", count)
    done = _run(tmp_path, kills, 110 * count)
    assert (done.code, done.last["outcome"]) == (1, "complete"), done.err[-2_000:]  # a prompt was too large
    _told_once(tmp_path, outcomes, done)
    _listed_once(tmp_path, unreadable)
    lost = done.last["attempts"] - sum(each.fate is Fate.ASKED for each in outcomes)
    assert 0 <= lost <= kills * IN_FLIGHT
    tell(f"{count:,} rows, {kills} kills: {time.monotonic() - began_s:.0f} s, {lost} attempts lost")
