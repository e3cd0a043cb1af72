"""Selection of a sink by the form of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.files.columns import DEFAULT_COLUMNS, Columns, columns_of, decoded
from actors.files.errors import SinkError
from actors.files.paths import is_remote, rows_of
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sinks.table_sink import TableSink
from actors.files.sources.table_source import TableSource
from actors.files.table_reader import CSV, PARQUET, form_of, misspelt_form
from actors.jobs.spec import JobSpec, whole
from actors.journal.journal import StateFolder
from cortex.programs.batch import Batch
from cortex.programs.table import REQUEST_ID, Table

TABLE = "table"
COLUMNS = "columns"
"""Key among a job's places: columns of the results, if they are a table."""
SHARDS = "cortex.programs.shards:Shards"
"""Program of sharded jobs. Without ``COLUMNS`` in the places, its rows are whole requests."""
FOREIGN = (".xlsx", ".xls", ".ods", ".feather", ".arrow", ".avro", ".orc", ".db", ".sqlite", ".xml", ".zip")
"""Suffixes of forms that are neither read nor written. Such a file is never taken for JSON Lines."""

PACKED = (".zst", ".bz2", ".xz", ".lz4", ".7z", ".br", ".parquet.gz", ".pq.gz")
"""Suffixes of compressed forms that are not written: .gz is, and Parquet is compressed in itself."""


def is_table(path: str) -> bool:
    """Return True if results of this name are written as a whole: CSV, Parquet, or a remote object."""
    return is_remote(path) or form_of(path) in (CSV, PARQUET)


def note_columns(order: JobSpec, source: Any) -> None:
    """Store the columns of the results in the job's places. Requires a checked source."""
    if not isinstance(order.program, Table):
        return
    given, arrow, entries = [(REQUEST_ID, "text")], None, None
    if isinstance(source, TableSource):
        (given, arrow), entries = source.columns(), source.entries()
    order.places[COLUMNS] = columns_of(order.program, given, arrow, entries).encoded()


def results_sink(
    folder: StateFolder, job: str, output: str, input_path: str, overwrite: bool, places: Mapping[str, str],
    program: str,
    own: bool,
) -> FileSink | TableSink | None:  # fmt: skip
    """Return the sink for results; None without an output. ``own``: the job's output, not a copy."""
    if not output:
        return None
    keep_off = () if input_path in ("", "-") else (input_path,)
    refuse_form(output)
    if not is_table(output):
        return FileSink(output, overwrite=overwrite, keep_off=keep_off)
    columns = DEFAULT_COLUMNS if form_of(output) not in (CSV, PARQUET) else _columns(places, program, output)
    flatten = columns is DEFAULT_COLUMNS and form_of(output) in (CSV, PARQUET)
    rows = rows_of(folder.path, whole(output), job, copy=not own)
    return TableSink(
        output, rows, columns, job=job, flatten=flatten, overwrite=overwrite, keep_off=keep_off,
        copy=not own,
    )  # fmt: skip


def refuse_form(output: str) -> None:
    """Raise ``SinkError`` for a suffix of a form that is not written."""
    if output.lower().endswith(PACKED):
        raise SinkError(f"{output}: results are compressed by .gz alone (Parquet by itself): name .csv.gz or .jsonl.gz")
    if output.lower().endswith(FOREIGN):
        raise SinkError(f"{output}: results are written as .csv, .tsv, .parquet or .jsonl: name one of these")
    if meant := misspelt_form(output):
        raise SinkError(f"{output}: did you mean {meant}? Results are written as .csv, .tsv, .parquet or .jsonl")


def _columns(places: Mapping[str, str], program: str, output: str) -> Columns:
    if COLUMNS in places:
        return decoded(places[COLUMNS])
    if program not in (Batch.name, SHARDS):
        raise SinkError(f"{output}: results of {program} are no table: name a file that ends in .jsonl")
    return DEFAULT_COLUMNS
