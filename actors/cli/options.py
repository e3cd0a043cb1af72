"""Options that several commands share: declared once, each also an environment variable, gathered into one record."""

from __future__ import annotations

import copy
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer
from typer.models import ArgumentInfo

from actors.cli.job_file import JobFile, Key, read
from actors.cli.panels import panel_of
from actors.cli.problems import CommandError, NobodyReads, speak


class Options(msgspec.Struct, kw_only=True):
    """What the user said. Empty or None: nothing was said."""

    model: str = ""
    provider: str = ""
    base_url: str = ""
    api_key_file: str = ""
    via: str = ""
    job: str = ""
    state: str = ".cortex"
    limits: str = ""
    max_cost: str = ""
    max_job_tokens: str = ""
    max_output_tokens: int | None = None
    prompt_tokens_max: int | None = None
    concurrency: str = ""
    rpm: str = ""
    itpm: str = ""
    otpm: str = ""
    headroom: str = ""
    priority: str = ""
    fallback: list[str] = msgspec.field(default_factory=list)
    role: list[str] = msgspec.field(default_factory=list)
    sub_model: str = ""
    deadline: str = ""
    goal_timeout: str = ""
    max_failed: str = ""
    warm_prefix: bool = False
    hedge: str = ""
    wait_blocked: str = ""
    price: str = ""
    price_as: str = ""
    cluster: str = ""
    sim: list[str] = msgspec.field(default_factory=list)
    label: list[str] = msgspec.field(default_factory=list)
    notify: str = ""
    shards: int | None = None
    fresh: bool = False
    overwrite: bool = False
    ordered: bool = False
    prompt: str = ""
    system: str = ""
    id: str = ""
    schema: str = ""
    schema_as: str = ""
    with_input: bool = False
    meta: bool = False
    accept_failed: str = ""
    accept_partial: bool = False
    wait: bool = False
    no_keep_text: bool = False
    as_json: bool = False
    verbose: bool = False
    metrics_listen: str = ""
    log_format: str = ""
    log_level: str = ""
    origins: dict[str, str] = msgspec.field(default_factory=dict)
    """Where each of them comes from that was said, for people."""


def _option(
    flag: str, told: str, metavar: str | None = None, least: int | None = None, short: str = ""
) -> Any:
    variable = (
        "CORTEX_DEBUG"
        if flag == "--verbose"
        else "CORTEX_" + flag.removeprefix("--").replace("-", "_").upper()
    )
    flags = (flag, short) if short else (flag,)
    return typer.Option(*flags, help=told, metavar=metavar, envvar=variable, show_default=False, min=least)


_DECLARED: dict[str, tuple[Any, Any]] = {
    "model": (str, _option("--model", "local, sim, or a provider's model; replaces the rows' own", "NAME")),
    "provider": (
        str,
        _option(
            "--provider", "who serves the model: anthropic (default), bedrock, vertex or foundry, with where it is "
            "asked unless the environment says it: bedrock,region=eu-west-1; vertex,region=global,project=P; "
            "foundry,resource=R", "NAME",
        ),
    ),
    "base_url": (
        str, _option("--base-url", "where the provider is: any server that speaks its Messages API", "URL")
    ),
    "api_key_file": (
        str,
        _option(
            "--api-key-file", "a file that holds the key; where calls are made it is read again when the key is "
            "refused, so that a key is rotated without a stop", "FILE",
        ),
    ),
    "via": (
        str,
        _option("--via", "messages (default), or batches: half the price, an answer may take a day", "ROAD"),
    ),
    "job": (str, _option("--job", "the job's name; else it derives from program, input and output", "NAME")),
    "state": (str, _option("--state", "folder of the journals (default .cortex), or postgresql://HOST/DB", "PLACE")),
    "limits": (
        str,
        _option(
            "--limits", "postgresql://HOST/DB where several clusters that use one account share its limits and the "
            "budgets of labels", "PLACE",
        ),
    ),
    "max_cost": (str, _option("--max-cost", "cap on what the job may cost, in USD; never passed", "USD")),
    "max_job_tokens": (str, _option("--max-job-tokens", "cap on tokens, input and output together", "N")),
    "max_output_tokens": (int, _option("--max-output-tokens", "most tokens of one reply", "N", 1)),
    "prompt_tokens_max": (int, _option("--prompt-tokens-max", "M: most tokens of one prompt", "N", 1)),
    "concurrency": (str, _option("--concurrency", "most calls in flight at once (default 100)", "N")),
    "rpm": (str, _option("--rpm", "most requests a minute of this job; below the provider's own limit", "N")),
    "itpm": (str, _option("--itpm", "most input tokens a minute", "N")),
    "otpm": (str, _option("--otpm", "most output tokens a minute", "N")),
    "headroom": (str, _option("--headroom", "share of the provider's limits left to other traffic", "SHARE")),
    "priority": (str, _option("--priority", "weight among jobs that share a limit (default 1)", "WEIGHT")),
    "fallback": (
        list[str],
        _option(
            "--fallback", "where calls go while the breaker of the model is open: MODEL, MODEL@URL, or at another "
            "provider bedrock:MODEL,region=eu-west-1; with a price MODEL,input=3,output=15 or MODEL,price-as=MODEL; "
            "may be repeated", "ROUTE",
        ),
    ),
    "role": (
        list[str],
        _option(
            "--role", "which model the program's calls of a role go to: judge=MODEL, and the rest as in --fallback; "
            "without it the job's own; may be repeated", "NAME=ROUTE",
        ),
    ),
    "sub_model": (str, _option("--sub-model", "short for --role sub=ROUTE: the calls of a written program", "ROUTE")),
    "deadline": (str, _option("--deadline", "when to stop, partial: +6h, or an ISO 8601 time", "WHEN")),
    "goal_timeout": (str, _option("--goal-timeout", "longest that one row may take, retries included", "TIME")),
    "max_failed": (
        str,
        _option("--max-failed", "stop when so many rows have failed: a count, or a share like 10%", "N|SHARE"),
    ),
    "warm_prefix": (bool, _option("--warm-prefix", "one prompt ahead where many share a long cacheable prefix")),
    "hedge": (str, _option("--hedge", "ask again what has no answer after so long; both are paid", "TIME")),
    "wait_blocked": (
        str,
        _option("--wait-blocked", "how long to wait for a blocked account (default: end partial at once)", "TIME"),
    ),
    "price": (str, _option("--price", "input=3,output=15 and so on, USD per million tokens", "RATES")),
    "price_as": (
        str,
        _option(
            "--price-as", "the model that this one costs as much as: for names that no price is known for, and any "
            "server of --base-url", "MODEL",
        ),
    ),
    "cluster": (str, _option("--cluster", "auto (default), inline, local, or a Ray's address", "WHERE")),
    "sim": (
        list[str],
        _option("--sim", "setting or fault of the simulated provider, may be repeated", "NAME=VALUE"),
    ),
    "label": (
        list[str],
        _option("--label", "what traces, costs and budgets tell it by, a team say; may be repeated", "NAME=VALUE"),
    ),
    "notify": (
        str,
        _option(
            "--notify", "a URL (a Slack webhook, say) that is told, as JSON: 50, 80 and 100 % of a cap or budget, a "
            "pause, a breaker open for 5 minutes, a deadline at risk, the end; of this run, kept nowhere", "URL",
        ),
    ),
    "shards": (
        int,
        _option(
            "--shards", "deal the rows to so many child jobs, each with a journal and, on a cluster, a process of its "
            "own; caps, rates and priority hold for all of them together (default 1)", "N", 1,
        ),
    ),
    "fresh": (bool, _option("--fresh", "ask anew, whatever is remembered")),
    "overwrite": (bool, _option("--overwrite", "write over an output that exists")),
    "ordered": (bool, _option("--ordered", "results in the order of the input")),
    "prompt": (
        str,
        _option("--prompt", "asked of each row of a table: 'Label: {{column}}', or @FILE that holds it", "TEMPLATE"),
    ),
    "system": (str, _option("--system", "the system prompt of all rows, or @FILE", "TEXT")),
    "id": (str, _option("--id", "the column that results are known by (default: rows are numbered)", "COLUMN")),
    "schema": (
        str,
        _option(
            "--schema", "answers are JSON of this schema, and its fields columns: a file, or a Python type "
            "module:Type, file.py:Type", "FILE",
        ),
    ),
    "schema_as": (
        str,
        _option(
            "--schema-as", "how it is asked for: format (structured outputs; default), tool, or prompt, in words "
            "(default of --model local)", "FORM",
        ),
    ),
    "with_input": (bool, _option("--with-input", "results hold the input's other columns too")),
    "meta": (bool, _option("--meta", "results hold kind, model, attempts, latency, tokens, cost and reuse too")),
    "accept_failed": (
        str,
        _option("--accept-failed", "this share of failed rows still counts as complete", "SHARE"),
    ),
    "accept_partial": (bool, _option("--accept-partial", "a partial result counts as complete")),
    "wait": (bool, _option("--wait", "where another run has the job, wait for it and take what came of it")),
    "no_keep_text": (
        bool, _option("--no-keep-text", "let prompts and replies leave the disk once their results are in the output")
    ),
    "as_json": (bool, _option("--json", "a summary as one JSON object, last on standard output")),
    "metrics_listen": (
        str, _option("--metrics-listen", "where Prometheus may read metrics while it runs", "HOST:PORT"),
    ),
    "log_format": (
        str, _option("--log-format", "text, or json: then all of standard error is JSON, an object a line", "FORM"),
    ),
    "log_level": (str, _option("--log-level", "debug, info, warning or error (default warning)", "LEVEL")),
    "verbose": (bool, _option("--verbose", "show where errors come from", short="-v")),
}

LOOKING = ("state", "as_json", "verbose")
"""Options of commands that only read."""
BOUNDS = (
    "max_cost", "max_job_tokens", "concurrency", "rpm", "itpm", "otpm", "headroom", "priority", "deadline",
    "goal_timeout", "max_failed", "hedge", "wait_blocked",
)  # fmt: skip
"""Options that bound a job, and that may change while it runs."""
GOING_ON = (
    "base_url", "api_key_file", "state", "limits", *BOUNDS, "fallback", "price", "price_as", "cluster", "sim",
    "accept_failed", "accept_partial", "as_json", "verbose", "metrics_listen", "log_format", "log_level", "notify",
)  # fmt: skip
"""Options under which a job may go on; all others are a part of what the job is."""
RUNNING = (
    "model", "provider", "role", "sub_model", "base_url", "api_key_file", "via", "job", "state", "limits", *BOUNDS,
    "max_output_tokens", "prompt_tokens_max", "fallback", "warm_prefix", "price", "price_as", "cluster", "sim", "label",
    "notify", "fresh", "overwrite", "accept_failed", "accept_partial", "wait", "as_json", "verbose", "metrics_listen",
    "log_format", "log_level",
)  # fmt: skip
"""Options of commands that begin a job."""
TABLE = ("prompt", "system", "id", "schema", "schema_as", "with_input", "meta")
"""Options of a table of answers."""


def takes(*names: str, said: tuple[str, ...] = ()) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """A command that takes these options and gets them as one argument, ``options``; and a job file that holds them.

    Those that it must be told are not read from the environment, nor from a file: there they are meant for jobs that
    begin.
    """

    def wrap(function: Callable[..., int]) -> Callable[..., int]:
        def command(ctx: typer.Context, **given: Any) -> int:
            given.pop(FILE)
            told = {name: value for name in (*names, *said) if (value := given.pop(name)) not in (None, [])}
            origins = origins_of(ctx)
            options = Options(**told, origins=origins)
            speak(options.log_format)
            try:
                code = _carried_out(function, given, options)
                sys.stdout.flush()
                return code
            except CommandError as error:
                raise CommandError(str(error) + blame(str(error), origins), error.code) from None
            except BrokenPipeError:
                raise NobodyReads from None

        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [_named(each) for each in own if each.name != "options"]
        parameters += [_parameter(name) for name in names]
        parameters += [_parameter(name, from_environment=False) for name in said]
        parameters += [inspect.Parameter(FILE, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FILE)]
        first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        command.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in (first, *parameters)}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


def _carried_out(function: Callable[..., int], given: dict[str, Any], options: Options) -> int:
    if "://" in options.cluster or "://" in os.environ.get("RAY_ADDRESS", ""):
        from actors.cli.elsewhere import carry_out, is_elsewhere

        if is_elsewhere(function.__name__, options):
            return carry_out(function.__name__, given, options)
    return function(**given, options=options)


def _named(own: inspect.Parameter) -> inspect.Parameter:
    """An argument is shown as people write it: JOB."""
    for each in getattr(own.annotation, "__metadata__", ()):
        if isinstance(each, ArgumentInfo) and each.metavar is None:
            each.metavar = own.name.upper()
    return own


def _parameter(name: str, from_environment: bool = True) -> inspect.Parameter:
    kind, option = _DECLARED[name]
    option = copy.copy(option)
    option.rich_help_panel = panel_of(name)
    if not from_environment:
        option.envvar = None
    annotation: Any = Annotated[kind, option] if kind is bool else Annotated[kind | None, option]
    default = False if kind is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# -- a job file ----------------------------------------------------------------------------------------------------

FILE = "job_file"
ABOUT = {
    "input": Key("input", str, "the rows of `cortex batch`", option=False),
    "inputs": Key("inputs", list, "the files of `cortex run`", option=False),
    "program": Key("program", str, "the program of `cortex run`", option=False),
    "output": Key("output", str, "where results go", option=False),
    "param": Key("param", list, "parameters of the program", pairs=True, option=False),
}
"""What ``batch`` and ``run`` are about."""


_NUMBERS = ("USD", "N", "SHARE", "N|SHARE", "WEIGHT", "TIME")
"""Forms of values that may be numbers in a job file."""


def flag_of(name: str) -> str:
    """An option as the command line has it."""
    option = _DECLARED[name][1]
    flags = (option.default, *(option.param_decls or ()))  # typer takes the first for the default until it is used
    return next(flag for flag in flags if isinstance(flag, str) and flag.startswith("--"))


def keys() -> dict[str, Key]:
    """All that a job file may hold, by the names that commands have for it: the one schema."""
    shared = {
        name: Key(
            flag_of(name).removeprefix("--"), list if kind == list[str] else kind, option.help or "",
            pairs=kind == list[str] and "=" in str(option.metavar), numbers=option.metavar in _NUMBERS,
        )
        for name, (kind, option) in _DECLARED.items()
    }  # fmt: skip
    return {**ABOUT, **shared}


def _read_file(ctx: typer.Context, path: str | None) -> str | None:
    """Take the values of a job file for whatever is said neither on the command line nor by a variable."""
    if not path or ctx.resilient_parsing:
        return path
    known = keys()
    found = read(path, known)
    open_to = {each.name for each in ctx.command.params if _may_stand_in_a_file(ctx.command.name or "", each)}
    ctx.meta[FILE] = found
    ctx.default_map = {name: value for name, value in found.values.items() if name in open_to}
    return path


def _may_stand_in_a_file(command: str, parameter: Any) -> bool:
    if parameter.name in ABOUT:
        return command in ("batch", "plan", "run")
    return bool(parameter.envvar) or (parameter.name == "job" and parameter.param_type_name == "argument")


def origins_of(ctx: typer.Context) -> dict[str, str]:
    """Where the values of a command come from, those that are no defaults."""
    found: JobFile | None = ctx.meta.get(FILE)
    origins = {}
    for each in ctx.command.params:
        source = ctx.get_parameter_source(each.name or "")
        name = each.name or ""
        if source is None or source.name == "DEFAULT" or name in (FILE, "help"):
            continue
        if source.name == "COMMANDLINE":
            origins[name] = "command line"
        elif source.name == "ENVIRONMENT":
            origins[name] = str(each.envvar)
        elif found is not None:
            origins[name] = found.origin(name)
    return origins


def blame(said: str, origins: dict[str, str]) -> str:
    """Where the value that an error complains about stands, if that is not before the user's eyes."""
    for name, origin in origins.items():
        if name in _DECLARED and origin != "command line" and re.match(rf"{flag_of(name)}(?![\w-])", said):
            return f" ({origin})"
    return ""


_FILE = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", help="a job file: options as TOML; the command line and CORTEX_ variables win", metavar="FILE",
        is_eager=True, callback=_read_file, show_default=False,
    ),
]  # fmt: skip
