"""What a command does without: a user waits for each of its imports, and for each parser that nobody asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from actors.cli.app import app
from actors.cli.options.help_layout import reduced
from tests.cli.cli_runner import environment, requests

HEAVY = (
    "aiohttp", "anthropic", "httpx2", "pandas", "pyarrow", "ray", "rich", "actors.runtime.inline", "actors.providers.transport.aiohttp_transport",
    "actors.api.session", "actors.simulator.api.reasoner",
)  # fmt: skip


@pytest.mark.parametrize(
    "words", ["status done", "jobs", "results done", "inspect done", "inspect done r1", "costs", "limit"]
)
def test_who_only_reads_imports_nothing_that_runs_a_job(cortex: Callable[..., Any], words: str) -> None:
    requests(Path("in.jsonl"), 3)
    assert cortex("batch", "in.jsonl", "-o", "out", "--model", "sim", "--job", "done").code == 0
    source = (
        "import sys; from actors.cli.main import enter; code = enter(sys.argv[1:]); "
        f"print(code, *[name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", source, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "0", done.stderr


def test_the_parser_of_what_is_asked_is_made_and_no_other() -> None:
    before = len(app.registered_commands), len(app.registered_groups)
    one = reduced(app, "status")
    assert [command.callback.__name__ for command in one.registered_commands if command.callback] == ["status"]
    assert not one.registered_groups
    assert reduced(app, "batch").registered_commands != one.registered_commands, "the next asks for another"
    assert (len(app.registered_commands), len(app.registered_groups)) == before


def test_the_parser_of_one_command_is_as_it_is_among_all() -> None:
    all_of_them: Any = get_command(app)
    for each in app.registered_commands:
        name = each.name or getattr(each.callback, "__name__", "")
        alone: Any = get_command(reduced(app, name))
        assert list(alone.commands) == [name]
        one, other = alone.commands[name], all_of_them.commands[name]
        assert [param.opts for param in one.params] == [param.opts for param in other.params]
        assert (one.help, one.epilog, one.rich_help_panel) == (other.help, other.epilog, other.rich_help_panel)


@pytest.mark.parametrize("words", [[], ["--help"], ["stat"], ["k8s", "job"], ["program", "list"]])
def test_where_none_is_named_all_are_there(words: list[str]) -> None:
    assert reduced(app, "".join(words[:1])) is app
