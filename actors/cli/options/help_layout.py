"""How help is arranged: commands and options in groups, by what somebody wants to do, and an example or two."""

from __future__ import annotations

from copy import copy

import typer
from typer.models import CommandInfo

COMMANDS = {
    "Begin": "batch run plan",
    "While it runs": "status top jobs set drain limit cancel attach answer approve",
    "Afterwards": "results resume retry report inspect export costs replay diff fork",
    "In a cluster": "k8s down",
    "Once in a while": "config backup rm gc forget budget program doctor simulate",
}
"""Commands by what they are for, in the order of their groups. One that is not here stands in a group of its own."""

OPTIONS = {
    "Table": "prompt system id schema schema_as with_input meta ordered",
    "Model": "model provider api_key_file base_url via price price_as max_output_tokens prompt_tokens_max role "
    "sub_model fallback warm_prefix sim",
    "Money and time": "max_cost max_job_tokens deadline goal_timeout max_failed wait_blocked hedge notify",
    "Limits": "concurrency rpm itpm otpm headroom priority limits",
    "The job": "job state cluster label shards fresh overwrite no_keep_text accept_failed accept_partial wait",
    "What is told": "as_json verbose metrics_listen log_format log_level",
}
"""Options that several commands share. One that is not here stands with the command's own."""

EXAMPLES = {
    "batch": (
        "cortex batch tickets.csv --prompt 'Label: {{text}}' --id ticket_id -o labels.csv --model sim",
        "cortex batch requests.jsonl -o results.jsonl --max-cost 20 --deadline +6h",
    ),
    "run": (
        "cortex run notes FOLDER -p question='Which pump fails?' --model sim",
        "cortex run triage.py -p texts='[\"It crashes.\"]' --model sim",
    ),
    "results": ("cortex results JOB --failed -o failed.csv",),
    "retry": ("cortex retry JOB --kind malformed,timed_out --max-output-tokens 200",),
    "inspect": ("cortex inspect JOB --failed", "cortex inspect JOB ticket-17"),
    "set": ("cortex set JOB --max-cost 50 --deadline +2h --priority 3",),
    "limit": ("cortex limit sonnet --rpm 500 --headroom 20%", "cortex limit sonnet --clear"),
    "down": ("cortex down --within 5m",),
    "backup": ("cortex backup /mnt/other/cortex-2026-11-22",),
    "gc": ("cortex gc --older-than 30d --dry-run",),
    "doctor": ("cortex doctor --model claude-haiku-4-5",),
    "simulate": ("cortex simulate --port 8400 --fault overloaded=0.1 -s rpm=600",),
}
"""What to type, below the options."""

_PANEL_OF = {name: panel for panel, names in OPTIONS.items() for name in names.split()}


def panel_of(option: str) -> str | None:
    """The group of an option."""
    return _PANEL_OF.get(option)


def arrange(app: typer.Typer) -> None:
    """Put the commands in their groups, and their examples below them."""
    group_of = {name: group for group, names in COMMANDS.items() for name in names.split()}
    turn = list(group_of)
    for each in app.registered_groups:
        each.rich_help_panel = group_of.get(each.name or "", "Others")
    for command in app.registered_commands:
        command.rich_help_panel = group_of.get(_name(command), "Others")
        if _name(command) in EXAMPLES:
            command.epilog = "\n\n".join(EXAMPLES[_name(command)])
    app.registered_commands.sort(key=lambda each: turn.index(_name(each)) if _name(each) in turn else len(turn))


def asked(app: typer.Typer, arguments: list[str]) -> typer.Typer:
    """``app``, with no more than the one command that the arguments name, if they name one: to make the parsers of all
    takes longer than many a command does."""
    found = [command for command in app.registered_commands if [_name(command)] == arguments[:1]]
    if not found:
        return app
    one = copy(app)
    one.registered_commands, one.registered_groups = found, []
    return one


def _name(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))
