"""Arguments of single commands, beside the options that several commands share."""

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
    str, typer.Option("--output", "-o", help="file for the results, one a line; .gz; - for stdout", metavar="FILE")
]
Results = Annotated[
    str,
    typer.Option(
        "--output", "-o", metavar="FILE",
        help="file for the results: a table (.csv, .parquet), or JSON Lines; .gz; - for stdout",
    ),
]
Table = Annotated[str, typer.Argument(help="a table (.csv, .parquet, .jsonl), .gz too; - for JSON Lines from stdin")]
Vectors = Annotated[
    str,
    typer.Option("--output", "-o", help="Parquet file for the vectors: fixed-size lists of float32", metavar="FILE"),
]
Column = Annotated[str, typer.Option("--column", help="column whose text is embedded (default: text)", metavar="NAME")]
RowsPerRequest = Annotated[
    int,
    typer.Option(
        "--rows-per-request", help="rows of a request at most, 1 to 2,048 (default 64)", metavar="N", min=0,
        show_default=False,
    ),
]
Dimensions = Annotated[
    int,
    typer.Option(
        "--dimensions", help="numbers of a vector, for models that can shorten theirs", metavar="N", min=0,
        show_default=False,
    ),
]
Planned = Annotated[
    int,
    typer.Option(
        "--sample", metavar="N", min=0, help="N of an earlier `cortex plan`, to reuse its replies; all rows are asked"
    ),
]
Job = Annotated[str, typer.Argument(help="the job's name, as `cortex jobs` lists it")]
Jobs = Annotated[list[str], typer.Argument(help="names of jobs, as `cortex jobs` lists them", metavar="JOB...")]
Port = Annotated[
    int, typer.Option("--port", help="port to listen at, on this machine only; 0: any", min=0, max=65535)
]
Api = Annotated[
    str, typer.Option("--api", help="messages or chat, the only API that is served; by default both", metavar="NAME")
]
Faults = Annotated[
    list[str], typer.Option("--fault", help="share of requests that fail with this kind", metavar="KIND=SHARE")
]
Settings = Annotated[
    list[str], typer.Option("--set", "-s", help="a setting of the provider", metavar="NAME=VALUE")
]
Queue = Annotated[
    str,
    typer.Option(
        "--queue",
        help="a server that queues: slots=256,kv_tokens=400000,prefill_tps=20000, and step_tokens, batch_half",
        metavar="NAME=VALUE,...",
    ),
]
Params = Annotated[
    list[str],
    typer.Option("--param", "-p", help="a parameter of the program; @FILE: read it from a file", metavar="NAME=VALUE"),
]
Submitted = Annotated[
    list[str],
    typer.Option("--submitted", help="a message batch in doubt: the provider has it, with this id", metavar="N=BATCH"),
]
NotSubmitted = Annotated[
    list[str], typer.Option("--not-submitted", help="a message batch in doubt: the provider has none", metavar="N")
]
Within = Annotated[
    str, typer.Option("--within", help="with --all or --node: longest time to wait for the end", metavar="TIME")
]
