"""``report``: the course of a job as one HTML page or as a trace, from its journal alone."""

from __future__ import annotations

import contextlib
import gzip
import sys
import time
from collections.abc import Iterable

from actors.cli.jobs.causes import see_cause
from actors.cli.jobs.job_state import standing_of
from actors.cli.jobs.rendering import cost, why
from actors.cli.jobs.settings import named_folder
from actors.cli.options.atomic_write import check_free, whole
from actors.cli.options.errors import COMPLETE, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.common.units import span
from actors.history.annotated_turns import JournalReader, readings
from actors.journal.journal import StateFolder
from actors.report.aggregate import fold
from actors.report.figures import ReportFigures
from actors.report.sentences import JobEnding
from cortex.journal import codec
from cortex.state.state import State

FORMATS = ("html", "perfetto")


def report(job: str, output: str, form: str, without_text: bool, options: Options) -> int:
    """Run ``cortex report`` and return the exit code."""
    if form not in FORMATS:
        raise CommandError(f"--format {form}: give {' or '.join(FORMATS)}")
    folder = named_folder(options)
    found = readings(folder, job)  # raises for an unknown job, before a file is created
    output = output or f"{job}{'.html' if form == 'html' else '.trace.json.gz'}"
    if output != "-":
        check_free(output, options.overwrite)
    if found[0].changed:
        print_error(
            f"the program of {job} has changed since, or is gone: the report has only data of the journal"
        )
    if form == "html":
        _written(output, [_html(folder, job, found, not without_text).encode()])
    else:
        from actors.report.perfetto import trace

        _written(output, trace(found, not without_text))
    if output != "-":
        print_error(f"the report on {job} is in {output}")
    return COMPLETE


def _html(folder: StateFolder, job: str, found: list[JournalReader], text: bool) -> str:
    from actors.report.page import NO_CHARTS, page, plotly
    from actors.report.page import report as make

    figures = fold(found, unnamed=not text)
    library = plotly()
    if library is None:
        print_error(f"tables in place of charts: {NO_CHARTS}")
    return page(make(found, _ending(folder, job, found[0], figures), figures, text), library)


def _ending(folder: StateFolder, job: str, reading: JournalReader, figures: ReportFigures) -> JobEnding:
    k = reading.k if reading.k is not None else _account(reading, figures)
    source = folder.journal(job)
    try:
        codec.put_right(k, source.account(reading.seq))
    finally:
        source.close()
    status = standing_of(folder, job, k)
    see_cause(folder, job, status)
    facts = status.facts
    return JobEnding(
        facts=facts, outcome=status.outcome, rows=0 if reading.changed else status.rows,
        why=why(status),
        resume=status.resume, cost=cost(facts) if facts["cost_usd"] is not None else "",
        time=span(facts["elapsed_s"]), now_s=time.time(),
    )  # fmt: skip


def _account(reading: JournalReader, figures: ReportFigures) -> State:
    """Return the part of K that is known although the turns cannot be replayed."""
    k = codec.open_job(reading.terms)
    k.began_at_s, k.at_s = reading.begin_s, reading.end_s
    own = figures.jobs.get(reading.name)
    k.tally.calls = own.answered + own.reused if own is not None else 0
    k.tally.failures = {kind: each.count for kind, each in figures.failures.items()}
    k.written_rows = figures.written
    return k


def _written(output: str, parts: Iterable[bytes]) -> None:
    """Write the file completely or not at all."""
    if output == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(stack.enter_context(whole(output)).open("wb"))
        packed = stack.enter_context(gzip.open(file, "wb", compresslevel=6)) if output.endswith(".gz") else file
        for part in parts:
            packed.write(part)
