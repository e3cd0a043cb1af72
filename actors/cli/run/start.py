"""``batch`` and ``run``: from a command line to a session; all input is checked first."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from actors.api.session import Session
from actors.cli.jobs.config import CONFIG, stated, stated_options
from actors.cli.jobs.job_state import forget_spool, spool_of, standing_of
from actors.cli.jobs.programs import built, class_help, missing, program_named
from actors.cli.jobs.rendering import OVER
from actors.cli.jobs.settings import (
    accepted_bad_of,
    base_urls_of,
    cluster_of,
    fallbacks_of,
    folder_of,
    labels_of,
    limits_of,
    model_spec_of,
    provider_of,
    roles_of,
    shards_of,
    share_of,
    shared_at,
    via_of,
)
from actors.cli.jobs.texts import files_of
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.command_line import again
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.cli.run.execute import PreparedRun, carry_out, report
from actors.cli.run.sinks import check_output, complete_output, own_sink
from actors.cli.run.tables import dialect_places, program_of, table_source
from actors.cli.run.wait_for_job import in_turn
from actors.common.errors import CommandError
from actors.files.bad_records import SUFFIX, BadRecordFile
from actors.files.dialects.dialect import decoded
from actors.files.errors import SourceError
from actors.files.line_reader import keep
from actors.files.paths import digest_of
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sinks.table_sink import TableSink
from actors.files.sources.line_source import LineSource
from actors.files.sources.row_source import BatchSource, InputCheck, RowSource
from actors.files.sources.table_source import TableSource
from actors.history.catalog import last_places, last_state, last_terms
from actors.jobs.bad_record_list import BAD, list_of, named_list
from actors.jobs.opening import same_request
from actors.jobs.sink_selection import TABLE, is_table, note_columns
from actors.jobs.spec import CONTENT, DIALECT, JobSpec, whole
from actors.jobs.unreadable_input import UnreadableInput, is_refused, least_accepted, note_counts, refusal
from actors.journal.journal import StateFolder
from actors.journal.state_folder import advised
from actors.maintenance.kept_results import would_be_lost
from actors.maintenance.retry_rows import RetriedRows
from actors.planning.inputs import sample_order
from actors.programs import loader
from actors.providers.registry import SAMPLING, SIMULATED, of_model
from actors.routing.api_detection import line_apis, over_chat
from actors.routing.routes import ModelSpec, remember, remembered
from cortex.flows.program import Flow
from cortex.programs.batch import Batch
from cortex.programs.embed import Embed
from cortex.programs.shards import unsharded
from cortex.programs.table import Table
from cortex.state.program import Program, params_of
from cortex.values.chat_form.request import CHAT, EMBEDDINGS, RESPONSES
from cortex.values.limits import JobTerms, Limits

BATCH = "batch"
CRYSTAL = "crystal"
SAVED = ".toml"
LINES = "lines"
GOES_ON = "it goes on where it stopped"
BEGINS_ANEW = "the program has changed, so the job begins anew; paid replies are reused"


def batch(path: str, output: str, options: Options, sample: int = 0) -> int:
    """Run ``cortex batch`` and return the exit code. ``sample``: the --sample of an earlier ``cortex plan``."""
    return rows_job(path, output, options, sample)


def rows_job(
    path: str, output: str, options: Options, sample: int = 0, *, program: Batch | Table | None = None,
    limits: Callable[[Limits], Limits] = lambda limits: limits,
) -> int:  # fmt: skip
    """Run a job with a call for each row, or for several, and return the exit code. ``program``: of the rows; None: the
    one of ``cortex batch``. ``limits`` completes the job's limits."""
    folder, order = batch_order(path, output, options, program=program)
    order.limits = limits(order.limits)
    source = rows_source(folder, order, given_input(folder, order))
    source.bad = list_of(folder, order)
    with contextlib.closing(source):
        try:
            note_api(order, source, options)
            check = checked(order, options, source, folder)
        except (CommandError, SourceError, UnreadableInput):
            if not folder.has(order.named()):  # a copy of standard input is not what a job began with
                spool_of(folder, order.named()).unlink(missing_ok=True)
            raise
        if sample and last_terms(folder, sample_order(order, check, sample).named()) is None:
            raise CommandError(
                f"--sample {sample} reuses a sample of `cortex plan`, and no such plan was made: leave it out, all "
                f"{check.rows:,} rows are asked"
            )
        return _begun(order, options, folder, source, check)


def checked(
    order: JobSpec, options: Options, source: BatchSource | TableSource, folder: StateFolder | None = None
) -> InputCheck:
    """Check the whole input, print its problems, and set what only the input tells: columns and the model.

    ``folder``: state folder, if the job may have begun there: its input was accepted then. Raises ``UnreadableInput``.
    """
    accepted = accepted_bad_of(options)
    check = source.check()
    begun = folder is not None and not order.fresh and last_terms(folder, order.named()) is not None
    if not begun and is_refused(check, accepted):
        way = again(f"--accept-bad {least_accepted(check)}%")
        if options.bad and isinstance(source.bad, BadRecordFile):
            source.bad.put(begins=False)
        listed = f"{options.bad or '--bad FILE'} lists all"
        raise UnreadableInput(f"{refusal(_name(order.input), check, accepted, listed)}: {way}")
    print_problems(order.input, check)
    note_columns(order, source)
    order.model_spec = model_spec_of(options, options.model or _one_model(check))
    return check


def batch_order(
    path: str, output: str, options: Options, folder: StateFolder | None = None, program: Batch | Table | None = None
) -> tuple[StateFolder, JobSpec]:
    """Return the state folder and the spec of ``cortex batch``, before the input is read.

    ``folder``: a state folder to use as it is, for callers that start nothing. ``program``: that of the rows; None: as
    the options say. Raises ``CommandError``.
    """
    folder, limits = _prepared(options, folder)
    rows_model = body_model(options.model)
    program = program or program_of(options, path, output)
    provider = provider_of(options).get("provider", "")  # decides which fields a row may hold
    places = {"kind": BATCH, "rows_model": rows_model, "output_tokens_max": str(options.max_output_tokens or "")}
    if options.prompt:
        places = {"kind": TABLE} | ({} if options.id else {"numbered": "1"})
    order = JobSpec(
        program=program, limits=limits, job=options.job, state=folder.address, cluster=cluster_of(options),
        input=path, output=output, fresh=options.fresh, overwrite=options.overwrite,
        places={CONFIG: stated_options(options), **shared_at(options), **places, **dialect_places(options),
                **({BAD: named_list(options.bad, (path, output), options.overwrite)} if options.bad else {})},
        model_spec=ModelSpec(model=options.model, provider=provider).at_servers(base_urls_of(options) or [""]),
        keeps_text=not options.no_keep_text, labels=labels_of(options), shards=shards_of(options),
        concurrency_given=bool(options.concurrency),
    )  # fmt: skip
    if not order.keeps_text and not is_table(output) and (output == "-" or not FileSink(output).cuts_back):
        raise CommandError("--no-keep-text needs -o FILE: results are kept in that file only")
    return folder, order


def run(where: str, inputs: list[str], output: str, pairs: list[str], options: Options) -> int:
    """Run ``cortex run`` and return the exit code."""
    folder, order = run_order(where, inputs, output, pairs, options)
    if order.places.get("kind") != LINES:
        missing(order.program)
        return _begun(order, options, folder, None, None)
    given_input(folder, order)
    source = LineSource(order.input, spool=spool_of(folder, order.named()))
    with contextlib.closing(source):
        return _begun(order, options, folder, source, source.check(objects=isinstance(order.program, Flow)))


def run_order(
    where: str, inputs: list[str], output: str, pairs: list[str], options: Options, folder: StateFolder | None = None
) -> tuple[StateFolder, JobSpec]:  # fmt: skip
    """Return the state folder and the spec of ``cortex run``, before the input is read; see ``batch_order``.

    Raises ``CommandError``.
    """
    if where == BATCH:
        raise CommandError("`cortex batch INPUT -o OUTPUT` runs this program")
    if where == Table.name:
        raise CommandError("`cortex batch TABLE --prompt '…' -o OUTPUT` runs this program")
    if where == Embed.name:
        raise CommandError("`cortex embed TABLE -o OUTPUT.parquet` runs this program")
    if is_table(output):
        raise CommandError(f"-o {output}: `cortex run` writes JSON Lines: name a file that ends in .jsonl")
    program = _program(where, inputs, pairs)
    folder, limits = _prepared(options, folder)
    lines = bool(inputs) and not program.files
    if lines and len(inputs) > 1:
        raise CommandError(f"{where} reads its rows from one file, not from {len(inputs)}: join them first")
    order = JobSpec(
        program=program, model_spec=model_spec_of(options, options.model), limits=limits, job=options.job,
        state=folder.address, cluster=cluster_of(options), input=inputs[0] if inputs else "", output=output,
        fresh=options.fresh, overwrite=options.overwrite,
        places={CONFIG: stated_options(options), **shared_at(options), **({"kind": LINES} if lines else {})},
        labels=labels_of(options), concurrency_given=bool(options.concurrency),
    )  # fmt: skip
    return folder, order


def _program(where: str, inputs: list[str], pairs: list[str]) -> Program:
    if where == CRYSTAL:
        raise CommandError("name the saved program: cortex run programs/NAME.toml, or cortex program run NAME")
    if where.partition("@")[0].endswith(SAVED):
        from actors.cli.programs.saved import program_of

        return program_of(where, inputs, pairs)
    type_ = program_named(where)
    return built(type_, pairs, files_of(type_.files, inputs) if type_.files and inputs else {})


def program_help(where: str) -> str:
    """Return description and parameters of a program, for ``cortex run PROGRAM --help``.

    Raises ``CommandError``, or ``SavedProgramError`` for a saved program.
    """
    if where.partition("@")[0].endswith(SAVED):
        from actors.cli.programs.saved import saved_program_help

        return saved_program_help(where)
    return class_help(program_named(where))


def _prepared(options: Options, folder: StateFolder | None) -> tuple[StateFolder, Limits]:
    share_of(options)
    fallbacks_of(options)
    roles_of(options)
    via_of(options)
    provider_of(options)
    limits = limits_of(options)
    return folder or folder_of(options), limits


# -- the input -----------------------------------------------------------------------------------------------------


def body_model(model: str) -> str:
    """Return the model name in requests for a model named by the user; empty: the rows' own names stay."""
    row = of_model(model)
    return row.model_name if row is not None and row.model_name else model


def rows_source(folder: StateFolder, order: JobSpec, stdin: io.BytesIO | None = None) -> BatchSource | TableSource:
    """Return the source of ``cortex batch``: rows of a table, or whole requests."""
    made = table_source if order.places["kind"] == TABLE else batch_source
    return made(folder, order, stdin)


def batch_source(folder: StateFolder, order: JobSpec, stdin: io.BytesIO | None = None) -> BatchSource:
    """Return the source of whole requests, as the job's places describe it."""
    tokens = order.places["output_tokens_max"]
    row = order.model_spec.row
    further = row.parameters or (SAMPLING if order.model_spec.base_url else ())
    return BatchSource(
        order.input, model=order.places["rows_model"] or None, output_tokens_max=int(tokens) if tokens else None,
        spool=spool_of(folder, order.named()), stdin=stdin, also_known=further,
        capped=order.limits.max_cost_nusd is not None and not row.free,
        dialect=decoded(order.places.get(DIALECT, "")),
        canonical=order.program.name != BATCH or not over_chat(order.model_spec),
        apis=line_apis(order.model_spec, stated(order.places.get(CONFIG, ""), "api"), api_of(order.program)),
    )  # fmt: skip


def api_of(program: Program) -> str:
    """Return the API of OpenAI's in whose form a program has its lines; empty: none."""
    return (isinstance(program, Batch) and program.api) or ""


def note_api(order: JobSpec, source: BatchSource | TableSource, options: Options) -> None:
    """Set the API of the lines, which the input tells, and have the model asked over it where the user named no other.

    Raises ``SourceError`` for an input that cannot be read.
    """
    if not isinstance(source, BatchSource) or order.program.name != BATCH or not (api := source.api()):
        return
    order.program = msgspec.structs.replace(order.program, api=api)
    if not options.api and (api == RESPONSES or (api == EMBEDDINGS and options.base_url and not options.provider)):
        options.api = RESPONSES if api == RESPONSES else CHAT  # embeddings are beside chat completions


def given_input(folder: StateFolder, order: JobSpec) -> io.BytesIO | None:
    """Store standard input in a file. Without ``--job``, a hash of its content becomes part of the job's name.

    Return an empty stream in place of standard input, or None if the input is not standard input or has a ``--job``.
    """
    if order.input != "-" or order.job:
        return None
    part = folder.path / "jobs" / f".input-{os.getpid()}"
    try:
        keep(sys.stdin.buffer if sys.stdin is not None else None, part, "standard input")
        order.places[CONTENT] = digest_of(part)
        os.replace(part, spool_of(folder, order.named()))
    finally:
        part.unlink(missing_ok=True)
    return io.BytesIO()


def print_problems(path: str, check: InputCheck) -> None:
    """Print the problems of the input, line by line, ten at most. The other rows are asked all the same."""
    if not check.problems:
        return
    lines = []
    if check.refused:
        are = "are" if check.refused > 1 else "is"
        lines.append(f"{check.refused:,} of {check.rows:,} rows {are} refused before sending")
    if check.unreadable:
        are = "are" if check.unreadable > 1 else "is"
        lines.append(f"{check.unreadable:,} of {check.rows + check.unreadable:,} records {are} unreadable and skipped")
    name = _name(path)
    print_error(f"{name}: {'; '.join(lines)}")
    for problem in check.problems:
        print_error(f"{name} {check.noun} {problem.line}: {problem.message}")
    if check.problems_more:
        print_error(f"{name}: and {check.problems_more:,} more {check.noun}s like these")


def put_list(folder: StateFolder, source: Any, check: InputCheck | None, job: str, begins: bool = True) -> None:
    """Put the list of the input's bad records in place, and print where it is. Raises ``SinkError``.

    ``begins``: False for a plan.
    """
    found = source.bad if isinstance(source, RowSource) else None
    if check is None or not isinstance(found, BadRecordFile):
        return
    found.put(begins)
    if check.unreadable:
        hidden = found.path.name == f"{job}{SUFFIX}"
        where = f"by: {advised(folder, 'results', job, '--bad')}" if hidden else f"in {os.path.relpath(found.path)}"
        print_error(f"unreadable records are listed {where}")


def _name(path: str) -> str:
    return "standard input" if path == "-" else path


def _one_model(check: InputCheck) -> str:
    if len(check.models) > 1:
        named = ", ".join(check.models[:5]) + (", ..." if len(check.models) > 5 else "")
        raise CommandError(f"the rows name several models ({named}): a job asks one: give --model NAME, or split them")
    return check.models[0] if check.models else ""


# -- the job -------------------------------------------------------------------------------------------------------


def _begun(order: JobSpec, options: Options, folder: StateFolder, source: Any, check: InputCheck | None) -> int:
    """Begin the job, continue it, or report that it is over. Return the exit code."""
    job = order.named()
    if "~" in job:
        raise CommandError(f"job name {job!r}: '~' is reserved for names of child jobs: choose another name")
    if (code := in_turn(folder, job, options)) is not None:
        return code
    if check is not None:
        note_counts(order, check)
    before = last_terms(folder, job)
    if before is not None and not order.fresh:
        keep_shards(order, options, before)
        refuse_other_places(order, before, job)
        refuse_paying_again(order, before)
        if order.labels and order.labels != before.labels and _same(order, before):
            kept = " ".join(f"{name}={value}" for name, value in before.labels.items()) or "none"
            print_error(f"job {job} keeps the labels of its start: {kept}")
    sink = own_sink(folder, order)
    if before is not None:
        _refuse_losing(order, before, folder, sink)
    if before is not None and not order.fresh:
        put_list(folder, source, check, job)
        code = _already_over(order, options, folder, before, job)
        if code is not None:
            return code
        if source is not None:
            source = RetriedRows(folder, job, source)
            order.model_spec = _as_retried(order, before, folder)
    if sink is not None:
        own = before is not None and before.places.get("output") == whole(order.output)
        goes_on = own and not (order.fresh or options.overwrite) and before is not None and _same(order, before)
        check_output(sink, order.output, own or options.overwrite, goes_on)
    if before is None or order.fresh:
        put_list(folder, source, check, job)
    session = Session(order, taken_environ(), source=source, sink=sink)
    note = "" if before is None or order.fresh else GOES_ON if _same(order, before) else BEGINS_ANEW
    work = PreparedRun(session=session, options=options, source=source, sink=sink, note=note, new=before is None)
    if check is not None:
        work.rows = check.rows
    return carry_out(work)


def keep_shards(order: JobSpec, options: Options, before: JobTerms) -> None:
    """Keep the number of shards of the job's start, which decides the shard of each row."""
    order.shards = unsharded(loader.load(before.program, before.params_json))[1]
    if options.shards and options.shards != order.shards:
        text = f"job {order.named()} keeps the number of shards of its start: {order.shards}"
        print_error(f"{text} (--fresh begins it anew)")


def refuse_other_places(order: JobSpec, before: JobTerms, job: str) -> None:
    """Raise ``CommandError`` if a job of this name has another program, input or output."""
    then, now = before.places, order.places
    if before.program != loader.place_of(type(order.runs())):
        raise CommandError(f"job {job} runs the program {before.program}: give another --job")
    if then.get("digest", "") != now.get("digest", ""):
        name = _name(order.input)
        raise CommandError(
            f"{name} is not what job {job} began with: give another --job (equal rows are not paid again), or --fresh"
        )
    if then.get("output", "") != whole(order.output):
        was = then.get("output") or "no file"
        copies = advised(order.state, "results", job, "-o FILE")
        raise CommandError(f"job {job} writes to {was}: give another --job, or `{copies}`")


def _refuse_losing(order: JobSpec, before: JobTerms, folder: StateFolder, sink: FileSink | TableSink | None) -> None:
    """Raise ``CommandError`` if a job begins anew and would overwrite the results that it wrote before.

    The session checks this for every run (``actors.maintenance.kept_results``). Checked here, it needs no key, and no
    cluster is started for it.
    """
    if sink is None or order.overwrite or before.places.get("output") != whole(order.output):
        return
    then, now = remembered(before.places), order.model_spec
    was = then.base_url.rstrip("/")  # earlier releases kept the address as it was written
    model = (then.model, then.provider, was) != (now.model, now.provider, now.base_url)
    same = not _changed(order, before) or same_request(before, before.program, params_of(order.runs()))
    changed = model or not same or before.places.get("digest") != order.places.get("digest")
    if order.fresh and not changed and before.route.endpoint.startswith(f"{SIMULATED}:"):
        return  # perhaps a rehearsal: the session knows
    asks = "all rows anew" if order.fresh else "another model" if model else "something else"
    if (order.fresh or changed) and sink.kept():
        raise CommandError(would_be_lost(order, last_state(folder, order.named()).outcome, asks))


def _already_over(order: JobSpec, options: Options, folder: StateFolder, before: JobTerms, job: str) -> int | None:
    """Return the exit code of a job that has ended with the same questions; None if work is left."""
    if not _same(order, before):
        return None
    k = last_state(folder, job)
    if k.outcome not in OVER:
        return None
    status = standing_of(folder, job, k)
    print_error(f"job {job} is already {k.outcome}: nothing is asked again (--fresh asks anew)")
    if k.outcome == "complete":
        complete_output(folder, job, status.facts, before.places, before.program, options.overwrite)
    forget_spool(folder, status)
    return report(status, options)


def _same(order: JobSpec, before: JobTerms) -> bool:
    """Return True if the job asks the same as before: same program, parameters and model."""
    return not _changed(order, before) and before.places.get("wish") == remember(order.model_spec)


def _changed(order: JobSpec, before: JobTerms) -> bool:
    """Return True if the program or its parameters have changed."""
    where, params = loader.place_of(type(order.runs())), params_of(order.runs())
    return not loader.is_unchanged(where, params, before.fingerprint)


def _as_retried(order: JobSpec, before: JobTerms, folder: StateFolder) -> ModelSpec:
    """Return the model spec of the job, with model and endpoint of an interrupted retry."""
    if not _same(order, before):
        return order.model_spec
    job = order.named()
    last = remembered(last_places(folder, job, before))
    with contextlib.closing(folder.journal(job)) as source:
        if not source.reopenings():
            return order.model_spec
    return msgspec.structs.replace(
        order.model_spec, model=last.model, base_url=last.base_url, simulated=last.simulated, peers=last.peers
    )


def refuse_paying_again(order: JobSpec, before: JobTerms) -> None:
    """Raise ``CommandError`` if the job would be paid twice for want of kept text, or should stop to keep text
    midway.
    """
    job = order.named()
    if before.keeps_text and not order.keeps_text:
        ways = f"{advised(order.state, 'forget', job)} when it is over, or give another --job"
        raise CommandError(f"job {job} has kept its text so far: {ways}")
    order.keeps_text = before.keeps_text
    where, params = loader.place_of(type(order.runs())), params_of(order.runs())
    if not before.keeps_text and not loader.is_unchanged(where, params, before.fingerprint):
        raise CommandError(
            f"the program of job {job} has changed since, or the release, and the job kept no text: all rows would be "
            "asked, and paid, again: give --fresh to do so"
        )
