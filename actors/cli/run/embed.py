"""``embed``: from a command line to a job that asks for a vector for each row. All input is checked first."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.cli.options.options import Options
from actors.cli.run.start import rows_job
from actors.cli.run.tables import rendered_prompt
from actors.common.errors import CommandError
from actors.files.table_reader import PARQUET, form_of
from cortex.programs.embed import ROWS_LIMIT, ROWS_MAX, VECTOR, Embed, limits_for
from cortex.programs.table import FAIL, ROW, renamed, twice_named

CHAT: Final = "chat"
"""API beside which a server has embeddings."""


def embed(
    path: str, output: str, column: str, rows_max: int, dimensions: int, options: Options
) -> int:  # fmt: skip
    """Run ``cortex embed`` and return the exit code. ``rows_max``, ``dimensions``: 0: not given."""
    program = vectors_of(output, column, rows_max, dimensions, options)
    return rows_job(path, output, options, program=program, limits=lambda limits: limits_for(limits, program.rows_max))


def vectors_of(output: str, column: str, rows_max: int, dimensions: int, options: Options) -> Embed:
    """Return the program of ``cortex embed``, and complete the options. Raises ``CommandError``."""
    if form_of(output) != PARQUET:
        raise CommandError(f"-o {output}: vectors are written as Parquet: name a file that ends in .parquet")
    if not options.model:
        raise CommandError("no model is given: give --model NAME, like text-embedding-3-small (sim costs nothing)")
    if column and options.prompt:
        raise CommandError("--column and --prompt both say what is embedded: give one of them")
    if "://" in options.cluster:
        raise CommandError(f"--cluster {options.cluster}: cortex embed runs beside its input: give HOST:PORT, or none")
    if not 0 <= rows_max <= ROWS_LIMIT:
        raise CommandError(f"--rows-per-request {rows_max}: give 1 to {ROWS_LIMIT}, the most that OpenAI takes")
    if options.base_url and not options.provider:
        options.api = CHAT
    options.prompt = options.prompt or f"{{{{{column or 'text'}}}}}"
    program = Embed(
        prompt=rendered_prompt(options.prompt), id=options.id or ROW, with_input=options.with_input,
        ordered=options.ordered, on_cut=FAIL, renamed=renamed(options.answer_as or VECTOR, options.columns_prefix),
        rows_max=rows_max or ROWS_MAX, dimensions=dimensions or msgspec.UNSET,
    )  # fmt: skip
    twice, option = twice_named(program)
    if twice:
        way = f"give {option}, or rename" if option else "rename"
        raise CommandError(f"two columns of the results would be named {twice!r}: {way} the one of --id")
    return program

