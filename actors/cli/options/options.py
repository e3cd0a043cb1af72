"""Options that several commands share: each also an environment variable, gathered into one record."""

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

from actors.cli.options.errors import speak
from actors.cli.options.help_layout import panel_of
from actors.cli.options.job_file import JobFile, JobFileKey, read
from actors.cli.options.option_specs import DECLARED
from actors.cli.options.registry import run_elsewhere
from actors.common.errors import CommandError


class Options(msgspec.Struct, kw_only=True):
    """Options given by the user. An empty value or None: not given."""

    model: str = ""
    provider: str = ""
    api: str = ""
    base_url: list[str] = msgspec.field(default_factory=list)
    metrics_from: list[str] = msgspec.field(default_factory=list)
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
    timeout: str = ""
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
    logprobs: bool = False
    top_logprobs: int | None = None
    votes: int | None = None
    votes_by: str = ""
    on_cut: str = ""
    answer_as: str = ""
    columns_prefix: str = ""
    encoding: str = ""
    delimiter: str = ""
    quoting: str = ""
    skip_lines: int | None = None
    no_header: bool = False
    accept_bad: str = ""
    bad: str = ""
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
    """Field name -> source of its value, for messages; only of values that were given."""


LOOKING = ("state", "as_json", "verbose")
"""Options of commands that only read."""
BOUNDS = (
    "max_cost", "max_job_tokens", "concurrency", "rpm", "itpm", "otpm", "headroom", "priority", "deadline",
    "goal_timeout", "timeout", "max_failed", "hedge", "wait_blocked",
)  # fmt: skip
"""Options that limit a job and may change while it runs."""
GOING_ON = (
    "base_url", "metrics_from", "api_key_file", "state", "limits", *BOUNDS, "fallback", "price", "price_as", "cluster",
    "sim", "accept_failed", "accept_partial", "as_json", "verbose", "metrics_listen", "log_format", "log_level",
    "notify",
)  # fmt: skip
"""Options that may differ when a job is resumed; all others are part of the job's identity."""
RUNNING = (
    "model", "provider", "api", "role", "sub_model", "base_url", "metrics_from", "api_key_file", "via", "job", "state",
    "limits", *BOUNDS, "max_output_tokens", "prompt_tokens_max", "fallback", "warm_prefix", "price", "price_as",
    "cluster", "sim", "label", "notify", "fresh", "overwrite", "accept_failed", "accept_partial", "wait", "as_json",
    "verbose", "metrics_listen", "log_format", "log_level",
)  # fmt: skip
"""Options of commands that start a job."""
TABLE = (
    "prompt", "system", "id", "schema", "schema_as", "with_input", "meta", "logprobs", "top_logprobs", "votes",
    "votes_by", "answer_as", "columns_prefix", "on_cut", "encoding", "delimiter", "quoting", "skip_lines", "no_header",
)  # fmt: skip
"""Options of a table of prompts and answers, and of the form of its file."""


EMBEDDING = (
    "model", "provider", "base_url", "api_key_file", "job", "state", "limits", *BOUNDS, "fallback", "price", "price_as",
    "cluster", "sim", "label", "notify", "fresh", "overwrite", "ordered", "no_keep_text", "shards", "accept_bad",
    "bad", "accept_failed", "accept_partial", "wait", "as_json", "verbose", "metrics_listen", "log_format",
    "log_level", "prompt", "id", "with_input", "answer_as", "columns_prefix", "encoding", "delimiter", "quoting",
    "skip_lines", "no_header",
)  # fmt: skip
"""Options of a table of vectors."""


def takes(*names: str, lines: tuple[str, ...] = ()) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorate a command that takes these options: it gets them as one argument, ``options``. A job file may hold them.

    Options in ``lines`` are read from the command line only: in the environment or a file they are meant for new jobs.
    """

    def wrap(function: Callable[..., int]) -> Callable[..., int]:
        def command(ctx: typer.Context, **given: Any) -> int:
            given.pop(FILE)
            facts = {name: value for name in (*names, *lines) if (value := given.pop(name)) not in (None, [])}
            origins = origins_of(ctx)
            options = Options(**facts, origins=origins)
            speak(options.log_format)
            try:
                code = _carried_out(function, given, options)
                sys.stdout.flush()
                return code
            except CommandError as error:
                raise CommandError(str(error) + blame(str(error), origins), error.code) from None

        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [_named(each) for each in own if each.name != "options"]
        parameters += [_parameter(name) for name in names]
        parameters += [_parameter(name, from_environment=False) for name in lines]
        parameters += [inspect.Parameter(FILE, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FILE)]
        first = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        command.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in (first, *parameters)}
        command.__doc__, command.__name__ = function.__doc__, function.__name__
        return command

    return wrap


def _carried_out(function: Callable[..., int], given: dict[str, Any], options: Options) -> int:
    if "://" in options.cluster or "://" in os.environ.get("RAY_ADDRESS", ""):
        code = run_elsewhere(function.__name__, given, options)
        if code is not None:
            return code
    return function(**given, options=options)


def _named(own: inspect.Parameter) -> inspect.Parameter:
    """Set the metavar of an argument to its name in capitals: JOB."""
    for each in getattr(own.annotation, "__metadata__", ()):
        if isinstance(each, ArgumentInfo) and each.metavar is None:
            each.metavar = own.name.upper()
    return own


def _parameter(name: str, from_environment: bool = True) -> inspect.Parameter:
    kind, option = DECLARED[name]
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
    "input": JobFileKey("input", str, "the rows of `cortex batch`", option=False),
    "inputs": JobFileKey("inputs", list, "the files of `cortex run`", option=False),
    "program": JobFileKey("program", str, "the program of `cortex run`", option=False),
    "output": JobFileKey("output", str, "the file for the results", option=False),
    "param": JobFileKey("param", list, "parameters of the program", pairs=True, option=False),
}
"""Keys of a job file for the arguments of ``batch``, ``plan`` and ``run``."""


_NUMBERS = ("USD", "N", "SHARE", "N|SHARE", "WEIGHT", "TIME")
"""Metavars of values that may be numbers in a job file."""


def flag_of(name: str) -> str:
    """Return the flag of an option, as on the command line."""
    option = DECLARED[name][1]
    flags = (option.default, *(option.param_decls or ()))  # typer takes the first for the default until it is used
    return next(flag for flag in flags if isinstance(flag, str) and flag.startswith("--"))


def keys() -> dict[str, JobFileKey]:
    """Return all keys that a job file may hold, by field name: its schema."""
    shared = {
        name: JobFileKey(
            flag_of(name).removeprefix("--"), list if kind == list[str] else kind, option.help or "",
            pairs=kind == list[str] and "=" in str(option.metavar), numbers=option.metavar in _NUMBERS,
        )
        for name, (kind, option) in DECLARED.items()
    }  # fmt: skip
    return {**ABOUT, **shared}


def _read_file(ctx: typer.Context, path: str | None) -> str | None:
    """Use the values of a job file for options that neither the command line nor a variable gives."""
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
        return command in ("batch", "embed", "plan", "run")
    return bool(parameter.envvar) or (parameter.name == "job" and parameter.param_type_name == "argument")


def of_file(found: JobFile, command: Any) -> tuple[Options, dict[str, Any]]:
    """Return the options that a job file gives to a command, and the command's own arguments, as its parser would give
    them.

    Raises ``CommandError``.
    """
    ctx = command.context_class(command, info_name=command.name)
    facts: dict[str, Any] = {}
    for each in command.params:
        given = each.name in found.values and _may_stand_in_a_file(command.name or "", each)
        try:
            if given or each.required:
                facts[each.name] = each.process_value(ctx, found.values[each.name] if given else None)
        except typer.BadParameter as error:
            text = " ".join(error.format_message().split()).rstrip(".")
            raise CommandError(f"{found.origin(each.name)}: {text}") from None
    origins = {name: found.origin(name) for name in facts}
    own = {name: facts.pop(name) for name in list(facts) if name not in DECLARED}
    return Options(**{name: value for name, value in facts.items() if value not in (None, [])}, origins=origins), own


def origins_of(ctx: typer.Context) -> dict[str, str]:
    """Return the source of each value of a command that is not a default."""
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


def blame(text: str, origins: dict[str, str]) -> str:
    """Return the source of the value that an error text begins with; empty if it is the command line."""
    for name, origin in origins.items():
        if name in DECLARED and origin != "command line" and re.match(rf"{flag_of(name)}(?![\w-])", text):
            return f" ({origin})"
    return ""


_FILE = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", help="a job file: options as TOML; the command line and CORTEX_ variables win over it",
        metavar="FILE", is_eager=True, callback=_read_file, show_default=False,
    ),
]  # fmt: skip
