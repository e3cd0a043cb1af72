"""Main function: from arguments to an exit code. Tracebacks are printed only with ``-v`` or ``CORTEX_DEBUG=1``."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from actors.cli.options import command_line
from actors.cli.options.errors import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    Interrupted,
    OutputClosed,
    error_line,
    print_error,
    trace,
    unexpected_error_line,
    wants_trace,
)
from actors.common.errors import USAGE

_LISTINGS = frozenset({"status", "jobs", "inspect", "export", "program"})
"""Commands that only print: a reader that stops early (``head``) has what it wanted, so the exit code is 0."""


def enter(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name and return its exit code. Call from the main thread (signal handlers)."""
    command_line.note(arguments)
    signal.signal(signal.SIGTERM, _stopped)
    signal.signal(signal.SIGINT, _stopped)
    try:
        return _ran(arguments)
    except Interrupted as stopped:
        print_error(f"{'interrupted' if stopped.code == INTERRUPTED else 'terminated'} before anything was sent")
        return stopped.code
    except (BrokenPipeError, OutputClosed):
        _nobody_reads()
        return COMPLETE if arguments[:1] and arguments[0] in _LISTINGS else FAILED
    except Exception as error:
        return _failed(error, wants_trace(arguments))


def _ran(arguments: list[str]) -> int:
    import typer
    from typer.main import get_command

    from actors.cli.app import app
    from actors.cli.options.environment_check import misspelt
    from actors.cli.options.help_layout import asked

    if text := misspelt(os.environ):
        print_error(text, error=True)
        return USAGE
    if arguments[:1] == ["run"] and "--help" in arguments[2:] and not arguments[1].startswith("-"):
        from actors.cli.run.start import program_help

        print(program_help(arguments[1]), flush=True)
        return 0
    command: Any = get_command(asked(app, arguments))
    try:
        code = command.main(args=arguments, prog_name="cortex", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _misused(error)
    except typer.Abort:
        return INTERRUPTED


def _misused(error: Any) -> int:
    """Report bad usage in the parser's own words, on one line, with the help command to run."""
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "cortex"
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)
    else:
        print_error(f"{text}: see `{path} --help`", error=True)
    return USAGE


def _failed(error: Exception, trace_wanted: bool) -> int:
    known = error_line(error)
    if trace_wanted:
        trace(error)
    print_error(known[1] if known else unexpected_error_line(error), error=True)
    return known[0] if known else FAILED


def _stopped(number: int, frame: object) -> None:
    raise Interrupted(INTERRUPTED if number == signal.SIGINT else TERMINATED)


def _nobody_reads() -> None:
    """Send further output to the null device, so that the interpreter ends without an error of a closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
