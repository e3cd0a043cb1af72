"""The reference page, written from the commands themselves: ``python -m actors.cli.reference > docs/reference.md``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from actors.cli.options.options import ABOUT, flag_of, keys
from actors.cli.options.options import FILE as JOB_FILE

HEAD = """# Reference

Written by `python -m actors.cli.reference` from the commands themselves; a test holds it to them.

## Where an option comes from

1. the command line: `--max-cost 20`
2. a variable: `CORTEX_MAX_COST=20` (a list: separated by spaces)
3. a job file: `-f job.toml`, which says `max-cost = 20`
4. the default

The first that says anything wins. `cortex config JOB` shows what is in force, and where each value comes from. Options
that a command must be told (those of `cortex set`, and the model of `cortex retry`) come from the command line alone.

## The job file

TOML. Keys are the options without their dashes in front, with `-` or `_`; a list of NAME=VALUE may be a table. Paths
are relative to the file. What a command does not take is passed over, so that `batch`, `resume` and `status` share one
file; what no command takes is an error. No key, and no password in an address, may stand in it.

```toml
input = "tickets.jsonl"
output = "labels.jsonl"
job = "tickets"
model = "claude-haiku-4-5"
max-cost = 20
deadline = "+6h"
fallback = ["claude-sonnet-4-5"]

[role]
judge = "claude-opus-4-5"
```
"""


def page() -> str:
    """The whole page."""
    width, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        return "\n".join([HEAD, *_keys(), "", "## The commands", *_commands()]).rstrip() + "\n"
    finally:
        del os.environ["COLUMNS"]
        if width is not None:
            os.environ["COLUMNS"] = width


def _keys() -> Iterator[str]:
    yield "| key | value | variable | |"
    yield "|---|---|---|---|"
    for name, key in keys().items():
        variable = "" if name in ABOUT else f"`{_variable(name)}`"
        yield f"| `{key.name}` | {key.form} | {variable} | {_cell(key.told)} |"


def _variable(name: str) -> str:
    flag = flag_of(name).removeprefix("--").replace("-", "_").upper()
    return "CORTEX_DEBUG" if name == "verbose" else f"CORTEX_{flag}"


def walked() -> list[tuple[str, Any]]:
    """Every command, by its path, sorted."""
    from typer.main import get_command

    from actors.cli.app import app

    return sorted(_walked(get_command(app), "cortex"))


def _commands() -> Iterator[str]:
    for path, command in walked():
        yield f"\n### {path}\n"
        yield _sentence(command.help or "")
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        own: list[Any] = []
        shared: list[Any] = []
        known = {flag_of(name) for name in keys() if name not in ABOUT}
        for each in command.params:
            if each.param_type_name == "argument" or each.name in (JOB_FILE, "help"):
                continue
            (shared if set(each.opts) & known and each.envvar else own).append(each)
        yield f"\n`{' '.join([path, *map(_argument, arguments), *(['[OPTIONS]'] if own or shared else [])])}`\n"
        for each in arguments:
            yield f"- `{_argument(each)}`: {_sentence(each.help or '')}"
        for each in own:
            yield f"- `{_option(each)}`: {_sentence(each.help or '')}"
        if shared:
            yield f"- and {', '.join(f'`{max(each.opts, key=len)}`' for each in shared)}"


def _walked(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, each in command.commands.items():
        if not each.hidden:
            yield from _walked(each, f"{path} {name}")


def _argument(each: Any) -> str:
    name = str(each.metavar or each.name).upper()
    return name if each.required else f"[{name}]"


def _option(each: Any) -> str:
    flags = ", ".join(sorted(each.opts, key=len))
    return f"{flags} {each.metavar}" if each.metavar and not each.is_flag else flags


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _sentence(text).replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
