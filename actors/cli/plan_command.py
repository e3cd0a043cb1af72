"""Command ``plan`` and its arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.arguments import Input, Results
from actors.cli.options.options import RUNNING, TABLE, Options, takes


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
) -> int:  # fmt: skip
    """Estimate what `cortex batch` with the same arguments would take: rows, tokens, cost, hours, disk, and which --via
    meets --max-cost and --deadline (exit code 1: none does). Without --sample nothing is asked and nothing is paid."""
    from actors.cli.planning.plan import plan as tell

    return tell(input, output, sample, options)


COMMANDS = {"plan": plan}
