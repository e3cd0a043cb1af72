"""Tables as input and output: program, source and sink from the options of a table."""

from __future__ import annotations

import contextlib
import io

from actors.cli.jobs.job_state import spool_of
from actors.cli.jobs.programs import text_of
from actors.cli.jobs.settings import named_provider
from actors.cli.options.errors import print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.files.dialects.dialect import DialectError, decoded, dialect_of
from actors.files.sources.table_source import TableSource
from actors.files.table_reader import CSV, PARQUET, form_of
from actors.jobs.sink_selection import FOREIGN
from actors.jobs.spec import DIALECT, JobSpec
from actors.journal.journal import StateFolder
from actors.programs.schemas import AnswerSchema, answer_schema, schema_form
from actors.providers.registry import of_options
from cortex.programs.batch import Batch
from cortex.programs.parts.choice_columns import alternatives_of
from cortex.programs.parts.row_votes import votes_of
from cortex.programs.table import FAIL, FORMS, ON_CUT, REQUEST_ID, ROW, Table, renamed, twice_named
from cortex.values.schema import SchemaError
from cortex.values.template import Template, TemplateError


def program_of(options: Options, path: str, output: str) -> Batch | Table:
    """Return the program of ``cortex batch``: whole requests, or a table. Raises ``CommandError``."""
    if path.lower().endswith(FOREIGN):
        raise CommandError(f"{path}: unknown form of a table: convert it to .csv, .tsv, .parquet or .jsonl")
    prompt = rendered_prompt(options.prompt) if options.prompt else ""
    system = text_of("--system ", options.system).rstrip("\n") if options.system else ""
    if not options.prompt:
        _refuse_without_prompt(options, path)
        own = (
            options.schema or options.meta or options.logprobs or options.votes or options.answer_as
            or options.columns_prefix
        )  # fmt: skip
        if not (own or form_of(output) in (CSV, PARQUET)):
            if options.on_cut:
                raise CommandError("--on-cut is for tables: requests in the Message Batches form keep every message")
            return Batch(ordered=options.ordered)
    _warn_of_braces(system)
    if options.prompt and not options.model:
        raise CommandError("no model is given: give --model NAME (local and sim cost nothing)")
    usual = of_options(options.model, named_provider(options)).schema_as
    if options.schema_as and options.schema_as not in FORMS:
        raise CommandError(f"--schema-as {options.schema_as!r}: give {', '.join(FORMS)}")
    if options.on_cut and options.on_cut not in ON_CUT:
        raise CommandError(f"--on-cut {options.on_cut!r}: give {', '.join(ON_CUT)}")
    if options.schema_as and not options.schema:
        raise CommandError("--schema-as sets the form of --schema: give --schema too")
    try:
        typed = answer_schema(options.schema) if options.schema else AnswerSchema()
    except SchemaError as error:
        raise CommandError(f"--schema {options.schema}: {error}") from None
    how = schema_form(options.schema_as, usual, typed.schema)
    try:
        alternatives = alternatives_of(options.logprobs, options.top_logprobs, typed.schema, how)
        votes, votes_by = votes_of(options.votes, options.votes_by, typed.schema, options.logprobs)
    except ValueError as error:
        raise CommandError(str(error)) from None
    program = Table(
        prompt=prompt, system=system, id=(options.id or ROW) if prompt else REQUEST_ID, schema_as=how,
        with_input=options.with_input, meta=options.meta, ordered=options.ordered, on_cut=options.on_cut or FAIL,
        renamed=renamed(options.answer_as, options.columns_prefix), schema=typed.schema, answer_type=typed.answer_type,
        top_logprobs=alternatives, votes=votes, votes_by=votes_by,
    )  # fmt: skip
    twice, option = twice_named(program)
    if twice:
        way = f"give {option}, or rename" if option else "rename"
        raise CommandError(f"two columns of the results would be named {twice!r}: {way} the one of --schema or --id")
    if how != (options.schema_as or usual):
        text = "is sent in words: structured outputs would not allow all of its answers (--schema-as sets another form)"
        print_error(f"--schema {options.schema} {text}")
    return program


def rendered_prompt(given: str) -> str:
    """Return the template that ``--prompt`` gives, or names. Raises ``CommandError``, also for one without a column."""
    prompt = text_of("--prompt ", given).rstrip("\n")
    if not _template(prompt).columns:
        raise CommandError(
            "--prompt names no column, so all rows would ask the same: write {{column}} where a row's text goes"
        )
    return prompt


def _warn_of_braces(system: str) -> None:
    """Warn of a column in a system prompt: the prompt is one text for all rows, and braces are sent as they are."""
    with contextlib.suppress(TemplateError):
        for column in Template(system).columns[:1]:
            text = f"{{{{{column}}}}} in it is sent unchanged"
            print_error(f"--system is the same for all rows: {text}; columns are for --prompt")


def _template(prompt: str) -> Template:
    try:
        return Template(prompt)
    except TemplateError as error:
        raise CommandError(f"--prompt: {error}") from None


def _refuse_without_prompt(options: Options, path: str) -> None:
    form = form_of(path)
    if form in (CSV, PARQUET):
        raise CommandError(f"{path} is a table: give --prompt, like --prompt 'Label: {{{{column}}}}'")
    for flag, given in (("--system", options.system), ("--id", options.id), ("--with-input", options.with_input)):
        if given:
            raise CommandError(f"{flag} is for tables: give --prompt too (requests hold their own)")


def table_source(folder: StateFolder, order: JobSpec, stdin: io.BytesIO | None = None) -> TableSource:
    """Return the source of a table's rows for the program of the order."""
    program = order.program
    assert isinstance(program, Table)
    return TableSource(
        order.input, prompt=Template(program.prompt), id=program.id, numbered="numbered" in order.places,
        with_input=program.with_input, taken=program.columns(), whole_types=form_of(order.output) == PARQUET,
        spool=spool_of(folder, order.named()), stdin=stdin, dialect=decoded(order.places.get(DIALECT, "")),
    )  # fmt: skip


def dialect_places(options: Options) -> dict[str, str]:
    """Return the dialect that the options give to the input, among a job's places. Raises ``CommandError``."""
    try:
        given = dialect_of(
            options.encoding, options.delimiter, options.quoting, options.skip_lines or 0, options.no_header
        )
    except DialectError as error:
        raise CommandError(str(error)) from None
    if given.of_csv and not options.prompt:
        raise CommandError(f"{given.of_csv[0]} is for tables: give --prompt too")
    return {DIALECT: given.encoded()} if given.encoded() else {}
