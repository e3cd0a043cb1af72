"""``retry``: ask the failed rows of a job again, within the same job."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import closing

import msgspec

from actors.api.session import Session
from actors.cli.jobs.job_state import number, standing_of
from actors.cli.jobs.rendering import JobStatus, failed_kinds
from actors.cli.jobs.settings import folder_of, share_of
from actors.cli.options.api_keys import taken_environ
from actors.cli.options.options import Options
from actors.cli.run.execute import PreparedRun, carry_out
from actors.cli.run.resume import input_of, order_of, put_right
from actors.cli.run.sinks import complete_list, own_sink, refuse_changed_table
from actors.cli.run.start import body_model
from actors.common.errors import USAGE, CommandError
from actors.files.errors import SinkError
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sinks.table_sink import TableSink
from actors.history.catalog import in_use, last_state
from actors.jobs.spec import JobSpec, who
from actors.journal.state_folder import StateFolder, advised
from actors.maintenance import offline_edits
from actors.maintenance.retry_rows import NoFailedRows, RetriedRows, reopening
from actors.programs import loader
from actors.routing.api_detection import as_known
from actors.routing.endpoints import whereto
from actors.routing.routes import remembered
from cortex.goals.result_list import listed_before
from cortex.programs.shards import Shards
from cortex.state.events import RowsReopened
from cortex.state.state import State
from policies.failures.failure import FailureKind


def retry(job: str, kinds: Sequence[str], options: Options) -> int:
    """Run ``cortex retry`` and return the exit code."""
    share_of(options)
    wanted = kinds_of(kinds)
    folder = folder_of(options)
    if text := in_use(folder, job):
        raise CommandError(text)
    k = last_state(folder, job)
    _refuse_what_cannot(folder, k)
    model = body_model(options.model)
    order = order_of(folder, job, k, options, "retry")
    if options.model:
        order.model_spec = msgspec.structs.replace(order.model_spec, model=options.model)
    environ = taken_environ()
    _refuse_moving(folder, k, order, environ)
    try:
        with closing(folder.journal(job)) as source:
            event = reopening(
                source, offline_edits.loaded, wanted, who=who(), position=k.position, ended=k.source_ended, model=model,
                output_tokens_max=options.max_output_tokens or 0, requests=order.program.rows_are_requests(),
            )  # fmt: skip
    except NoFailedRows as none:
        raise _none_to_ask(standing_of(folder, job, k), none, options) from None
    sink = own_sink(folder, order)
    order.reopened = _kept(event, k, sink)
    if sink is not None and sink.cuts_back and not options.overwrite:
        _refuse_changed(folder, sink, k)
    complete_list(folder, job, k.terms)
    rows = RetriedRows(folder, job, input_of(folder, order) if event.input_at >= 0 else None)
    session = Session(order, environ, source=rows, sink=sink)
    work = PreparedRun(session=session, options=options, source=rows, sink=sink, note=_note(event, k))
    work.rows = number(order.places, "rows")
    return carry_out(work)


def kinds_of(given: Sequence[str]) -> frozenset[str]:
    """Return kinds of failures from texts like ``throttled,timed_out``; empty means all kinds. Raises
    ``CommandError``.
    """
    known = {kind.value for kind in FailureKind}
    names = [name.strip().lower().replace("-", "_") for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise CommandError(f"--kind {name!r} is no kind of failure: {hint}")
    return frozenset(names)


def _refuse_what_cannot(folder: StateFolder, k: State) -> None:
    """Raise ``CommandError`` unless the job is at rest, has its old program, and has rows that can be retried one by
    one."""
    terms = k.terms
    job, first = terms.job, f"{advised(folder, 'resume', terms.job)} first"
    if not loader.is_ready(terms.program) and k.outcome == "failed":
        raise CommandError(f"job {job} has failed as a whole{put_right(k)}")
    program = loader.load(terms.program, terms.params_json)
    if isinstance(program, Shards):
        ways = f"{advised(folder, 'results', job, '--failed')} lists them: ask them as a job of their own"
        raise CommandError(f"job {job} has shards, whose failed rows cannot be asked again one by one; {ways}")
    if not (program.asks_again and terms.streams):
        raise CommandError(f"the rows of job {job} cannot be asked again one by one{_anew(k)}")
    if k.outcome not in ("complete", "partial"):
        how = f"is {k.outcome} for good: begin another" if k.outcome else f"was interrupted: {first}"
        raise CommandError(f"job {job} {how}")
    if k.submissions and k.edition:  # rows of the last retry may be among them
        raise CommandError(f"job {job} has rows in message batches: {first}, then retry what failed")
    if terms.keeps_text and not loader.is_unchanged(terms.program, terms.params_json, terms.fingerprint):
        again = "repeat the command that began it with --overwrite"  # a complete job has nothing to resume
        if k.outcome == "partial":
            again = advised(folder, "resume", job, "--overwrite")
        raise CommandError(
            f"the program of job {job} has changed since, its type of answers, or the release: {again}: the job then "
            "begins anew, asks the failed rows again, and pays for no question twice"
        )


def _refuse_moving(folder: StateFolder, k: State, order: JobSpec, environ: Mapping[str, str]) -> None:
    """Raise ``CommandError`` if open rows of the job were made for another model or endpoint than the retry's."""
    if not (k.live or k.submissions) and k.source_ended:
        return
    spec, route = order.model_spec, k.terms.route
    spec = as_known(spec, environ, [route.endpoint])
    if (spec.model, whereto(spec, environ)) != (remembered(order.places).model, route.endpoint):
        left = f"{k.live:,} open rows" if k.live else "rows that were never asked"
        raise CommandError(
            f"job {k.terms.job} still has {left}: {advised(folder, 'resume', k.terms.job)} first, then retry with "
            "another model, address or --sim"
        )


def _anew(k: State) -> str:
    """Return advice for a job with a program of the author's own; for other jobs the name of the program."""
    if loader.is_ready(k.terms.program):
        return f": its program is {k.terms.program}"
    return (
        ". If the program made them fail, correct it and repeat the command that began the job: answers are not "
        "paid again"
    )


def _kept(event: RowsReopened, k: State, sink: FileSink | TableSink | None) -> RowsReopened:
    """Return the event with the kept part of the results: none for a file, which is written anew; all for other
    outputs."""
    if sink is None or sink.cuts_back:
        return event
    return msgspec.structs.replace(event, written=(listed_before(k, event), k.written_bytes))


def _refuse_changed(folder: StateFolder, sink: FileSink | TableSink, k: State) -> None:
    """Raise ``SinkError`` for a results file that was edited since the job wrote it."""
    if isinstance(sink, TableSink):
        sink.check()
        if sink.there() and not sink.holds(k.written_rows):
            raise SinkError(f"{sink.name} is not as job {k.terms.job} left it: move it away, or give --overwrite")
        refuse_changed_table(folder, k.terms.job, sink)
        return
    sink.checksum, sink.only_copy = k.written_checksum, not k.terms.keeps_text
    try:
        sink.open(k.written_rows, k.written_bytes, True)
    finally:
        sink.close()


def _note(event: RowsReopened, k: State) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in event.kinds.items())
    count, refused = len(event.keys), k.tally.rows_refused
    text = f"{count:,} failed {'row is' if count == 1 else 'rows are'} asked again ({kinds})"
    return f"{text}, {refused:,} refused before sending {'is' if refused == 1 else 'are'} not" if refused else text


def _none_to_ask(status: JobStatus, none: NoFailedRows, options: Options) -> CommandError:
    """Return the error for a job without a row to ask again: what failed all the same, and how to have it answered.

    Its exit code is that of the job, or 2 if other rows could be asked again.
    """
    facts = status.facts
    failed, refused, unreadable = facts["rows_failed"], facts["rows_refused"], facts["rows_unreadable"]
    if failed > refused:  # of other kinds than the user named
        return CommandError(f"{none}: failed rows of job {facts['job']}: {failed_kinds(facts)}")
    lines = []
    if refused:
        what = "1 row was" if refused == 1 else f"{refused:,} rows were"
        lines.append(f"{what} refused before sending (see {status.command('results', '--failed')})")
    if unreadable:
        what = "1 record of the input is" if unreadable == 1 else f"{unreadable:,} records of the input are"
        lines.append(f"{what} unreadable (see {status.command('results', '--bad')})")
    if not lines:
        return CommandError(str(none))
    code = status.code(share_of(options), options.accept_partial) or USAGE
    return CommandError(
        f"no row of job {facts['job']} can be asked again: {', '.join(lines)}: correct the input and ask it as "
        "another job (another --job and -o): equal rows are not paid again", code
    )  # fmt: skip
