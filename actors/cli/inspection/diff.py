"""``diff``: comparison of two jobs: outcome, results row by row, and calls that only one of them made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b
from itertools import zip_longest
from typing import Any

import msgspec

from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import JobStatus, cost
from actors.cli.jobs.settings import named_folder
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.text_table import aligned, bounded_line
from actors.common.units import span
from actors.history.call_log import CallLogEntry, calls_of, changed
from actors.history.catalog import last_terms
from actors.journal.journal import StateFolder
from actors.maintenance.offline_edits import copy_results
from cortex.programs.table import Table
from cortex.state.program import build
from cortex.values.display import clipped
from cortex.values.template import values_as_written

_SHOWN_MAX = 20
_FIELDS = (
    "outcome", "rows_succeeded", "rows_failed", "calls", "paid_calls", "reused_calls", "attempts", "input_tokens",
    "output_tokens", "cost_usd", "elapsed_s",
)  # fmt: skip
_encoder = msgspec.json.Encoder(order="sorted")


class _ComparedJob(msgspec.Struct):
    """Data of one of the two compared jobs."""

    name: str
    program: str
    status: JobStatus
    rows: dict[str, tuple[bytes, str]]
    """Row -> hash of its result, and the first characters of the result."""
    calls: dict[str, str]
    """Question hash -> description of the call."""


def diff(one: str, other: str, options: Options) -> int:
    """Run ``cortex diff`` and return the exit code: 0 if the jobs are equal in all but time and money, 1 if they
    differ."""
    folder = named_folder(options)
    routes = {(terms.route.endpoint, terms.route.model) for name in (one, other) if (terms := last_terms(folder, name))}
    if len(routes) > 1:
        print_error("the jobs ask different models: calls are compared by prompt and sample")
    a, b = (_side(folder, name, by_prompt=len(routes) > 1) for name in (one, other))
    rows = sorted((row for row in {**a.rows, **b.rows} if _hash(a, row) != _hash(b, row)), key=_by_number)
    only_a, only_b = ([q for q in x.calls if q not in y.calls] for x, y in ((a, b), (b, a)))
    answers = list(differences(a.status.answer, b.status.answer)) if not (a.rows or b.rows) else []
    outcomes = a.status.outcome, b.status.outcome
    same = not (rows or only_a or only_b or answers) and outcomes[0] == outcomes[1]
    if options.as_json:
        facts = {
            "same": same, "jobs": [one, other], "programs": [a.program, b.program],
            **{name: [x.status.facts[name] for x in (a, b)] for name in _FIELDS},
            "rows_differ": [{"row": row, "a": _begins(a, row), "b": _begins(b, row)} for row in rows],
            "answers_differ": [{"at": at, "a": left, "b": right} for at, left, right in answers],
            "calls_only_a": [{"question": q, "call": a.calls[q]} for q in only_a],
            "calls_only_b": [{"question": q, "call": b.calls[q]} for q in only_b],
        }  # fmt: skip
        print(msgspec.json.encode(facts).decode())
        return COMPLETE if same else FAILED
    print("\n".join(_table(a, b)))
    if a.rows or b.rows:
        shown = [f"  row {row}: {_begins(a, row) or 'none'}  |  {_begins(b, row) or 'none'}" for row in rows]
        _list(f"rows: {len(rows):,} of {len({**a.rows, **b.rows}):,} differ", shown)
    places = "place differs" if len(answers) == 1 else "places differ"
    _list(f"answer: {len(answers):,} {places}", [f"  {at}: {_text(x)}  |  {_text(y)}" for at, x, y in answers])
    for side, only in ((a, only_a), (b, only_b)):
        _list(f"calls only in {side.name}: {len(only):,}", [f"  {side.calls[question]}" for question in only])
    print("the same" if same else "different")
    return COMPLETE if same else FAILED


def _side(folder: StateFolder, job: str, by_prompt: bool) -> _ComparedJob:
    terms = last_terms(folder, job)
    status = standing_of(folder, job)  # raises for an unknown job
    assert terms is not None
    if changed(folder, job):
        print_error(
            f"the program of {job} has changed since: its calls are compared by hash, without prompts"
        )
    calls = {_question(line, by_prompt): _call(line) for line in calls_of(folder, job)}
    table = build(Table, terms.params_json) if terms.program == Table.name else None
    sink = _RowCollector(table.id, table.own_columns()[2:]) if isinstance(table, Table) else _RowCollector()
    if terms.streams:
        copy_results(folder, job, sink)
    return _ComparedJob(job, terms.program, status, sink.rows, calls)


def _question(line: CallLogEntry, by_prompt: bool) -> str:
    if not by_prompt or line.prompt is None:
        return line.question
    return blake2b(_encoder.encode((line.prompt, line.sample)), digest_size=16).hexdigest()


def _call(line: CallLogEntry) -> str:
    prompt = f" {clipped(line.prompt, 80)!r}" if line.prompt is not None else ""
    return f"{line.job}/{line.goal}/{line.sample} {line.kind or 'call'}{prompt}"


class _RowCollector:
    """Sink that keeps the hash and the first characters of each row's result."""

    def __init__(self, id: str = "", without: Collection[str] = ()) -> None:  # noqa: A002 - name of the column
        """``id``: column of a table that identifies rows. ``without``: columns that are ignored in the comparison."""
        self._id, self._without = id, {id, *without}
        self.rows: dict[str, tuple[bytes, str]] = {}

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Return 0: results are read from the first one."""
        return 0

    def write(self, values: list[Any]) -> None:
        """Add a batch of results."""
        for value in values:
            line = values_as_written(value) if isinstance(value, bytes) else msgspec.to_builtins(value)
            row, answer = self._digest(line)
            blob = _encoder.encode(answer)
            self.rows[row] = blake2b(blob, digest_size=16).digest(), clipped(blob.decode(), 80)

    def flush(self) -> tuple[int, int]:
        """Return counts of rows and bytes; nothing is written to disk."""
        return len(self.rows), 0

    def abandon(self) -> None:
        """Release nothing."""

    def close(self) -> None:
        """Release nothing."""

    def _digest(self, line: Any) -> tuple[str, Any]:
        if not self._id:
            return _answer_of(line, len(self.rows))
        return str(line.get(self._id)), {name: value for name, value in line.items() if name not in self._without}


def _answer_of(line: Any, number: int) -> tuple[str, Any]:
    """Return the row of a result line and its compared content, without the provider's ids and usage."""
    if not isinstance(line, dict):
        return str(number), line
    if "response" in line:  # of OpenAI's batch files
        body = (line["response"] or {}).get("body") or {}
        told = {name: body[name] for name in ("choices", "error", "data") if body.get(name) is not None}
        if isinstance(items := body.get("output"), list):
            objects = [item for item in items if isinstance(item, dict)]
            told["output"] = [{name: value for name, value in item.items() if name != "id"} for item in objects]
        return str(line["custom_id"]), told | {"failed": line.get("error")}
    if "custom_id" in line:
        result = dict(line.get("result") or {})
        message = result.get("message")
        if isinstance(message, dict):
            result["message"] = {name: message.get(name) for name in ("content", "stop_reason")}
        return str(line["custom_id"]), result
    return str(line.get("row", number)), {name: value for name, value in line.items() if name != "row"}


def differences(a: Any, b: Any, at: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, a, b) for each difference of two plain values, at the deepest path."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in [*a, *(name for name in b if name not in a)]:
            yield from differences(a.get(name), b.get(name), f"{at}.{name}" if at else str(name))
    elif isinstance(a, list) and isinstance(b, list):
        for index, (x, y) in enumerate(zip_longest(a, b)):
            yield from differences(x, y, f"{at}[{index}]")
    elif a != b:
        yield at or "all of it", a, b


def _hash(side: _ComparedJob, row: str) -> bytes:
    return side.rows[row][0] if row in side.rows else b""


def _begins(side: _ComparedJob, row: str) -> str | None:
    return side.rows[row][1] if row in side.rows else None


def _by_number(row: str) -> tuple[int, str]:
    return (int(row), "") if row.isdecimal() else (1 << 62, row)


def _text(value: Any) -> str:
    return clipped(_encoder.encode(value).decode(), 60)


def _table(a: _ComparedJob, b: _ComparedJob) -> Iterable[str]:
    lines = [("", a.name, b.name), ("program", a.program, b.program)]
    for name in _FIELDS:
        lines.append((name.removesuffix("_usd").removesuffix("_s"), _figure(a, name), _figure(b, name)))
    return aligned(lines)


def _figure(side: _ComparedJob, name: str) -> str:
    value = side.status.facts[name]
    if name == "cost_usd":
        return cost(side.status.facts) if value is not None else "unknown"
    return span(value) if name == "elapsed_s" else f"{value:,}" if isinstance(value, int) else str(value)


def _list(head: str, lines: list[str]) -> None:
    if not lines:
        return
    more = [f"  and {len(lines) - _SHOWN_MAX:,} more: --json lists them all"] if len(lines) > _SHOWN_MAX else []
    print("\n".join(map(bounded_line, [head, *lines[:_SHOWN_MAX], *more])))
