"""Typer app of the command line: commands and their arguments. The code of a command is imported when the command runs,
so that ``--help`` is fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from actors.cli.kubernetes_commands import COMMANDS as K8S
from actors.cli.maintenance_commands import COMMANDS as TENDING
from actors.cli.money_commands import COMMANDS as MONEY
from actors.cli.options.arguments import (
    Api,
    Column,
    Dimensions,
    Faults,
    Input,
    Job,
    NotSubmitted,
    Output,
    Params,
    Planned,
    Port,
    Queue,
    Results,
    RowsPerRequest,
    Settings,
    Submitted,
    Table,
    Vectors,
    Within,
)
from actors.cli.options.errors import COMPLETE
from actors.cli.options.exit_codes import epilog
from actors.cli.options.help_layout import arrange
from actors.cli.options.options import BOUNDS, EMBEDDING, GOING_ON, LOOKING, RUNNING, TABLE, Options, takes
from actors.cli.options.registry import register
from actors.cli.plan_command import COMMANDS as FORETOLD
from actors.cli.program_commands import COMMANDS as SAVING
from actors.common.errors import CommandError

app = typer.Typer(
    name="cortex", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Very many bounded LLM calls under a scheduler that is plain code: parallel, durable, each paid once.",
    epilog=epilog(),
)  # fmt: skip
programs = typer.Typer(
    help="Programs: list the built-in ones, create an example, manage saved ones.", no_args_is_help=True
)
app.add_typer(programs, name="program")
k8s = typer.Typer(help="Kubernetes: a job file as a RayJob for KubeRay.", no_args_is_help=True)
app.add_typer(k8s, name="k8s")

_NOTHING: list[str] = []


def _version(wanted: bool) -> None:
    if wanted:
        import cortex

        print(f"cortex {cortex.__version__}")
        raise typer.Exit


@app.callback()
def _cortex(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the release and exit")
    ] = False,
) -> None:
    """Options before the command."""


@app.command()
@takes(*RUNNING, "ordered", "no_keep_text", "shards", "accept_bad", "bad", *TABLE)
def batch(input: Input, output: Results, options: Options, sample: Planned = 0) -> int:  # noqa: A002 - its name
    """Send every row or request of INPUT to a model, once. After a crash, the same command continues the job."""
    from actors.cli.run.start import batch as begin

    return begin(input, output, options, sample)


@app.command()
@takes(*EMBEDDING)
def embed(
    input: Table, output: Vectors, options: Options, column: Column = "",  # noqa: A002 - its name
    rows_per_request: RowsPerRequest = 0, dimensions: Dimensions = 0,
) -> int:  # fmt: skip
    """Ask an embedding model for a vector for every row of INPUT, several rows in a request. After a crash, the same
    command continues the job."""
    from actors.cli.run.embed import embed as begin

    return begin(input, output, column, rows_per_request, dimensions, options)


@app.command()
@takes(*RUNNING)
def run(
    program: Annotated[
        str, typer.Argument(help="a name of `cortex program list`, module:Class, file.py:Class, or a saved NAME.toml")
    ],
    options: Options,
    inputs: Annotated[list[str], typer.Argument(help="folders, text files or JSON Lines")] = _NOTHING,
    output: Output = "",
    param: Params = _NOTHING,
) -> int:
    """Run a program: a built-in one, your own, or a saved one."""
    from actors.cli.run.start import run as begin

    return begin(program, list(inputs or ()), output, list(param or ()), options)


@app.command()
@takes(*GOING_ON, "wait", "overwrite")
def resume(job: Job, options: Options, submitted: Submitted = _NOTHING, not_submitted: NotSubmitted = _NOTHING) -> int:
    """Continue a job that was interrupted, or stopped by a cap or a blocked account."""
    from actors.cli.run.resume import decided_of, go_on

    return go_on(job, options, attaching=False, decided=decided_of(submitted or (), not_submitted or ()))


@app.command()
@takes(*GOING_ON, "wait", "overwrite")
def attach(job: Job, options: Options, output: Output = "") -> int:
    """Follow a job that runs in a cluster; -o also writes its results to a file."""
    from actors.cli.run.resume import go_on

    return go_on(job, options, attaching=True, copy=output)


@app.command()
@takes(*LOOKING)
def cancel(job: Job, options: Options) -> int:
    """End a job for good, wherever it runs."""
    from actors.cli.control.steer import cancel as end

    return end(job, options)


@app.command()
@takes(*LOOKING)
def answer(
    job: Job, options: Options,
    answers: Annotated[list[str], typer.Argument(help="the answer, as JSON or a text", metavar="NAME=VALUE...")],
) -> int:  # fmt: skip
    """Answer a question that a job waits for; a job at rest continues with `cortex resume`."""
    from actors.cli.control.answer import answer as give

    return give(job, answers, options)


@app.command()
@takes(*LOOKING)
def approve(
    job: Job, options: Options,
    goals: Annotated[
        list[str], typer.Argument(help="requests to approve; none: list those that wait", metavar="GOAL...")
    ] = _NOTHING,
    deny: Annotated[bool, typer.Option("--deny", help="deny instead of approve")] = False,
) -> int:  # fmt: skip
    """Approve or deny what a job asks a person for; a job at rest continues with `cortex resume`."""
    from actors.cli.control.answer import approve as give

    return give(job, list(goals or ()), deny, options)


@app.command("set")
@takes(*LOOKING, lines=(*BOUNDS, "base_url"))
def change(job: Job, options: Options) -> int:
    """Change the limits of a job, also while it runs; `none` removes a limit. --base-url: its servers from now on."""
    from actors.cli.control.steer import change as put

    return put(job, options)


@app.command()
@takes(*LOOKING, "cluster")
def drain(
    options: Options,
    job: Annotated[str, typer.Argument(help="the job's name, as `cortex jobs` lists it")] = "",
    node: Annotated[
        str, typer.Option("--node", help="drain a node of --cluster: its pod, host or id, or `here`", metavar="NAME")
    ] = "",
    branch: Annotated[str, typer.Option("--branch", help="drain a branch of --cluster", metavar="NAME")] = "",
    every: Annotated[bool, typer.Option("--all", help="drain all jobs of --cluster")] = False,
    within: Within = "",
    restart: Annotated[
        bool, typer.Option("--for-restart", help="with --all: this machine ends, and `cortex tend` continues the jobs")
    ] = False,
) -> int:
    """Let a job finish its calls in flight and stop (`cortex resume` continues it); or drain a node or a branch."""
    from actors.cli.control.steer import drain as end

    return end(job, node, branch, every, within, restart, options)


@app.command()
@takes(*LOOKING, "cluster", "limits", lines=("concurrency", "rpm", "itpm", "otpm", "headroom"))
def limit(
    options: Options,
    route: Annotated[str, typer.Argument(help="a route or pool, or a part of its name; none: list all")] = "",
    clear: Annotated[bool, typer.Option("--clear", help="remove all manual limits of the route")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="drop what was learned about the route from its answers and refusals")
    ] = False,
) -> int:
    """Set limits on a route for all jobs together, also while they run; without arguments: list the limits in force,
    and what was learned of others."""
    from actors.cli.control.limit import limit as put

    return put(route, clear, forget, options)


@app.command()
@takes(*LOOKING, lines=("cluster",))
def status(
    options: Options, job: Annotated[str, typer.Argument(help="the job's name (default: the latest)")] = ""
) -> int:
    """Show the state of a job, from its journal; with --cluster also what the scheduler there knows now."""
    from actors.cli.inspection.status import status as show

    return show(job, options)


@app.command()
@takes(*LOOKING, "cluster")
def top(
    options: Options, once: Annotated[bool, typer.Option("--once", help="print one screen as text and exit")] = False
) -> int:
    """Watch jobs, routes, branches, workers and nodes on a full screen; q quits."""
    from actors.cli.inspection.top import top as show

    return show(once, options)


@app.command()
@takes(*LOOKING)
def jobs(
    options: Options,
    every: Annotated[bool, typer.Option("--all", help="include child jobs (shards)")] = False,
) -> int:
    """List the jobs of the state folder, the latest first."""
    from actors.cli.inspection.status import jobs as show

    return show(options, every)


@app.command()
@takes(*LOOKING)
def replay(
    job: Job, options: Options,
    program: Annotated[
        str, typer.Option("--program", help="try this program instead: file.py or file.py:NAME", metavar="FILE")
    ] = "",
    param: Params = _NOTHING,
) -> int:  # fmt: skip
    """Run a program over a job's recorded replies, without a model: show the further calls it would make, and their
    cost."""
    from actors.cli.inspection.replay import replay as try_it

    return try_it(job, program, list(param or ()), options)


@app.command()
@takes(*LOOKING)
def inspect(
    job: Job, options: Options,
    subject: Annotated[
        str, typer.Argument(help="a goal's number, a call, a custom_id; or goal:N, call:ID, row:ID", metavar="GOAL")
    ] = "",
    failed: Annotated[
        bool,
        typer.Option("--failed", help="list the goals and rows that failed; on a terminal more than N as --grouped"),
    ] = False,
    grouped: Annotated[
        bool, typer.Option("--grouped", help="with --failed: a line for each kind and message, wherever it is printed")
    ] = False,
    at: Annotated[int | None, typer.Option("--at", help="show the state after this turn", metavar="SEQ")] = None,
    first: Annotated[int, typer.Option("--from", help="first turn to show (default: the last N)", metavar="SEQ")] = 0,
    count: Annotated[
        int, typer.Option("--count", help="number of turns to show, or of failures on a terminal", metavar="N", min=1)
    ] = 40,
) -> int:  # fmt: skip
    """Show the turns of a job; or the history of one goal, with reasons; or the state after a turn."""
    from actors.cli.inspection.show import ShowOptions
    from actors.cli.inspection.show import inspect as show

    wanted = ShowOptions(job=job, subject=subject, failed=failed, at=at, first=first, count=count, grouped=grouped)
    return show(wanted, options)


@app.command()
@takes(*LOOKING, "overwrite", lines=("job",))
def fork(
    name: Annotated[str, typer.Argument(help="the job to fork, as `cortex jobs` lists it", metavar="JOB")],
    options: Options,
    at: Annotated[int, typer.Option("--at", help="the last turn to copy: see `cortex inspect`", metavar="SEQ")],
    output: Output = "",
    program: Annotated[
        str, typer.Option("--program", help="a changed flow that acts the same up to that turn", metavar="FILE:NAME")
    ] = "",
) -> int:  # fmt: skip
    """Copy the first turns of a job into a new job (--job NEW); `cortex resume NEW` continues from there."""
    from actors.cli.admin.fork import fork_job

    return fork_job(name, at, program, output, options)


@app.command()
@takes(*LOOKING)
def diff(
    job: Job, options: Options,
    other: Annotated[str, typer.Argument(help="the job to compare with", metavar="OTHER")],
) -> int:  # fmt: skip
    """Compare two jobs of one program: outcome, results row by row, calls; exit code 0 if equal, 1 if different."""
    from actors.cli.inspection.diff import diff as compare

    return compare(job, other, options)


@app.command()
@takes("state", "overwrite", "verbose")
def export(
    job: Job, options: Options,
    output: Annotated[
        str, typer.Option("--output", "-o", help="calls.parquet, .csv or .jsonl; - for stdout", metavar="FILE")
    ],
    no_text: Annotated[bool, typer.Option("--no-text", help="leave out prompts and replies")] = False,
) -> int:  # fmt: skip
    """Write the calls of a job as a table, one call a line: question, outcome and cost."""
    from actors.cli.inspection.export import export as write

    return write(job, output, no_text, options)


@app.command()
@takes("state", "overwrite", "verbose")
def report(
    job: Job, options: Options,
    output: Annotated[
        str, typer.Option("--output", "-o", help="default JOB.html; - for stdout; .gz compresses", metavar="FILE")
    ] = "",
    form: Annotated[str, typer.Option("--format", help="html, or perfetto: a trace of every attempt")] = "html",
    no_text: Annotated[bool, typer.Option("--no-text", help="leave out prompts and replies")] = False,
) -> int:  # fmt: skip
    """Write a report of a job, also while it runs, as one HTML page that needs no network."""
    from actors.cli.inspection.report import report as write

    return write(job, output, form, no_text, options)


@programs.command("list")
@takes("as_json", "verbose")
def list_programs(options: Options) -> int:
    """List the built-in programs, with their parameters."""
    from actors.cli.programs.new import list_programs as show

    return show(options)


@programs.command("new")
@takes("verbose")
def new_program(
    options: Options,
    file: Annotated[str, typer.Argument(help="the Python file to create", metavar="FILE")],
) -> int:
    """Create a small example flow to start from, and its test."""
    from actors.cli.programs.new import new_program as write

    return write(file)


@programs.command("plan-votes")
@takes("as_json", "verbose")
def plan_votes(
    options: Options,
    steps: Annotated[int, typer.Option("--steps", help="steps that must all be right", metavar="N", min=1)],
    success: Annotated[
        float | None, typer.Option("--success", help="share of a step's votes that are right", metavar="P")
    ] = None,
    right: Annotated[
        int | None, typer.Option("--right", help="instead of --success: right votes of a measurement", metavar="N")
    ] = None,
    of: Annotated[int | None, typer.Option("--of", help="with --right: votes of the measurement", metavar="M")] = None,
    target: Annotated[float, typer.Option("--target", help="probability that all are right", metavar="P")] = 0.95,
    flagged: Annotated[
        float, typer.Option("--flagged", help="share of replies that are discarded unread", metavar="SHARE")
    ] = 0.0,
) -> int:
    """Compute how many votes an answer must be ahead, from a measured success rate and a target."""
    from actors.cli.planning.votes import plan_votes as plan

    return plan(steps, success, right, of, target, flagged, options)


for _name, _command in SAVING.items():
    programs.command(_name)(_command)
for _name, _command in {**FORETOLD, **TENDING, **MONEY}.items():
    app.command(_name)(_command)
for _name, _command in K8S.items():
    k8s.command(_name)(_command)


@app.command()
@takes(*LOOKING, "provider", "api", "base_url", "metrics_from", "api_key_file", "cluster", "model", "concurrency")
def doctor(
    options: Options,
    metrics_listen: Annotated[
        str, typer.Option("--metrics-listen", help="check that this address is free", metavar="HOST:PORT")
    ] = "",
    paid: Annotated[bool, typer.Option("--paid", help="make one call of one token to --model, which costs")] = False,
) -> int:
    """Check this machine, the connection to the provider, the key, Ray and the state folder; say what to do."""
    from actors.cli.admin.doctor import doctor as examine

    return examine(metrics_listen, paid, options)


@app.command()
@takes("verbose")
def simulate(
    options: Options, port: Port = 0, fault: Faults = _NOTHING, setting: Settings = _NOTHING, queue: Queue = "",
    api: Api = "",
) -> int:  # fmt: skip
    """Serve a simulated provider for rehearsals over HTTP: Messages, Message Batches, OpenAI's APIs."""
    from actors.cli.options.api_keys import taken_environ
    from actors.simulator.frontends.command import ListenFailed
    from actors.simulator.frontends.command import simulate as serve
    from actors.simulator.frontends.http_app import APIS
    from actors.simulator.settings import SettingsError, queue_from, settings_from

    taken_environ()
    if api and api not in APIS:
        raise CommandError(f"--api {api!r}: give {', '.join(APIS)}")
    try:
        settings = settings_from([*(setting or ()), *queue_from(queue)], fault or ())
        return serve(settings, port=port, api=api) or COMPLETE
    except (ListenFailed, SettingsError) as error:
        raise CommandError(str(error)) from None


def _run_elsewhere(command: str, given: Mapping[str, Any], options: Options) -> int | None:
    from actors.cli.remote.submit import carry_out, is_elsewhere

    return carry_out(command, given, options) if is_elsewhere(command, options) else None


register(app, _run_elsewhere)
arrange(app)
