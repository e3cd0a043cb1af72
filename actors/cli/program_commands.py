"""Commands of ``cortex program`` about programs that a model wrote, and their arguments."""

from __future__ import annotations

from typing import Annotated

import typer

from actors.cli.options.options import LOOKING, RUNNING, Options, takes

_NOTHING: list[str] = []
Params = Annotated[
    list[str], typer.Option("--param", "-p", help="parameter context, question or calls", metavar="NAME=VALUE")
]
Name = Annotated[str, typer.Argument(help="NAME, NAME@VERSION or the file")]
Folder = Annotated[str, typer.Option("--folder", help="folder of saved programs", metavar="FOLDER")]


@takes(*LOOKING)
def save(
    job: Annotated[str, typer.Argument(help="the rlm job whose program worked")],
    options: Options,
    name: Annotated[str, typer.Option("--as", help="name of the saved program", metavar="NAME")],
    folder: Folder = "programs",
) -> int:
    """Save a program that a model wrote: its code, origin and cost, with its calls as its tests."""
    from actors.cli.programs.saved import save as keep

    return keep(job, name, folder, options)


@takes(*LOOKING)
def show(name: Name, options: Options, folder: Folder = "programs") -> int:
    """Show a saved program."""
    from actors.cli.programs.saved import show as put

    return put(name, folder, options)


@takes(*LOOKING)
def test(name: Name, options: Options, folder: Folder = "programs") -> int:
    """Run a saved program with its recorded calls and compare the answers. Asks no model."""
    from actors.cli.programs.saved import test as check

    return check(name, folder, options)


@takes(*LOOKING)
def approve(name: Name, options: Options, folder: Folder = "programs") -> int:
    """Allow a saved program to run, in its present version. A changed program needs a new approval."""
    from actors.cli.programs.saved import approve as let

    return let(name, folder, options)


@takes(*RUNNING)
def run(
    name: Name,
    options: Options,
    inputs: Annotated[list[str], typer.Argument(help="folders or text files")] = _NOTHING,
    param: Params = _NOTHING,
    folder: Folder = "programs",
) -> int:
    """Run a saved, approved program on new input; equal to `cortex run FOLDER/NAME.toml`."""
    from actors.cli.run.start import run as begin
    from actors.programs.saved import SUFFIX, place_of

    plain, at, version = name.partition("@")
    where = plain if plain.endswith(SUFFIX) else str(place_of(plain, folder))
    return begin(where + at + version, list(inputs or ()), "", list(param or ()), options)


COMMANDS = {"save": save, "show": show, "test": test, "approve": approve, "run": run}
