"""What a command does without: a user waits for each of its imports, and for each parser that nobody asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.cli.app import app
from actors.cli.panels import asked
from tests.cli.commands import environment

HEAVY = (
    "aiohttp", "anthropic", "httpx2", "pandas", "pyarrow", "ray", "rich", "actors.inline", "actors.provider.direct",
    "actors.session", "actors.simulator.reasoner",
)  # fmt: skip


@pytest.mark.parametrize("words", [("status", "none"), ("jobs",), ("limit", "--state", "none")])
def test_who_only_reads_starts_nothing_that_runs_a_job(words: tuple[str, ...]) -> None:
    source = (
        "import sys; from actors.cli.entrance import enter; enter(sys.argv[1:]); "
        f"print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    command = [sys.executable, "-c", source, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == ""


def test_the_parser_of_what_is_asked_is_made_and_no_other() -> None:
    before = len(app.registered_commands), len(app.registered_groups)
    one = asked(app, ["status", "--help"])
    assert [command.callback.__name__ for command in one.registered_commands if command.callback] == ["status"]
    assert not one.registered_groups
    assert asked(app, ["batch"]).registered_commands != one.registered_commands, "the next asks for another"
    assert (len(app.registered_commands), len(app.registered_groups)) == before


@pytest.mark.parametrize("words", [[], ["--help"], ["stat"], ["k8s", "job"], ["program", "list"]])
def test_where_none_is_named_all_are_there(words: list[str]) -> None:
    assert asked(app, words) is app
