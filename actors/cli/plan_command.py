"""Command ``plan`` and its arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.arguments import Column, Dimensions, Input, Results, RowsPerRequest
from actors.cli.options.options import RUNNING, TABLE, Options, takes
from actors.common.errors import CommandError


@takes(*RUNNING, "ordered", "no_keep_text", "accept_bad", "bad", *TABLE)
def plan(
    input: Input, options: Options, output: Results = "",  # noqa: A002 - the argument's name
    sample: Annotated[
        int,
        typer.Option(
            "--sample", metavar="N", min=0,
            help="ask N rows, short and long ones; they are paid for, and `cortex batch` reuses their replies",
        ),
    ] = 0,
    embed: Annotated[bool, typer.Option("--embed", help="plan `cortex embed` in place of `cortex batch`")] = False,
    column: Column = "", rows_per_request: RowsPerRequest = 0, dimensions: Dimensions = 0,
) -> int:  # fmt: skip
    """Estimate what `cortex batch` with the same arguments would take: rows, tokens, cost, hours, disk, and which --via
    meets --max-cost and --deadline (exit code 1: none does). Without --sample nothing is asked and nothing is paid."""
    from actors.cli.planning.plan import plan as tell

    if not embed:
        given = {"--column": column, "--rows-per-request": rows_per_request, "--dimensions": dimensions}
        if wrong := next((name for name, value in given.items() if value), ""):
            raise CommandError(f"{wrong} is of `cortex embed`: give --embed too")
        return tell(input, output, sample, options)
    if sample:
        raise CommandError("--sample: a plan of --embed needs no sample, since vectors have one length: leave it out")
    from actors.cli.run.embed import vectors_of

    program = vectors_of(output or "vectors.parquet", column, rows_per_request, dimensions, options)
    return tell(input, output, sample, options, program)


COMMANDS = {"plan": plan}
