"""Tables in and out: from what was said on the command line to a program, a source and a sink."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

from actors.cli.finding import text_of
from actors.cli.options import Options
from actors.cli.problems import CommandError, say
from actors.cli.standings import spool_of
from actors.files.columns import PLAIN, Columns, columns_of, decoded
from actors.files.place import is_remote, rows_of
from actors.files.sink import FileSink, SinkError
from actors.files.table_file import CSV, PARQUET, form_of, misspelt_form
from actors.files.table_sink import TableSink
from actors.files.table_source import TableSource
from actors.order import Order, whole
from actors.schemas import schema_text
from actors.store import Folder
from cortex.programs.batch import Batch
from cortex.programs.table import FORMS, REQUEST_ID, ROW, Table
from cortex.schema import SchemaError
from cortex.template import Template, TemplateError

TABLE = "table"
COLUMNS = "columns"
"""Among an order's places: the columns of its results, where these are a table."""
SHARDS = "cortex.programs.shards:Shards"
"""Of what stands in no ``COLUMNS``, it is ``batch`` that these share."""
LOCAL = "local"
FOREIGN = (".xlsx", ".xls", ".ods", ".feather", ".arrow", ".avro", ".orc", ".db", ".sqlite", ".xml", ".zip")
"""Endings of forms that are neither read nor written here: under such a name nobody looks for JSON Lines."""


def is_table(path: str) -> bool:
    """Whether results under this name are made whole: a table of CSV or Parquet, or an object elsewhere."""
    return is_remote(path) or form_of(path) in (CSV, PARQUET)


def program_of(options: Options, path: str, output: str) -> Batch | Table:
    """The program of ``cortex batch``: requests as they stand, or a table."""
    if path.lower().endswith(FOREIGN):
        raise CommandError(f"{path}: no such form is read here: make it .csv, .tsv, .parquet or .jsonl")
    prompt = text_of("--prompt ", options.prompt).rstrip("\n") if options.prompt else ""
    system = text_of("--system ", options.system).rstrip("\n") if options.system else ""
    if not options.prompt:
        _refuse_without_prompt(options, path)
        if not (options.schema or options.meta or form_of(output) in (CSV, PARQUET)):
            return Batch(ordered=options.ordered)
    elif not _template(prompt).columns:
        raise CommandError(
            "--prompt names no column, so all rows would ask the same: write {{column}} where a row's text goes"
        )
    _tell_of_braces(system)
    if options.prompt and not options.model:
        raise CommandError("name the model that is asked: --model NAME (local and sim cost nothing)")
    how = options.schema_as or ("prompt" if options.model == LOCAL else "format")
    if how not in FORMS:
        raise CommandError(f"--schema-as {how!r}: give {', '.join(FORMS)}")
    if options.schema_as and not options.schema:
        raise CommandError("--schema-as says how --schema is asked for: give --schema too")
    try:
        schema = schema_text(options.schema) if options.schema else ""
    except SchemaError as error:
        raise CommandError(f"--schema {options.schema}: {error}") from None
    program = Table(
        prompt=prompt, system=system, id=(options.id or ROW) if prompt else REQUEST_ID, schema=schema, schema_as=how,
        with_input=options.with_input, meta=options.meta, ordered=options.ordered,
    )  # fmt: skip
    own = [program.id, *program.columns()]
    twice = next((name for name in own if own.count(name) > 1), None)
    if twice is not None:
        raise CommandError(f"two columns of the results would be named {twice!r}: rename the one of --schema or --id")
    return program


def _tell_of_braces(system: str) -> None:
    """A system prompt is one text for all rows; who writes a column into it would pay for its braces."""
    with contextlib.suppress(TemplateError):
        for column in Template(system).columns[:1]:
            said = f"its {{{{{column}}}}} goes out as it stands"
            say(f"--system is the same for all rows: {said}; columns are for --prompt")


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


def table_source(folder: Folder, order: Order, stdin: io.BytesIO | None = None) -> TableSource:
    """The rows of a table, as the order's program asks for them."""
    program = order.program
    assert isinstance(program, Table)
    return TableSource(
        order.input, prompt=Template(program.prompt), id=program.id, numbered="numbered" in order.places,
        with_input=program.with_input, taken=program.columns(), whole_types=form_of(order.output) == PARQUET,
        spool=spool_of(folder, order.named()), stdin=stdin,
    )  # fmt: skip


def note_columns(order: Order, source: Any) -> None:
    """Keep with the order what its results consist of. The source has been checked."""
    if not isinstance(order.program, Table):
        return
    given, arrow = [(REQUEST_ID, "text")], None
    if isinstance(source, TableSource):
        given, arrow = source.columns()
    order.places[COLUMNS] = columns_of(order.program, given, arrow).encoded()


def results_sink(
    folder: Folder, job: str, output: str, input_path: str, overwrite: bool, places: Mapping[str, str], program: str,
    own: bool,
) -> FileSink | TableSink | None:  # fmt: skip
    """Where results go; None where nobody asked for them. ``own``: it is the job's output, not a copy."""
    if not output:
        return None
    keep_off = () if input_path in ("", "-") else (input_path,)
    refuse_form(output)
    if not is_table(output):
        return FileSink(output, overwrite=overwrite, keep_off=keep_off)
    columns = PLAIN if form_of(output) not in (CSV, PARQUET) else _columns(places, program, output)
    flatten = columns is PLAIN and form_of(output) in (CSV, PARQUET)
    rows = rows_of(folder.path, whole(output), job, copy=not own)
    return TableSink(
        output, rows, columns, job=job, flatten=flatten, overwrite=overwrite, keep_off=keep_off,
        copy=not own,
    )  # fmt: skip


def refuse_form(output: str) -> None:
    """Results are written in four forms. Raises ``SinkError``."""
    if output.lower().endswith(FOREIGN):
        raise SinkError(f"{output}: results are written as .csv, .tsv, .parquet or .jsonl: name one of these")
    if meant := misspelt_form(output):
        raise SinkError(f"{output}: is {meant} meant? Results are written as .csv, .tsv, .parquet or .jsonl")


def _columns(places: Mapping[str, str], program: str, output: str) -> Columns:
    if COLUMNS in places:
        return decoded(places[COLUMNS])
    if program not in (Batch.name, SHARDS):
        raise SinkError(f"{output}: results of {program} are no table: name a file that ends in .jsonl")
    return PLAIN
