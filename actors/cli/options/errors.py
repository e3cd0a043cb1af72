"""Errors as the line that a user reads and the exit code that a script reads."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from actors.cli.options.exit_codes import COMPLETE as COMPLETE
from actors.cli.options.exit_codes import FAILED as FAILED
from actors.cli.options.exit_codes import HUNG_UP as HUNG_UP
from actors.cli.options.exit_codes import INTERRUPTED as INTERRUPTED
from actors.cli.options.exit_codes import PARTIAL as PARTIAL
from actors.cli.options.exit_codes import TERMINATED as TERMINATED
from actors.common.errors import USAGE, CommandError
from cortex.values.display import one_line

if TYPE_CHECKING:
    from actors.providers.credentials.credential import Credential


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP arrived while no work was in flight that had to be drained."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


_form = "text"


def speak(form: str) -> None:
    """Set the form of all further lines: ``json``, or text (default), as ``--log-format`` says."""
    global _form
    _form = form


def print_error(line: str, *, error: bool = False, level: int = 0) -> None:
    """Print one line on standard error: text, or a JSON object like those of the logs. ``error``: the line ends the
    command. ``level``: of the JSON object, a number of ``logging``; default ``error`` or ``info``. Control characters
    are escaped, and further lines indented."""
    line = one_line(line)
    text = f"cortex: {line}" if _form != "json" else as_object(line, error=error, level=level)
    print(text, file=sys.stderr, flush=True)


def print_data(text: str) -> None:
    """Print a text for another program on standard output, to the letter; control characters are escaped where it is a
    terminal."""
    getattr(sys.stdout, "write_data", sys.stdout.write)(text)
    sys.stdout.flush()


def as_object(line: str, logger: str = "cortex.cli", *, error: bool = False, level: int = 0) -> str:
    """Return a line as a JSON object in the form of the logs."""
    import logging

    from actors.observability.logs.formatting import line_of

    return line_of(line, logger, level or (logging.ERROR if error else logging.INFO))


def error_line(error: BaseException) -> tuple[int, str] | None:
    """Return (exit code, line) for an error whose text is written for users; None for an unexpected one."""
    from actors.common.errors import UserError
    from actors.driver.driver import ChannelLost, JournalUnwritable
    from actors.files.errors import SinkError, SinkFailed, SourceError
    from actors.files.local.os_errors import LIMITS, told
    from actors.journal.journal import DiskFull, Fenced
    from actors.providers.credentials.credential import CredentialError

    if isinstance(error, CommandError):
        return error.code, str(error)
    if isinstance(error, (JournalUnwritable, DiskFull, Fenced, ChannelLost, SinkFailed)):
        return PARTIAL, str(error)
    if isinstance(error, (UserError, CredentialError, SinkError, SourceError)):
        return USAGE, str(error)
    for each in _behind(error):
        if isinstance(each, OSError) and each.errno in LIMITS:
            return FAILED, f"{each.filename}: {told(each)}" if each.filename else told(each)
    return None


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those it came of, the latest first: without files, an event loop fails to begin, and then to
    close (``asyncio.Runner.close`` over uvloop's half-begun ``run_forever``)."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def unexpected_error_line(error: BaseException) -> str:
    """Return the line for an unexpected error, with anything that looks like a key removed."""
    text = " ".join(str(error).split()) or "no details"
    return _redacted(f"unexpected {type(error).__name__}: {text} (a fault of cortex: -v or CORTEX_DEBUG=1 shows where)")


def trace(error: BaseException) -> None:
    """Print the traceback of an error on standard error, with secrets removed."""
    print(_redacted("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)


def _redacted(text: str) -> str:
    from actors.providers.credentials.credential import Credential

    for credential in _secrets or [Credential()]:
        text = credential.redactor()(text)
    return text


_secrets: list[Credential] = []


def never_show(credential: Credential) -> None:
    """Redact a credential of this run from all errors and logs."""
    from actors.observability.logs.formatting import redaction

    _secrets.append(credential)
    redaction.know(credential)


def wants_trace(arguments: list[str]) -> bool:
    """Return whether the user asked for tracebacks: ``-v``, ``--verbose`` or ``CORTEX_DEBUG``."""
    asked = os.environ.get("CORTEX_DEBUG", "").lower() not in ("", "0", "false", "no", "off")
    return asked or "-v" in arguments or "--verbose" in arguments
