"""``plan``: estimate of a job's cost, time and disk space, before it is paid for."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from actors.api.progress_bar import ProgressBar
from actors.api.session import Session
from actors.cli.jobs.job_state import spool_of, standing_of
from actors.cli.jobs.rendering import JobStatus, headline, last_failed, why
from actors.cli.jobs.settings import model_spec_of, share_of
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.errors import COMPLETE, FAILED, INTERRUPTED, PARTIAL, never_show, print_error
from actors.cli.options.options import Options
from actors.cli.planning.render import PlanReport, as_json, plan_lines
from actors.cli.run.execute import header, write_logs
from actors.cli.run.sinks import check_output, own_sink
from actors.cli.run.start import (
    batch_order,
    body_model,
    checked,
    given_input,
    note_api,
    put_list,
    refuse_other_places,
    refuse_paying_again,
    rows_source,
)
from actors.cli.run.terminal import ImmediateStop, SessionRunner
from actors.common.errors import CommandError
from actors.files.paths import is_remote
from actors.files.sources.row_source import InputCheck
from actors.history.catalog import in_use, last_state, last_terms
from actors.jobs.bad_record_list import list_of
from actors.jobs.spec import JobSpec, whole
from actors.jobs.unreadable_input import note_counts
from actors.journal.journal import StateFolder, checked_name
from actors.journal.reply_index import remembered
from actors.planning.inputs import TransportRoutes, endpoint_to, limits_of, routes, sample_order, seed_of, strata_of
from actors.planning.row_sizes import RowSizes
from actors.planning.sample_job import ReportedLimits, SampleSource, seen_in
from actors.routing.api_detection import wants_schemas, with_apis
from actors.routing.queue_metrics import metrics_notes
from actors.routing.server_batches import batches_of
from cortex.planning import (
    JOURNAL_GROWTH,
    JOURNAL_ROW_BYTES,
    InputRows,
    JobPlan,
    PlanSample,
    PlanTerms,
    planned,
)
from cortex.programs.batch import Batch
from cortex.programs.embed import Embed, limits_for
from cortex.programs.parts.embedding import NUMBER_BYTES
from cortex.programs.table import LONGER, Table
from cortex.values.limits import BATCHES
from policies.estimates.forecast import EstimatedTotal
from policies.estimates.tokens import TokenEstimate
from policies.estimates.transport_choice import NOW, TransportLimits, chosen, transport_options

VECTOR_NUMBERS: Final = 1_536
"""Numbers of a vector that are assumed where none are given: those of text-embedding-3-small
(https://platform.openai.com/docs/guides/embeddings)."""


class SampleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of rows that was sent to the model."""

    sample: PlanSample
    limits: ReportedLimits
    status: JobStatus
    remembered: int
    seed: int


def plan(path: str, output: str, sample: int, options: Options, vectors: Embed | None = None) -> int:
    """Run ``cortex plan`` and return the exit code: 0 if a transport meets --max-cost and --deadline, else 1.

    ``vectors``: the program of a plan for ``cortex embed``; None: for ``cortex batch``.
    """
    share_of(options)
    folder, order = batch_order(path, output, options, program=vectors)
    if vectors is not None:
        order.limits = limits_for(order.limits, vectors.rows_max)
    spooled = given_input(folder, order)
    source = rows_source(folder, order, spooled)
    source.bad = list_of(folder, order) if options.bad else None
    try:
        with contextlib.closing(source):
            environ = taken_environ()
            note_api(order, source, options)
            sizes = source.notice = _sizes(order, options, folder, environ)
            check = checked(order, options, source, folder)
            notes = _refused_as_the_job(order, options, folder, check)
            put_list(folder, source, check, order.named(), begins=False)
            rows = sizes.rows(remembered(folder, sizes.questions))
            found, told = _routes(order, environ)
            notes += told
            asked: SampleRun | None = None
            if sample:
                write_logs(options)
                asked_or_code = _asked(order, options, folder, check, source, rows, sample, environ)
                if isinstance(asked_or_code, int):
                    return asked_or_code
                asked = asked_or_code
    finally:
        if order.input == "-" and not folder.has(order.named()):
            spool_of(folder, order.named()).unlink(missing_ok=True)
    now_s = time.time()
    limits = limits_of(folder, found.servers, order.limits, asked.limits if asked else ReportedLimits())
    terms = PlanTerms(
        price=found.now.price, batch_price=found.batches.price if found.batches else None,
        prompt_tokens_max=_room(order, found.now.context_window), limits=limits, retry=order.limits.retry,
        answers_max=_answers_max(order), votes=_votes(order),
        longer=isinstance(order.program, Table) and order.program.on_cut == LONGER,
        output_tokens_max=found.now.output_tokens_max,
    )  # fmt: skip
    if vectors is None:
        made = planned(rows, terms, asked.sample if asked else None)
    else:
        made = _of_vectors(rows, vectors, planned(sizes.requests(), terms))
    deadline_at_s = order.limits.deadline_at_s
    wanted = TransportLimits(order.limits.max_cost_nusd, None if deadline_at_s is None else deadline_at_s - now_s)
    ways = transport_options(
        made.rows, made.cost, made.duration.seconds, made.batch_cost, wanted, float(made.call_worst_nusd),
        batches=found.batches is not None,
    )  # fmt: skip
    asked_road = BATCHES if order.model_spec.via == BATCHES else NOW
    prospect = PlanReport(
        job=order.named(), route=found.now, check=check, all_rows=len(rows.sizes), known=len(rows.known),
        too_large=_too_large(rows, terms), plan=made, limits=limits, transport_limits=wanted,
        deadline_at_s=deadline_at_s,
        now_s=now_s, transports=ways, transport=chosen(ways, asked_road), notes=(*notes, *_notes(order, asked)),
        result_bytes=_result_bytes(order, rows, made.reply_bytes), state=folder.address,
        free_bytes=folder.free_bytes(), output=output, output_free_bytes=_free(output),
        fresh=order.fresh, longer=terms.longer, vectors=vectors is not None, servers=len(found.servers),
        **_sample_facts(asked),
    )  # fmt: skip
    print(as_json(prospect) if options.as_json else "\n".join(plan_lines(prospect)))
    return COMPLETE if prospect.transport is not None else FAILED


def _routes(order: JobSpec, environ: dict[str, str]) -> tuple[TransportRoutes, tuple[str, ...]]:
    """Return the routes of each transport that would work, and what the servers do not tell, for the user."""
    spec = order.model_spec
    found = routes(spec, order.limits, environ, order.program)

    async def asked() -> tuple[TransportRoutes, tuple[str, ...]]:
        metrics, (batches, notes) = await asyncio.gather(
            metrics_notes(spec, environ), batches_of(spec, found.batches, environ)
        )
        return msgspec.structs.replace(found, batches=batches), (*metrics, *notes)

    return asyncio.run(asked())


def _votes(order: JobSpec) -> int:
    votes = order.program.votes if isinstance(order.program, Table) else msgspec.UNSET
    return 1 if votes is msgspec.UNSET else votes


def _answers_max(order: JobSpec) -> int:
    """Return the replies that a row may take: each of its votes once more where it does not fit the schema."""
    return _votes(order) * (2 if isinstance(order.program, Table) and order.program.schema else 1)


def _of_vectors(rows: InputRows, program: Embed, requests: JobPlan) -> JobPlan:
    """Return the plan of a job's requests for vectors as one of its rows: they have no output tokens, and replies of
    four thirds of the bytes of their numbers, as base64."""
    dimensions = VECTOR_NUMBERS if program.dimensions is msgspec.UNSET else program.dimensions
    reply_bytes = len(rows.sizes) * (dimensions * NUMBER_BYTES * 4 // 3 + 30)
    return msgspec.structs.replace(
        requests, rows=len(rows.sizes), output_tokens=EstimatedTotal(0.0, 0.0, 0.0), reply_bytes=reply_bytes,
        journal_bytes=round(JOURNAL_GROWTH * (rows.text_bytes + reply_bytes + JOURNAL_ROW_BYTES * len(rows.sizes))),
    )  # fmt: skip


def _sizes(order: JobSpec, options: Options, folder: StateFolder, environ: dict[str, str]) -> RowSizes:
    """Return the sizes of all rows; with their questions if replies of earlier runs may be reused."""
    program = order.program
    assert isinstance(program, Batch | Table)
    asks = not order.fresh and folder.remembers() and not isinstance(program, Embed)
    spec = model_spec_of(options, options.model)
    chat = isinstance(program, Batch) and bool(program.api)
    found = asyncio.run(with_apis(spec, environ, (), chat, wants_schemas(program)))[0] if asks else None
    endpoint = "" if found is None else endpoint_to(found, environ)
    return RowSizes(program, body_model(options.model), order.limits.output_tokens_max, endpoint)


def _refused_as_the_job(order: JobSpec, options: Options, folder: StateFolder, check: InputCheck) -> list[str]:
    """Raise the errors that the job itself would raise. Return notes about an existing job of that name."""
    job = order.named()
    checked_name(job)
    if "~" in job:
        raise CommandError(f"job name {job!r}: '~' is reserved for names of child jobs: choose another name")
    note_counts(order, check)
    before = last_terms(folder, job)
    notes = []
    if before is not None and not order.fresh:
        refuse_other_places(order, before, job)
        refuse_paying_again(order, before)
        k = last_state(folder, job)
        notes.append(f"job {job} has begun: {k.tally.succeeded + k.tally.failed:,} of its rows are done")
    if running := in_use(folder, job):
        notes.append(running)
    sink = own_sink(folder, order)
    if sink is not None:
        own = before is not None and before.places.get("output") == whole(order.output)
        check_output(sink, order.output, own or options.overwrite)
    return notes


def _asked(
    order: JobSpec, options: Options, folder: StateFolder, check: InputCheck, source: Any, rows: InputRows, wanted: int,
    environ: dict[str, str],
) -> SampleRun | int:  # fmt: skip
    """Ask the rows of a sample, or read replies of an earlier sample. Return an exit code instead if that failed."""
    seed = seed_of(check)
    strata = strata_of(rows.sizes, wanted, seed)  # type: ignore[arg-type]
    picked = SampleSource(source, [place for each in strata for place in each.drawn])
    own = sample_order(order, check, wanted)
    job, code = own.named(), 0
    places = {row.key: place for place, row in picked.rows.items()}
    before = last_terms(folder, job)
    if before is None or own.fresh or last_state(folder, job).outcome != "complete":
        own.places["rows"] = str(len(places))
        code = _carried_out(Session(own, environ, source=picked), options, len(places))
    status = standing_of(folder, job)
    if code:
        print_error(f"sample {headline(status)}; give the same command again to go on, or a smaller --sample")
        return code
    seen, remembered, limits = seen_in(folder, job, places)
    sample = PlanSample(strata, seen)
    if status.outcome != "complete" or not sample.answered:
        print_error(f"sample {headline(status)}")
        for line in filter(None, (why(status), last_failed(status.facts))):
            print_error(line)
        if len(sample.answered) < 2:
            larger = "too few rows of the sample were answered: give a larger --sample"
            if status.facts["rows_failed"]:
                larger = "too few rows of the sample were answered: correct why they failed, or give a larger --sample"
            print_error("to go on: the same command" if status.resume else larger)
            return PARTIAL if status.resume else FAILED
    return SampleRun(sample=sample, limits=limits, status=status, remembered=remembered, seed=seed)


def _carried_out(session: Session, options: Options, rows: int) -> int:
    """Run the sample's job. Return the exit code of an interruption, else 0."""
    bar = ProgressBar(rows=rows, form=options.log_format or "text")
    conduct = SessionRunner(session, bar, lambda session: header(session, "a sample"))
    session.progress, session.on_credential = conduct.progress, never_show
    try:
        conduct.run()
    except ImmediateStop:
        return conduct.code or INTERRUPTED
    return conduct.code


def _notes(order: JobSpec, asked: SampleRun | None) -> Iterator[str]:
    """Yield further notes about a sample."""
    if asked is None:
        return
    facts, limits = asked.status.facts, asked.limits
    throttled = facts["failures"].get("throttled", 0)
    if throttled and not (limits.requests or limits.input_tokens or limits.output_tokens):
        text = f"{throttled:,} calls of the sample were throttled, and the provider named no limit"
        yield f"{text}: expect the job to take longer"
    if order.model_spec.via == BATCHES:
        yield "the sample was asked in single calls, at their price, since a message batch may take a day"
    if not order.keeps_text:
        yield f"the sample keeps its text for the job: `{asked.status.command('forget')}` when the job is over"


def _sample_facts(asked: SampleRun | None) -> dict[str, Any]:
    if asked is None:
        return {"sample": None}
    facts = asked.status.facts
    return {
        "sample": asked.sample, "seed": asked.seed,
        "remembered": asked.remembered, "sample_job": str(facts["job"]),
        "paid_nusd": facts["known_nusd"] + facts["assumed_nusd"],
    }  # fmt: skip


def _room(order: JobSpec, window: int) -> int:
    """Return M, the largest prompt in tokens: the window without the reply, and within --prompt-tokens-max."""
    room, own = window - order.limits.output_tokens_max, order.limits.prompt_tokens_max
    return room if own is None else min(room, own)


def _too_large(rows: InputRows, terms: PlanTerms) -> int:
    """Return the number of rows that certainly exceed M; they fail without being sent."""
    estimate, room = TokenEstimate(), terms.prompt_tokens_max
    if not rows.sizes or estimate.tokens_least(max(rows.sizes)) <= room:
        return 0
    return sum(estimate.tokens_least(size) > room for size in rows.sizes)


def _result_bytes(order: JobSpec, rows: InputRows, reply_bytes: int) -> int:
    """Return the expected size of the results as JSON Lines: the replies, and the rows that a table adds to them."""
    if not isinstance(order.program, Table):
        return reply_bytes + 60 * len(rows.sizes)
    if isinstance(order.program, Embed):  # Parquet holds the numbers themselves
        return reply_bytes * 3 // 4 + (rows.text_bytes if order.program.with_input else 0)
    with_input = rows.text_bytes if order.program.with_input else 0
    return max(reply_bytes - 300 * len(rows.sizes), 0) + with_input + (200 * order.program.meta + 40) * len(rows.sizes)


def _free(output: str) -> int | None:
    if output in ("", "-") or is_remote(output):
        return None
    folder = Path(output).resolve().parent
    return shutil.disk_usage(folder).free if folder.is_dir() else None
