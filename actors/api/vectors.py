"""``cortex.embed``: a vector for each row of a table from Python."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.api import client
from actors.api.argument_names import in_python
from actors.api.tables import Answers, FileForm, answers_to
from actors.api.temporary_job import scripted
from actors.files.table_reader import PARQUET, form_of
from actors.providers.registry import of_api
from actors.routing.routes import SetupError
from cortex.programs.embed import ROWS_LIMIT, ROWS_MAX, VECTOR, Embed
from cortex.programs.table import FAIL, ROW, renamed
from cortex.values.template import Template, TemplateError

API: Final = "chat"
"""API beside which a server has embeddings."""


def embed(
    rows: Any, column: str = "", *, prompt: str = "", id: str = "", rows_per_request: int = ROWS_MAX,  # noqa: A002
    dimensions: int | None = None, with_input: bool = False, ordered: bool = True, output: str = "",
    overwrite: bool = False, encoding: str = "", delimiter: str = "", quoting: str = "", skip_lines: int = 0,
    no_header: bool = False, accept_bad: float | str | None = None, bad: str = "", answer_as: str = "",
    columns_prefix: str = "", model: client.Given = "", **options: Any,
) -> Answers:  # fmt: skip
    """Ask an embedding model for a vector for each row, several rows in a request, like ``cortex embed``.

    ``rows``: as for ``cortex.batch``. ``column``: the column whose text is embedded (default: ``text``); ``prompt``: a
    template in its place, ``"{{title}}\\n{{body}}"``. ``rows_per_request``: rows of a request at most, 1 to 2,048.
    ``dimensions``: numbers of a vector, for models that can shorten theirs. ``output``: a .parquet file for the
    vectors. ``model``: the name of an embedding model, or a model object. All other arguments are those of
    ``cortex.batch`` and ``cortex.submit``; a repeated call resumes, or shows, its job.

    The vector of a row is ``row["embedding"]``, an array of float32 (``array.array``) that numpy takes without a copy;
    None where the row failed. ``to_arrow`` and ``to_polars`` give lists of fixed size, ``to_pandas`` numpy's arrays.

    Raises ``SetupError`` or ``RowsError`` for invalid arguments or rows, before anything is asked.
    """
    options.setdefault("progress", not scripted(model))
    if callable(model) and not hasattr(model, "call"):
        raise SetupError("model: a function of a prompt gives no vectors: give the name of an embedding model")
    if not model:
        raise SetupError('no model is given: give model="text-embedding-3-small", or another one ("sim" costs nothing)')
    if column and prompt:
        raise SetupError("column and prompt both say what is embedded: give one of them")
    if output and form_of(output) != PARQUET:
        raise SetupError(f"output={output!r}: vectors are written as Parquet: name a file that ends in .parquet")
    if not 1 <= rows_per_request <= ROWS_LIMIT:
        raise SetupError(f"rows_per_request={rows_per_request}: give 1 to {ROWS_LIMIT}, the most that OpenAI takes")
    if dimensions is not None and dimensions < 1:
        raise SetupError(f"dimensions={dimensions}: give the numbers of a vector, 1 or more")
    prompt = prompt or f"{{{{{column or 'text'}}}}}"
    try:
        columns = Template(prompt).columns
    except TemplateError as error:
        raise SetupError(f"{'column' if column else 'prompt'}: {error}") from None
    if not columns:
        raise SetupError("the prompt names no column, so all rows would have one vector: write {{column}}")
    if (url := options.get("base_url")) and not options.get("provider"):
        row = of_api(API, url if isinstance(url, str) else next(iter(url), ""))
        options["provider"] = row.name if row is not None else ""
    program = Embed(
        prompt=prompt, id=id or ROW, with_input=with_input, ordered=ordered, on_cut=FAIL,
        renamed=renamed(answer_as or VECTOR, columns_prefix), rows_max=rows_per_request,
        dimensions=msgspec.UNSET if dimensions is None else dimensions,
    )  # fmt: skip
    form = FileForm(encoding, delimiter, quoting, skip_lines, no_header)
    try:
        return answers_to(program, rows, form, model, options, numbered=not id, output=output, overwrite=overwrite,
                          accept_bad=accept_bad, bad=bad)  # fmt: skip
    except SetupError as error:
        raise SetupError(in_python(str(error))) from None


__all__ = ["embed"]
