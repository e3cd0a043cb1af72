"""Arguments that commands take by themselves, beside the options that several share."""

from __future__ import annotations

from typing import Annotated

import typer

Input = Annotated[
    str,
    typer.Argument(
        help="a table (.csv, .parquet, .jsonl) with --prompt; else JSON Lines in the Message Batches request format; "
        ".gz; - for stdin"
    ),
]
Output = Annotated[
    str, typer.Option("--output", "-o", help="results, a line each; .gz; - for stdout", metavar="FILE")
]
Results = Annotated[
    str,
    typer.Option(
        "--output", "-o", metavar="FILE",
        help="a table (.csv, .parquet), or JSON Lines, a result each; .gz; - for stdout",
    ),
]
Planned = Annotated[
    int,
    typer.Option(
        "--sample", metavar="N", min=0, help="as `cortex plan` was given it: all rows are asked, those found answered"
    ),
]
Job = Annotated[str, typer.Argument(help="the job's name, as `cortex jobs` lists it")]
Jobs = Annotated[list[str], typer.Argument(help="names of jobs, as `cortex jobs` lists them", metavar="JOB...")]
Port = Annotated[
    int, typer.Option("--port", help="where to listen, on this machine only; 0: any", min=0, max=65535)
]
Faults = Annotated[
    list[str], typer.Option("--fault", help="share of requests that fail so", metavar="KIND=SHARE")
]
Settings = Annotated[
    list[str], typer.Option("--set", "-s", help="a setting of the provider", metavar="NAME=VALUE")
]
Params = Annotated[
    list[str],
    typer.Option("--param", "-p", help="a parameter of the program; @FILE: what it holds", metavar="NAME=VALUE"),
]
Submitted = Annotated[
    list[str],
    typer.Option("--submitted", help="a message batch in doubt: it is there, under this id", metavar="N=BATCH"),
]
NotSubmitted = Annotated[
    list[str], typer.Option("--not-submitted", help="a message batch in doubt: it was never made", metavar="N")
]
Within = Annotated[
    str, typer.Option("--within", help="with --all or --node: wait until it is empty, at most so long", metavar="TIME")
]
