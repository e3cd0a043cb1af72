"""Registrations of ``actors.cli.app`` for modules below it, which may not import it: the app, and runs elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from typer.main import get_command

_registered: dict[str, Any] = {}


class RunElsewhere(Protocol):
    """Runs a command on the head of a cluster."""

    def __call__(self, command: str, given: Mapping[str, Any], options: Any) -> int | None:
        """Return the exit code; None where the command is to run here."""


def register(app: Any, run_elsewhere: RunElsewhere) -> None:
    """Register the Typer app and the runner of commands on other machines. Called once, by ``actors.cli.app``."""
    _registered.update(app=app, run_elsewhere=run_elsewhere)


def parser_of(command: str) -> Any:
    """Return the click command that parses the arguments of ``command``. Raises ``KeyError`` for an unknown name."""
    return get_command(_registered["app"]).commands[command]  # type: ignore[attr-defined]


def run_elsewhere(command: str, given: Mapping[str, Any], options: Any) -> int | None:
    """Run a command on the head of a cluster, if its options name one; None where it is to run here."""
    runner: RunElsewhere = _registered["run_elsewhere"]
    return runner(command, given, options)
