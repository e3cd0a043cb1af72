"""What can go wrong, as the line that a user reads and the exit code that a script reads."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from actors.common.errors import USAGE, CommandError

if TYPE_CHECKING:
    from actors.providers.credentials.credential import Credential

COMPLETE = 0
FAILED = 1
PARTIAL = 3
INTERRUPTED = 130
TERMINATED = 143


class NobodyReads(Exception):
    """Whoever read what a command prints is gone. The parser would make an exit code of its own of Python's error."""


class Stopped(BaseException):
    """SIGINT or SIGTERM came while nothing was under way that had to be drained."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


_form = "text"


def speak(form: str) -> None:
    """From now on lines are ``json``, or text: as the user wants the logs."""
    global _form
    _form = form


def say(line: str, *, error: bool = False) -> None:
    """One line on standard error: for people, or an object like those of the logs. ``error``: it ends the command."""
    print(f"cortex: {line}" if _form != "json" else as_object(line, error=error), file=sys.stderr, flush=True)


def as_object(line: str, logger: str = "cortex.cli", *, error: bool = False) -> str:
    """A line for people as the logs would have it."""
    import logging

    from actors.observability.logs.formatting import line_of

    return line_of(line, logger, logging.ERROR if error else logging.INFO)


def told(error: BaseException) -> tuple[int, str] | None:
    """(exit code, line) for an error that is clear by itself; None for one that nobody expected."""
    from actors.common.errors import ClearError
    from actors.driver.driver import Broken, Lost
    from actors.files.errors import SinkClosed, SinkError, SinkFull, SourceError
    from actors.journal.journal import DiskFull, Fenced
    from actors.providers.credentials.credential import CredentialError

    if isinstance(error, CommandError):
        return error.code, str(error)
    if isinstance(error, (Broken, DiskFull, Fenced, Lost, SinkClosed, SinkFull)):
        return PARTIAL, str(error)
    if isinstance(error, (ClearError, CredentialError, SinkError, SourceError)):
        return USAGE, str(error)
    return None


def told_anyway(error: BaseException) -> str:
    """The line for an error that nobody expected; what looks like a key is taken out."""
    said = " ".join(str(error).split()) or "no more is known"
    return _redacted(
        f"unexpected {type(error).__name__}: {said} (a fault of cortex: -v or CORTEX_DEBUG=1 shows where)"
    )


def trace(error: BaseException) -> None:
    """Where an error came from, for whoever asked for it."""
    print(_redacted("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)


def _redacted(text: str) -> str:
    from actors.providers.credentials.credential import Credential

    for credential in _secrets or [Credential()]:
        text = credential.redactor()(text)
    return text


_secrets: list[Credential] = []


def never_show(credential: Credential) -> None:
    """The key of this run, which no error may show, and no log."""
    from actors.observability.logs.formatting import redaction

    _secrets.append(credential)
    redaction.know(credential)


def wants_trace(arguments: list[str]) -> bool:
    """Whether the user asked to see where errors come from."""
    asked = os.environ.get("CORTEX_DEBUG", "").lower() not in ("", "0", "false", "no", "off")
    return asked or "-v" in arguments or "--verbose" in arguments
