"""``cortex.batch``: tables from Python and back: pandas, polars, Arrow, a file, an iterator, a generator."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.api import client
from actors.api.answer_frames import AnswerFrames
from actors.api.argument_names import in_python
from actors.api.stored_rows import store
from actors.api.temporary_job import scripted
from actors.common.errors import CommandError, UserError
from actors.files.arrow_values import numbers_in
from actors.files.columns import decoded
from actors.files.dialects.dialect import Dialect, DialectError, dialect_of
from actors.files.errors import SinkError, SourceError
from actors.files.json_rows import numbers_of
from actors.files.paths import digest_of
from actors.files.python_rows import RowWriter
from actors.files.sources.row_source import PROBLEMS_MAX, InputCheck
from actors.files.sources.table_source import TableSource
from actors.files.table_reader import PARQUET, form_of
from actors.history.catalog import last_terms
from actors.jobs.bad_record_list import BAD, list_of, named_list
from actors.jobs.sink_selection import COLUMNS, TABLE, note_columns, results_sink
from actors.jobs.spec import CONTENT, DIALECT, JobSpec, whole
from actors.jobs.unreadable_input import accepted_of, is_refused, least_accepted, note_counts, refusal
from actors.journal.journal import StateFolder
from actors.maintenance.retry_rows import RetriedRows as AskedAgain
from actors.programs.loader import load, place_of
from actors.programs.schemas import AnswerSchema, answer_schema, schema_form
from actors.providers.registry import of_options
from actors.routing.routes import SetupError
from cortex.programs.embed import Embed, limits_for
from cortex.programs.parts.choice_columns import alternatives_of
from cortex.programs.parts.row_votes import votes_of
from cortex.programs.shards import unsharded
from cortex.programs.table import FAIL, FORMS, ON_CUT, ROW, Table, renamed, twice_named
from cortex.values.limits import JobTerms
from cortex.values.schema import SchemaError
from cortex.values.template import Template, TemplateError

OVER = ("complete", "failed", "cancelled")


BAD_MAX = 1_000_000
"""Records that ``Answers.bad`` names."""


class RowsError(UserError, ValueError):
    """The rows cannot be asked. The message is one line for users."""


class Answers(client.Result):
    """Table of answers. ``rows``: dicts in the order in which they finished. ``bad``: one line of text for each record
    of the input that could not be asked, in its order (the first million). Those without a row in the results are also
    listed with their text in the file OUTPUT.bad.jsonl, or by ``cortex results JOB --bad``."""

    def __init__(
        self, found: client.Result, rows: list[Any], frames: AnswerFrames, check: InputCheck, output: str
    ) -> None:
        self.__dict__ |= found.__dict__
        self.rows = rows
        self.output = output
        self.bad = [f"{check.noun} {each.line}: {in_python(each.message)}" for each in check.problems]
        self.bad_count = check.refused + check.unreadable
        self._frames = frames

    def to_arrow(self) -> Any:
        """Return a pyarrow Table with the types of the input and the schema."""
        return self._frames.to_arrow()

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame. Columns and index of a DataFrame that was given keep their types; whole numbers
        and booleans with nulls are ``Int64`` and ``boolean``."""
        return self._frames.to_pandas()

    def to_polars(self) -> Any:
        """Return a polars DataFrame. Columns of a DataFrame that was given keep their types."""
        return self._frames.to_polars()


def batch(
    rows: Any, prompt: str, *, system: str = "", id: str = "", schema: Any = None, schema_as: str = "",  # noqa: A002
    with_input: bool = False, meta: bool = False, ordered: bool = True, output: str = "", overwrite: bool = False,
    encoding: str = "", delimiter: str = "", quoting: str = "", skip_lines: int = 0, no_header: bool = False,
    accept_bad: float | str | None = None, bad: str = "", on_cut: str = FAIL, answer_as: str = "",
    columns_prefix: str = "", logprobs: bool = False, top_logprobs: int | None = None, votes: int | None = None,
    votes_by: str = "", model: client.Given = "",
    **options: Any,
) -> Answers:  # fmt: skip
    """Ask ``prompt`` of every row of a table and return the table of answers, like ``cortex batch``.

    ``rows``: a pandas, polars or Arrow table, or any object that exports Arrow; the path of a .csv, .parquet or .jsonl
    file; or an iterable (a generator too) of dicts, records or texts, whose column is ``text``. All rows are read and
    checked before anything is asked. ``prompt``: a template, ``"Label: {{text}}"``. ``schema``: a JSON schema as a
    dict, its file, or a Python type. ``output``: a .csv, .parquet or .jsonl file for the answers. ``system``, ``id``,
    ``schema_as``, ``with_input``, ``meta``, ``answer_as``, ``columns_prefix`` and ``overwrite`` are as on the command
    line, and so are ``encoding``, ``delimiter``, ``quoting``, ``skip_lines`` and ``no_header``, for rows that are a
    path. ``accept_bad``: most unreadable records with which the job begins: a float is a share (default 0.01, and up to
    ten if the rows are no file; 1.0 for any number), an int a count, a text either, as on the command line (``"5%"``).
    ``bad``: a file that lists them (default OUTPUT.bad.jsonl). ``ordered=False`` gives the answers as they finish
    instead of in the order of the rows. ``on_cut``: a row whose answer was cut at its bound on tokens fails
    (``"fail"``), keeps the fragment as its answer (``"keep"``), or is asked again with twice the bound (``"longer"``).
    ``logprobs=True`` adds a column ``FIELD_probability``, 0 to 1 or None, for each choice of the schema, or one for the
    whole answer, from the log probabilities of its tokens (the Messages API has none); ``top_logprobs``:
    alternatives that are requested for each token (default 20). ``votes``: each row is asked up to so many times, until
    its choices are decided, by ``votes_by``: ``"count"`` of the answers (default), or ``"probability"``, the mean of
    their probabilities, with ``logprobs=True``.
    Further options are those of ``cortex.submit``; a repeated call resumes, or shows, its job.

    Raises ``SetupError`` or ``RowsError`` for invalid arguments or rows, before anything is asked.
    """
    options.setdefault("progress", not scripted(model) and not callable(model))
    named = model.partition(",")[0] if isinstance(model, str) else ""
    usual = of_options(named, str(options.get("provider", ""))).schema_as
    try:
        columns = Template(prompt).columns
        typed = AnswerSchema() if schema is None else answer_schema(schema)
    except TemplateError as error:
        raise SetupError(f"prompt: {error}") from None
    except SchemaError as error:
        raise SetupError(f"schema {schema}: {error}" if isinstance(schema, str) else f"schema: {error}") from None
    if not columns:
        raise SetupError("the prompt names no column, so all rows would ask the same: write {{column}}")
    how = schema_form(schema_as, usual, typed.schema)
    if how not in FORMS:
        raise SetupError(f"schema_as={how!r}: give {', '.join(FORMS)}")
    if on_cut not in ON_CUT:
        raise SetupError(f"on_cut={on_cut!r}: give {', '.join(ON_CUT)}")
    try:
        counted, by = votes_of(votes, votes_by, typed.schema, logprobs)
    except ValueError as error:
        raise SetupError(in_python(str(error))) from None
    program = Table(
        prompt=prompt, system=system, id=id or ROW, schema=typed.schema, schema_as=how, with_input=with_input,
        meta=meta, ordered=ordered, on_cut=on_cut, renamed=renamed(answer_as, columns_prefix),
        answer_type=typed.answer_type, top_logprobs=_alternatives(logprobs, top_logprobs, typed.schema, how),
        votes=counted, votes_by=by,
    )  # fmt: skip
    form = FileForm(encoding, delimiter, quoting, skip_lines, no_header)
    return answers_to(program, rows, form, model, options, numbered=not id, output=output, overwrite=overwrite,
                      accept_bad=accept_bad, bad=bad)  # fmt: skip


class FileForm(NamedTuple):
    """Form of a file of rows, as the options of that name give it."""

    encoding: str = ""
    delimiter: str = ""
    quoting: str = ""
    skip_lines: int = 0
    no_header: bool = False


def answers_to(
    program: Table, rows: Any, form: FileForm, model: client.Given, options: Mapping[str, Any], *, numbered: bool,
    output: str, overwrite: bool, accept_bad: float | str | None, bad: str,
) -> Answers:  # fmt: skip
    """Run a table's program over rows given from Python, and return its answers. Raises as ``batch`` does."""
    twice, option = twice_named(program)
    if twice:
        way = f"give {option.split()[0][2:].replace('-', '_')}=, or rename" if option else "rename"
        raise SetupError(f"two columns of the results would be named {twice!r}: {way} the one of schema or id")
    try:
        dialect, accepted = dialect_of(*form), accepted_of(accept_bad)
    except DialectError as error:
        raise SetupError(str(error).removeprefix("--")) from None
    except ValueError as error:
        raise SetupError(f"accept_bad={error}") from None
    few = accept_bad is None and not isinstance(rows, (str, os.PathLike))
    given = _GivenRows(
        rows, numbered=numbered, output=output, overwrite=overwrite, dialect=dialect, accepted=accepted, few=few,
        bad=bad,
    )  # fmt: skip
    job = client.submit(program, model=model, rows=given, **options)
    found = _result_of(job)
    assert given.check is not None
    kept = list(given.results) if output else found.rows
    frames = AnswerFrames(kept, decoded(given.columns), rows, id=program.id, numbered=numbered)
    return Answers(found, kept, frames, given.check, output)


def _alternatives(logprobs: bool, top: int | None, schema: str, how: str) -> int | msgspec.UnsetType:
    """Return the alternatives that are requested for each token. Raises ``SetupError``."""
    try:
        return alternatives_of(logprobs, top, schema, how)
    except ValueError as error:
        raise SetupError(in_python(str(error))) from None


def _result_of(job: client.Job) -> client.Result:
    """Return the result of a job. Raises ``RowsError`` for an output that it may not write to."""
    try:
        return job.result()
    except SinkError as error:
        raise RowsError(str(error)) from None


class _GivenRows:
    """Rows given from Python, with the interface ``client.RowInput``.

    Rows that are no file are stored in one, so that the job can resume after a crash. A hash of their content becomes
    part of the job's name.
    """

    def __init__(
        self, rows: Any, *, numbered: bool, output: str, overwrite: bool, dialect: Dialect, accepted: Fraction | None,
        few: bool, bad: str,
    ) -> None:
        self._rows = rows
        self._bad = bad
        self._accepted = accepted
        self._few = few
        """Whether unreadable rows are accepted as long as ``Answers.bad`` has all of them."""
        self._dialect = dialect
        self._numbered = numbered
        self._output = output
        self._overwrite = overwrite
        self._spool = Path()
        self._vector = ""
        """Column of vectors; empty: there is none."""
        self.check: InputCheck | None = None
        self.columns = ""
        self.results: list[Any] = []
        self._source: AskedAgain | None = None
        self._sink: Any = None

    def begin(self, order: JobSpec) -> None:
        """Store the rows if needed, and check all of them. Raises ``RowsError``."""
        folder = StateFolder(order.state).prepare()
        order.output, order.overwrite = self._output, self._overwrite
        order.places |= {"kind": TABLE} | ({"numbered": "1"} if self._numbered else {})
        program = order.program
        assert isinstance(program, Table)
        if isinstance(program, Embed):
            order.limits, self._vector = limits_for(order.limits, program.rows_max), program.own_columns()[0]
        if isinstance(self._rows, (str, os.PathLike)):
            order.input = os.fspath(self._rows)
            order.places |= {DIALECT: self._dialect.encoded()} if self._dialect.encoded() else {}
        elif self._dialect.encoded():
            raise SetupError("encoding and dialect are those of a file, and these rows are none: leave them out")
        else:
            order.input = "-"
            self._keep(folder, order)
        if self._bad:
            try:
                order.places[BAD] = named_list(self._bad, (order.input, order.output), self._overwrite)
            except SinkError as error:
                raise RowsError(str(error).replace("--bad ", "bad=", 1)) from None
        self._spool = folder.beside(order.named(), ".input")
        source = TableSource(
            order.input, prompt=Template(program.prompt), id=program.id, numbered=self._numbered,
            with_input=program.with_input, taken=program.columns(), spool=self._spool, stdin=io.BytesIO(),
            whole_types=form_of(self._output) == PARQUET, called="" if order.input != "-" else "the table",
            dialect=self._dialect,
        )  # fmt: skip
        source.bad, source.problems_max = list_of(folder, order), BAD_MAX
        self._source = AskedAgain(folder, order.named(), source)
        before = last_terms(folder, order.named())
        if before is not None and not order.fresh:  # the shard of each row is settled
            order.shards = unsharded(load(before.program, before.params_json))[1]
        try:
            check = self.check = source.check()
            self._refuse_changed(order, before, check.digest)
            few = self._few and check.unreadable <= PROBLEMS_MAX
            if (before is None or order.fresh) and not few and is_refused(check, self._accepted):
                if self._bad:
                    source.bad.put(begins=False)
                name = order.input if order.input != "-" else "the table"
                raise RowsError(f"{refusal(name, check, self._accepted)}: {_accepting(check)}")
            note_counts(order, check)
            note_columns(order, source)
            self.columns = order.places[COLUMNS]
            self._open_output(folder, order, before)
            source.bad.put()
        except (CommandError, RowsError, SinkError, SourceError) as error:
            source.close()
            if before is None and order.input == "-":
                self._spool.unlink(missing_ok=True)
            raise RowsError(in_python(str(error))) from None

    def _open_output(self, folder: StateFolder, order: JobSpec, before: JobTerms | None) -> None:
        if not self._output:
            return
        own = before is not None and before.places.get("output") == whole(self._output)
        place = place_of(type(order.program))
        sink = results_sink(
            folder, order.named(), self._output, order.input, self._overwrite, order.places, place, own=True
        )
        assert sink is not None
        sink.check()
        if not own and not self._overwrite and sink.taken():
            raise SinkError(f"{self._output} exists: give overwrite=True to write over it, or name another output")
        self._sink = _Tee(sink, self.results, self.read)

    def _keep(self, folder: StateFolder, order: JobSpec) -> None:
        """Store rows in a file, unless a job of this name has other rows. Raises ``RowsError``."""
        fd, part = tempfile.mkstemp(prefix=".input-", dir=folder.path / "jobs")
        try:
            with open(fd, "wb") as file:
                store(self._rows, file, self._writer(order.program))
            digest = digest_of(Path(part))
            if not order.job:
                order.places[CONTENT] = digest
            self._refuse_changed(order, last_terms(folder, order.named()), digest)
            os.replace(part, folder.beside(order.named(), ".input"))
        except SourceError as error:
            raise RowsError(str(error)) from error.__cause__
        finally:
            Path(part).unlink(missing_ok=True)

    def _writer(self, program: Any) -> RowWriter:
        shown = {*Template(program.prompt).columns, *(() if self._numbered else (program.id,))}
        return RowWriter(shown, None if program.with_input else shown)

    @staticmethod
    def _refuse_changed(order: JobSpec, before: JobTerms | None, digest: str) -> None:
        if before is not None and not order.fresh and before.places.get("digest", digest) != digest:
            raise RowsError(f"these rows are not what job {order.named()} began with: give another job=, or fresh=True")

    @property
    def source(self) -> AskedAgain:
        """Source of the rows; it also yields rows that are retried (``cortex retry``)."""
        assert self._source is not None
        return self._source

    @property
    def sink(self) -> Any:
        """Sink of the output file, if one was named."""
        return self._sink

    def read(self, value: Any) -> Any:
        """Return a result as a dict."""
        found = numbers_of(value)
        if self._vector and found[self._vector] is not None:
            found[self._vector] = numbers_in(found[self._vector])
        return found

    def end(self, outcome: str) -> None:
        """Close input and output, and delete stored rows of a job that is over. Raises ``RowsError``."""
        self.source.close()
        if self._sink is not None:
            try:
                if not outcome:  # the run failed: an existing table stays
                    self._sink.abandon()
                self._sink.close()
            except SinkError as error:
                raise RowsError(str(error)) from None
            if outcome in OVER:
                self._sink.forget()
        if outcome in OVER:
            self._spool.unlink(missing_ok=True)


class _Tee:
    """Sink that writes results to a file and keeps them as rows. Rows already in the file are read again."""

    def __init__(self, sink: Any, rows: list[Any], read: Callable[[Any], Any]) -> None:
        self._sink = sink
        self._rows = rows
        self._read = read

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Return 0: all results are read again, and those missing in the file are written."""
        self.has = int(self._sink.open(rows, size_bytes, own))
        if self.has not in (0, rows):  # with several shards it is unknown which results are missing
            self.has = int(self._sink.open(0, 0, own))
        return 0

    def write(self, values: list[Any]) -> None:
        """Keep the results, and write the new ones."""
        at = len(self._rows)
        self._rows.extend(map(self._read, values))
        if new := values[max(0, self.has - at) :]:
            self._sink.write(new)

    def flush(self) -> tuple[int, int]:
        """Flush the file to disk."""
        found: tuple[int, int] = self._sink.flush()
        return found

    def close(self) -> None:
        """Complete the file."""
        self._sink.close()

    def kept(self) -> bool:
        """Return whether the file holds anything."""
        return bool(self._sink.kept())

    def is_of(self, values: list[Any]) -> bool:
        """Return whether the file may hold rows of a job whose first results are ``values``."""
        return bool(self._sink.is_of(values))

    def older_than(self, at_s: float) -> bool:
        """Return whether the file was last written before this Unix time."""
        return bool(self._sink.older_than(at_s))

    def replace(self) -> None:
        """Permit to replace the file."""
        self._sink.replace()

    def abandon(self) -> None:
        """Leave the file as it is."""
        self._sink.abandon()

    def forget(self) -> None:
        """Release temporary files of a job that is over."""
        self._sink.forget()


def _accepting(check: InputCheck) -> str:
    """Return the argument that accepts the unreadable records of this input."""
    percent = least_accepted(check)
    return f"accept_bad={percent / 100:g}" if percent < 100 else 'accept_bad="100%"'


__all__ = ["Answers", "RowsError", "batch"]
