"""Layout of the help: groups of commands and options by purpose, and examples."""

from __future__ import annotations

from copy import copy

import typer
from typer.models import CommandInfo

COMMANDS = {
    "Start": "batch embed run plan",
    "While it runs": "status top jobs set drain limit cancel attach answer approve",
    "Afterwards": "results resume retry report inspect export costs replay diff fork",
    "In a cluster": "k8s tend down",
    "Administration": "config metrics backup verify rm gc forget budget program doctor simulate",
}
"""Group -> its commands, in the order of the help. Commands without a group are shown under "Others"."""

OPTIONS = {
    "Table": "prompt system id schema schema_as with_input meta logprobs top_logprobs votes votes_by answer_as "
    "columns_prefix on_cut ordered",
    "Form of the input": "encoding delimiter quoting skip_lines no_header accept_bad bad",
    "Model": "model provider api api_key_file base_url metrics_from via price price_as max_output_tokens "
    "prompt_tokens_max role sub_model fallback warm_prefix sim",
    "Money and time": "max_cost max_job_tokens deadline goal_timeout timeout max_failed wait_blocked hedge notify",
    "Limits": "concurrency rpm itpm otpm headroom priority limits",
    "The job": "job state cluster label shards fresh overwrite no_keep_text accept_failed accept_partial wait",
    "Output and logs": "as_json verbose metrics_listen log_format log_level",
}
"""Group -> options that several commands share. Options without a group stand with the command's own."""

EXAMPLES = {
    "batch": (
        "cortex batch tickets.csv --prompt 'Label: {{text}}' --id ticket_id -o labels.csv --model sim",
        "cortex batch requests.jsonl -o results.jsonl --max-cost 20 --deadline +6h",
    ),
    "embed": ("cortex embed articles.csv --column body --id article_id -o vectors.parquet --model sim",),
    "run": (
        "cortex run notes FOLDER -p question='Which pump fails?' --model sim",
        "cortex run triage.py -p texts='[\"It crashes.\"]' --model sim",
    ),
    "results": ("cortex results JOB --failed -o failed.csv",),
    "retry": ("cortex retry JOB --kind cut,empty --max-output-tokens 200",),
    "inspect": ("cortex inspect JOB --failed", "cortex inspect JOB ticket-17"),
    "set": ("cortex set JOB --max-cost 50 --deadline +2h --priority 3",),
    "limit": ("cortex limit sonnet --rpm 500 --headroom 20%", "cortex limit sonnet --clear"),
    "tend": ("cortex tend --cluster head:6379 --every 30s",),
    "down": ("cortex down --within 5m",),
    "verify": ("cortex verify tickets",),
    "metrics": ("cortex metrics --metrics-listen 127.0.0.1:9465",),
    "backup": ("cortex backup /mnt/other/cortex-2026-11-22",),
    "gc": ("cortex gc --older-than 30d --dry-run",),
    "doctor": ("cortex doctor --model claude-haiku-4-5",),
    "simulate": ("cortex simulate --port 8400 --fault overloaded=0.1 -s rpm=600", "cortex simulate --queue slots=8"),
}
"""Command -> examples, shown below its options."""

_PANEL_OF = {name: panel for panel, names in OPTIONS.items() for name in names.split()}


def panel_of(option: str) -> str | None:
    """Return the group of an option; None if it has none."""
    return _PANEL_OF.get(option)


def arrange(app: typer.Typer) -> None:
    """Assign groups and examples to the commands of ``app``, and sort them."""
    group_of = {name: group for group, names in COMMANDS.items() for name in names.split()}
    turn = list(group_of)
    for each in app.registered_groups:
        each.rich_help_panel = group_of.get(each.name or "", "Others")
    for command in app.registered_commands:
        command.rich_help_panel = group_of.get(_name(command), "Others")
        if _name(command) in EXAMPLES:
            command.epilog = "\n\n".join(EXAMPLES[_name(command)])
    app.registered_commands.sort(key=lambda each: turn.index(_name(each)) if _name(each) in turn else len(turn))


def reduced(app: typer.Typer, name: str) -> typer.Typer:
    """Return ``app`` with the one command of that name, or all of it where there is none. Building the parsers of all
    commands takes longer than many commands run."""
    found = [command for command in app.registered_commands if _name(command) == name]
    if not found:
        return app
    one = copy(app)
    one.registered_commands, one.registered_groups = found, []
    return one


def _name(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))
