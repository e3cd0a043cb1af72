"""Main function: from arguments to an exit code. Tracebacks are printed only with ``-v`` or ``CORTEX_DEBUG=1``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import lru_cache
from typing import Any

from actors.cli.options import command_line
from actors.cli.options.errors import (
    COMPLETE,
    FAILED,
    HUNG_UP,
    INTERRUPTED,
    TERMINATED,
    Interrupted,
    error_line,
    print_error,
    trace,
    unexpected_error_line,
    wants_trace,
)
from actors.cli.options.exit_codes import signals_taken
from actors.common.errors import USAGE
from actors.common.result_stream import OutputClosed, ResultStream
from actors.common.tolerant_stream import tolerant

_LISTINGS = frozenset({"status", "jobs", "inspect", "export", "program"})
"""Commands that end early where the reader of their output does: what is left would only be printed."""
_RUNNING = frozenset({"batch", "embed", "run", "resume", "attach", "retry"})
"""Commands whose answer is their result: a reader that leaves before it has the answer is a failure."""


def enter(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name and return its exit code. Call from the main thread (signal handlers).

    Within the call, standard error never raises, and standard output records what it cannot write.
    """
    command_line.note(arguments)
    for number in signals_taken():
        signal.signal(number, _stopped)
    before = sys.stdout, sys.stderr
    output = ResultStream(sys.stdout, stops=bool(_LISTINGS.intersection(arguments[:1])))
    sys.stdout, sys.stderr = output, tolerant(sys.stderr)
    try:
        return _told(_entered(arguments), output, arguments)
    finally:
        sys.stdout, sys.stderr = before


def _entered(arguments: list[str]) -> int:
    for each in arguments:
        if not each.isprintable() and any("\ud800" <= character <= "\udfff" for character in each):
            text = f"argument {each!r} holds bytes that are no {sys.getfilesystemencoding()}"
            print_error(f"{text}: write it in that encoding, or set PYTHONUTF8=1 for UTF-8", error=True)
            return USAGE
    try:
        return _ran(arguments)
    except Interrupted as stopped:
        print_error(f"{_ENDS[stopped.code]} before anything was sent")
        return stopped.code
    except OutputClosed:
        return COMPLETE
    except Exception as error:
        return _failed(error, wants_trace(arguments))


def _told(code: int, output: ResultStream, arguments: list[str]) -> int:
    """Return the exit code of a command, given what became of its output. Print one line if that was lost."""
    with contextlib.suppress(OutputClosed):
        output.flush()
    waits = bool(_RUNNING.intersection(arguments[:1])) or arguments[:2] == ["program", "run"]
    if not output.failure or (output.gone and not waits):
        return code
    print_error(f"standard output {output.failure}", error=True)
    return code or FAILED


def _ran(arguments: list[str]) -> int:
    import typer

    from actors.cli.options.environment_check import misspelt

    if text := misspelt(os.environ):
        print_error(text, error=True)
        return USAGE
    if arguments[:1] == ["run"] and "--help" in arguments[2:] and not arguments[1].startswith("-"):
        from actors.cli.run.start import program_help

        print(program_help(arguments[1]), flush=True)
        return 0
    try:
        code = _parser("".join(arguments[:1])).main(args=arguments, prog_name="cortex", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        return _misused(error)
    except typer.Abort:
        return INTERRUPTED


@lru_cache(maxsize=64)
def _parser(name: str) -> Any:
    """Return the parser of a command, or of all commands where the name is none. Built once in a process, since a test
    enters many commands in one."""
    from typer.main import get_command

    from actors.cli.app import app
    from actors.cli.options.help_layout import reduced

    return get_command(reduced(app, name))


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


_ENDS = {INTERRUPTED: "interrupted", TERMINATED: "terminated", HUNG_UP: "hung up"}


def _stopped(number: int, frame: object) -> None:
    if 128 + number == HUNG_UP:
        signal.signal(number, signal.SIG_IGN)  # a lost terminal sends two
    raise Interrupted(128 + number)
