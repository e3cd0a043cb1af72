"""``resume`` and ``attach``: continue a job that has begun."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from actors.api.session import Session
from actors.cli.jobs.config import CONFIG, merged, stated_options
from actors.cli.jobs.job_state import number, spool_of, standing_of
from actors.cli.jobs.rendering import OVER
from actors.cli.jobs.settings import changed_model_spec, cluster_of, folder_of, limits_of, share_of, shared_at
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.cli.run.execute import PreparedRun, carry_out, report
from actors.cli.run.sinks import check_output, complete_list, complete_output, own_sink, sink_of
from actors.cli.run.start import BATCH, BEGINS_ANEW, LINES, print_problems, put_list, rows_source
from actors.cli.run.wait_for_job import in_turn
from actors.common.errors import CommandError
from actors.common.units import clock
from actors.files.errors import SourceError, WrongEncoding
from actors.files.sources.line_source import LineSource
from actors.history.catalog import last_places, last_state
from actors.jobs.bad_record_list import list_of
from actors.jobs.sink_selection import TABLE
from actors.jobs.spec import JobSpec, whole
from actors.journal.journal import StateFolder
from actors.maintenance import offline_edits
from actors.maintenance.retry_rows import RetriedRows, input_is_left
from actors.planning.inputs import SAMPLE
from actors.programs import loader
from actors.routing.routes import remembered
from cortex.programs.shards import unsharded
from cortex.state.state import State
from cortex.values.batch_record import SubmissionStatus

Decided = tuple[tuple[int, str], ...]


def decided_of(submitted: Sequence[str], not_submitted: Sequence[str]) -> Decided:
    """Return the user's decisions on message batches in doubt: (number, id of the batch; empty if none was created).

    Raises ``CommandError``.
    """
    decided = []
    for flag, pairs in (("--submitted", submitted), ("--not-submitted", not_submitted)):
        for pair in pairs:
            number, equals, name = (part.strip() for part in pair.partition("="))
            if not number.isdecimal() or bool(name) != (flag == "--submitted") or (equals and not name):
                form = "N=BATCH, like 2=msgbatch_01" if flag == "--submitted" else "N, like 2"
                raise CommandError(f"{flag} {pair!r} is no decision: give {form}")
            decided.append((int(number), name))
    if len({number for number, _ in decided}) < len(decided):
        raise CommandError("--submitted and --not-submitted name a message batch twice: give each number once")
    return tuple(decided)


def go_on(job: str, options: Options, *, attaching: bool, copy: str = "", decided: Decided = ()) -> int:
    """Run ``cortex resume`` or ``cortex attach`` and return the exit code. ``copy``: file for a copy of the results."""
    share_of(options)
    folder = folder_of(options)
    waited = in_turn(folder, job, options)
    if waited is not None and not copy:
        return waited
    k = last_state(folder, job)
    if copy and whole(copy) == k.terms.places.get("output"):
        copy = ""
    if copy:
        check_output(_copying(folder, job, copy, options), copy, options.overwrite)
    if waited is not None:
        code = waited
    elif k.outcome in OVER:
        code = _over(folder, job, k, options)
    else:
        code = _resumed(folder, job, k, options, attaching, decided)
    if copy:
        count = offline_edits.copy_results(folder, job, _copying(folder, job, copy, options))
        print_error(f"{count:,} results copied to {copy}")
    return code


def _copying(folder: StateFolder, job: str, copy: str, options: Options) -> Any:
    return sink_of(folder, job, copy, options.overwrite)


def _over(folder: StateFolder, job: str, k: State, options: Options) -> int:
    """Complete the results file of a job that has ended, without asking anything. Return the exit code."""
    status = standing_of(folder, job, k)
    print_error(f"job {job} is already {k.outcome}: nothing is left to do{put_right(k)}")
    complete_output(folder, job, status.facts, k.terms.places, k.terms.program, options.overwrite)
    complete_list(folder, job, k.terms)
    return report(status, options)


def put_right(k: State) -> str:
    """Return advice for a job that its author's own program made fail; empty for other jobs."""
    if k.outcome != "failed" or loader.is_ready(k.terms.program):
        return ""
    there = k.written_rows and k.terms.places.get("output", "") not in ("", "-")
    how = " with --overwrite" if there else ""  # the corrected program writes its results from the first one on
    return f". Correct the program and repeat the command that began the job{how}: answers are not paid again"


def _resumed(folder: StateFolder, job: str, k: State, options: Options, attaching: bool, decided: Decided) -> int:
    _refuse_undoubted(k, decided)
    order = order_of(folder, job, k, options, "attach" if attaching else "resume", attaching)
    order.decided = decided
    complete_list(folder, job, k.terms)
    source = _source(folder, order, k)
    sink = own_sink(folder, order)
    if sink is not None:
        check_output(sink, order.output, True, goes_on=not options.overwrite)
    session = Session(order, taken_environ(), source=source, sink=sink)
    note = "the job did not run: resumed" if attaching else "resumed"
    if _anew(k):
        note += f"; {BEGINS_ANEW}"
    work = PreparedRun(session=session, options=options, source=source, sink=sink, note=note)
    work.rows = number(order.places, "rows")
    return carry_out(work)


def order_of(
    folder: StateFolder, job: str, k: State, options: Options, command: str = "resume", attaching: bool = False
) -> JobSpec:  # fmt: skip
    """Return the spec of a job from its journal, with the given options applied. Raises ``CommandError``."""
    terms = k.terms
    places = last_places(folder, job, terms)
    limits = limits_of(options, terms.limits)
    deadline_at_s = limits.deadline_at_s
    if not attaching and deadline_at_s is not None and deadline_at_s <= time.time():
        raise CommandError(f"the deadline of job {job} passed at {clock(deadline_at_s)}: give --deadline +6h, or none")
    spec = remembered(places)
    if _anew(k) and not terms.keeps_text:
        raise CommandError(
            f"the program of job {job} has changed since, or the release, and the job kept no text: all rows would be "
            "asked, and paid, again: repeat the first command with --fresh to do so"
        )
    if _anew(k):  # the model of a retry is no part of the job's first command
        spec = msgspec.structs.replace(spec, model=remembered(terms.places).model)
    places |= shared_at(options)
    places[CONFIG] = merged(places.get(CONFIG, ""), stated_options(options, command))
    program, shards = unsharded(loader.load(terms.program, terms.params_json))
    return JobSpec(
        program=program, shards=shards, model_spec=changed_model_spec(options, spec),
        limits=limits, job=job, state=folder.address,
        cluster=cluster_of(options, places.get("cluster", "auto")), input=places.get("input", ""),
        output=places.get("output", ""), overwrite=options.overwrite, places=places,
        keeps_text=terms.keeps_text, labels=terms.labels, resumed=True, concurrency_given=True,
    )  # fmt: skip


def _anew(k: State) -> bool:
    """Return True if the program has changed since, so that the job begins anew."""
    return not loader.is_unchanged(k.terms.program, k.terms.params_json, k.terms.fingerprint)


def _refuse_undoubted(k: State, decided: Decided) -> None:
    """Raise ``CommandError`` for a decision on a batch that is not in doubt: its rows could be paid twice."""
    doubted = {
        made.number
        for made in k.submissions.values()
        if made.stand in (SubmissionStatus.DOUBTED, SubmissionStatus.ASKING)
    }
    for each, _ in decided:
        if each not in doubted:
            known = f"in doubt: {', '.join(map(str, sorted(doubted)))}" if doubted else "none is in doubt"
            raise CommandError(f"job {k.terms.job} has no message batch {each} in doubt; {known}")


def _source(folder: StateFolder, order: JobSpec, k: State) -> Any:
    """Return the source of the job's rows, checked again, so that a changed input is refused before anything is sent.

    None for a job without rows, or whose rows are all in the journal.
    """
    if not (k.terms.streams or order.shards > 1):
        return None
    if k.edition and not _anew(k):
        return RetriedRows(folder, order.named(), input_of(folder, order) if input_is_left(folder, k) else None)
    return input_of(folder, order, needed=not k.source_ended or _anew(k))  # otherwise all rows are in the journal


def input_of(folder: StateFolder, order: JobSpec, needed: bool = True) -> Any:
    """Return the input of a job that has begun, checked again; None for one that cannot be read and is not ``needed``.

    Raises ``CommandError`` and ``SourceError``.
    """
    kind = order.places.get("kind")
    if kind in (BATCH, TABLE):
        source: Any = rows_source(folder, order)
        source.bad = list_of(folder, order)
    elif kind == SAMPLE:
        raise CommandError(f"job {order.job} is the sample of a plan: repeat that `cortex plan` to continue it")
    elif kind == LINES:
        source = LineSource(order.input, spool=spool_of(folder, order.named()))
    else:
        raise CommandError(f"job {order.job} was started from Python with its own rows: resume it from Python")
    try:
        check = source.check()
    except SourceError as error:
        if not needed:
            return None
        if isinstance(error, WrongEncoding):  # the encoding is that of the job's first command
            raise _changed_input(order) from None
        raise
    if check.digest != order.places.get("digest", check.digest):
        source.close()
        raise _changed_input(order)
    print_problems(order.input, check)
    put_list(folder, source, check, order.named())
    return source


def _changed_input(order: JobSpec) -> CommandError:
    text = f"{order.input} has changed since job {order.job} began"
    return CommandError(f"{text}: put it back, or begin another job")
