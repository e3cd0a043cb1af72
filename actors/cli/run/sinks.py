"""Sinks of results: for a run, for a copy, and to complete the file of a job that is over."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from actors.cli.options.errors import print_error
from actors.files.errors import SinkError
from actors.files.paths import is_remote
from actors.files.sinks.jsonl_sink import FileSink, why
from actors.files.sinks.results_recovery import checksum_of
from actors.files.sinks.table_sink import TableSink
from actors.history.catalog import last_terms
from actors.jobs.bad_record_list import restored
from actors.jobs.sink_selection import results_sink
from actors.jobs.spec import JobSpec
from actors.journal.journal import StateFolder, TextRedacted
from actors.maintenance.kept_results import refuse_foreign
from actors.programs import loader
from cortex.values.limits import JobTerms


def complete_output(
    folder: StateFolder, job: str, facts: dict[str, Any], places: dict[str, str], program: str, overwrite: bool
) -> None:
    """Complete the results file of a job that is over, with missing results from the journal. Raises ``SinkError``,
    also for a file of JSON Lines whose rows were changed since the job wrote them, and for a table that does not hold
    all rows, and something else.
    """
    from actors.maintenance.offline_edits import copy_results

    path = facts["output"]
    if path in ("", "-"):
        return
    rows, size_bytes = facts["results_written"], facts["bytes_written"]
    sink = results_sink(folder, job, path, places.get("input", ""), overwrite, places, program, own=True)
    assert sink is not None
    changed = isinstance(sink, FileSink) and _changed(sink, path, size_bytes, facts.get("checksum_written", -1))
    whole = rows == facts["results"] and not changed and _whole(sink, path, rows, size_bytes)
    if whole and not is_remote(path):
        return
    terms = last_terms(folder, job)
    if isinstance(sink, FileSink):
        sink.only_copy = terms is None or not terms.keeps_text
    lost = f"{path} was changed since job {job} wrote it, and the job keeps no text: "
    if changed and rows == facts["results"] and terms is not None and not terms.keeps_text:
        raise SinkError(f"{lost}it is the only copy, and stays as it is, also with --overwrite")
    if terms is not None and not refuse_foreign(folder, job, terms, sink, path, overwrite):
        sink.replace()
        rows = size_bytes = 0
    elif whole:
        return
    sink.check()
    finished = isinstance(sink, TableSink) and sink.finished()
    if isinstance(sink, TableSink) and finished:
        sink.keep_changes()
    try:
        copy_results(folder, job, sink, rows, size_bytes, own=True)
    except TextRedacted:
        sink.forget()
        raise SinkError(f"{lost}missing rows are lost") from None
    except SinkError:
        if finished:
            sink.forget()
        raise
    print_error(f"{path} {'was changed' if changed else 'is incomplete'}: written again from the journal")
    sink.forget()


def complete_list(folder: StateFolder, job: str, terms: JobTerms) -> None:
    """Write the list of a job's bad records again if it is gone. Raises ``SinkError``."""
    if path := restored(folder, job, terms):
        print_error(f"{os.path.relpath(path)} was gone: written again")


def _changed(sink: FileSink, path: str, size_bytes: int, checksum: int) -> bool:
    """Return whether the bytes that the job has written have another CRC-32 than the journal records, and have the sink
    refuse to continue such a file. False for a file that is shorter, and without a checksum in the journal (-1).

    Raises ``SinkError`` for a file that cannot be read.
    """
    sink.checksum = checksum
    if checksum == -1 or not Path(path).is_file() or Path(path).stat().st_size < size_bytes:
        return False
    try:
        with open(path, "rb") as file:
            return checksum_of(file.fileno(), size_bytes) != checksum
    except OSError as error:
        raise SinkError(f"{path} cannot be read: {why(error)}") from None


def _whole(sink: FileSink | TableSink, path: str, rows: int, size_bytes: int) -> bool:
    if isinstance(sink, TableSink):
        return sink.holds(rows)
    return Path(path).exists() and Path(path).stat().st_size == size_bytes


def refuse_changed_table(folder: StateFolder, job: str, sink: TableSink) -> None:
    """Raise ``SinkError`` for a local table that a job has finished and that was changed since. A job without text
    cannot tell: its table passes for unchanged."""
    from actors.maintenance.offline_edits import see_changes

    if not sink.finished():
        return
    try:
        see_changes(folder, job, sink)
    except TextRedacted:
        return
    finally:
        sink.forget()


def own_sink(folder: StateFolder, order: JobSpec) -> FileSink | TableSink | None:
    """Return the sink of a job's results; None without an output."""
    program, job = loader.place_of(type(order.program)), order.named()
    return results_sink(folder, job, order.output, order.input, order.overwrite, order.places, program, own=True)


def sink_of(folder: StateFolder, job: str, output: str, overwrite: bool = False) -> FileSink | TableSink | None:
    """Return the sink of a copy of a job's results; None without an output."""
    terms = last_terms(folder, job)
    if terms is None:
        return FileSink(output, overwrite=overwrite) if output else None
    return results_sink(folder, job, output, "", overwrite, terms.places, terms.program, own=False)


def check_output(sink: FileSink | TableSink, output: str, may_exist: bool, goes_on: bool = False) -> None:
    """Raise ``SinkError`` for an output that cannot be used, before anything is asked.

    ``goes_on``: this job has not ended, and has written to the output before.
    """
    sink.check()
    if goes_on and isinstance(sink, TableSink) and not sink.begun():
        raise SinkError(f"{output} is not as this job left it: move it away, or give --overwrite")
    if sink.cuts_back and not may_exist and sink.taken():
        raise SinkError(f"{output} exists: give --overwrite to write over it, or name another output")
    if not may_exist and isinstance(sink, TableSink):
        sink.see_alone()
