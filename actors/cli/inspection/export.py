"""``export``: the calls of a job as a table, one call a line: JSON Lines, CSV or Parquet."""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import msgspec

from actors.cli.jobs.settings import named_folder
from actors.cli.options.atomic_write import check_free, whole
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.history.call_log import CallLogEntry, calls_of, changed

_AT_ONCE = 10_000
_TEXT = ("prompt", "reply")
_NO_PARQUET = "Parquet is written by pyarrow: pip install 'cortex-bounded-calls[parquet]', or export to .csv or .jsonl"


def export(job: str, output: str, without_text: bool, options: Options) -> int:
    """Run ``cortex export`` and return the exit code."""
    folder = named_folder(options)
    names = [name for name in CallLogEntry.__struct_fields__ if not (without_text and name in _TEXT)]
    write = _writer(output)
    if changed(folder, job):  # raises for an unknown job, before a file is created
        print_error(
            f"the program of {job} has changed since: only data of the journal is exported, without prompts"
        )
    lines = calls_of(folder, job, text=not without_text)
    if output == "-":
        print_error(f"{_calls(write(lines, names, Path('-')))} of {job}")
        return COMPLETE
    check_free(output, options.overwrite)
    with whole(output) as part:
        count = write(lines, names, part)
    print_error(f"{_calls(count)} of {job} in {output}")
    return COMPLETE


def _calls(count: int) -> str:
    return f"{count:,} call{'s' * (count != 1)}"


_Write = Callable[[Iterable[CallLogEntry], list[str], Path], int]


def _writer(output: str) -> _Write:
    """Return the function that writes files with the suffix of ``output``. Raises ``CommandError``."""
    ending = ".jsonl" if output == "-" else Path(output).suffix.lower()
    if ending not in _WRITERS:
        raise CommandError(f"-o {output}: name a file that ends in {', '.join(_WRITERS)}, or - for JSON Lines")
    if ending == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401 - checked before anything is written
        except ModuleNotFoundError:
            raise CommandError(_NO_PARQUET) from None
    return _WRITERS[ending]


def _rows(lines: Iterable[CallLogEntry], names: list[str]) -> Iterator[dict[str, Any]]:
    return ({name: getattr(line, name) for name in names} for line in lines)


def _jsonl(lines: Iterable[CallLogEntry], names: list[str], path: Path) -> int:
    count = 0
    with contextlib.ExitStack() as stack:
        file = sys.stdout.buffer if str(path) == "-" else stack.enter_context(path.open("wb"))
        for row in _rows(lines, names):
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
        file.flush()
    return count


def _csv(lines: Iterable[CallLogEntry], names: list[str], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        for row in _rows(lines, names):
            table.writerow(row)
            count += 1
    return count


def _parquet(lines: Iterable[CallLogEntry], names: list[str], path: Path) -> int:
    import pyarrow
    import pyarrow.parquet

    plain = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    kinds = {field.name: field.type for field in msgspec.structs.fields(CallLogEntry)}
    schema = pyarrow.schema([(name, plain[(get_args(kinds[name]) or (kinds[name],))[0]]) for name in names])
    count = 0
    rows = _rows(lines, names)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as table:
        while some := list(islice(rows, _AT_ONCE)):
            table.write_table(pyarrow.Table.from_pylist(some, schema))
            count += len(some)
    return count


_WRITERS: dict[str, _Write] = {".parquet": _parquet, ".csv": _csv, ".jsonl": _jsonl}
