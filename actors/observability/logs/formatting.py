"""Log records as lines: text for a terminal, one JSON object a line elsewhere.

A record has a fixed message and fields: job, goal, call, kind, node, epoch. Records hold no prompt, no reply and no
key: the text of a provider, a program or an exception is never logged, at any level; of an exception its type and its
place in the code are. Other loggers than ``cortex`` are written from ``warning`` on.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TextIO

import msgspec

from actors.common.errors import UserError
from actors.providers.credentials.credential import Credential
from cortex.values.display import printable

OURS: Final = "cortex"
LEVELS: Final = ("debug", "info", "warning", "error")
FORMS: Final = ("text", "json")
FIELDS: Final = "fields"
"""Attribute of a log record that holds its fields."""
_MARK: Final = "cortex_handler"


class LogSettingsError(UserError):
    """Unknown log format or log level."""


class SecretRedaction:
    """Redactor of lines: replaces the known credentials, and every text that looks like a key."""

    def __init__(self) -> None:
        self._each: list[Callable[[str], str]] = [Credential().redactor()]

    def know(self, credential: Credential) -> None:
        """Redact this credential, too."""
        self._each.append(credential.redactor())

    def __call__(self, line: str) -> str:
        for redact in self._each:
            line = redact(line)
        return line


redaction = SecretRedaction()
"""Redactor of this process."""
logging.getLogger(OURS).addHandler(logging.NullHandler())  # used as a library, Cortex leaves logging to the program


def log_arguments(message: str, **fields: Any) -> dict[str, Any]:
    """Return the arguments of a logging call: ``_log.info(**log_arguments("the job ended", job=job))``. Fields that
    are empty or None are left out."""
    return {"msg": message, "extra": {FIELDS: {name: each for name, each in fields.items() if each not in ("", None)}}}


_envelope: dict[str, str] = {}


def envelope() -> Mapping[str, str]:
    """Return the fields of every line of this process: the job of a command; name and node of an actor."""
    return _envelope


class LogFormatter(logging.Formatter):
    """Formatter of records in ``form``, ``text`` or ``json``. A line of JSON has the fields of ``envelope``, too."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one redacted line."""
        found = facts(record, _envelope if self.form == "json" else {})
        if self.form == "json":
            return redaction(msgspec.json.encode(found, enc_hook=str).decode())
        return redaction(text_of(found))


def text_of(found: Mapping[str, Any]) -> str:
    """Return the fields of a record as one line of text."""
    head = [str(found[name]) for name in ("time", "level", "message") if name in found]
    named = " ".join(
        f"{name}={value}" for name, value in found.items() if name not in ("time", "level", "logger", "message")
    )
    return printable(" ".join(" ".join([*head, f"({named})" if named else ""]).split()))


def line_of(message: str, logger: str, level: int = logging.INFO, **fields: Any) -> str:
    """Return a message as one JSON log line, in the envelope of this process."""
    record = logging.LogRecord(logger, level, "", 0, "%s", (message,), None)
    setattr(record, FIELDS, fields)
    return LogFormatter("json").format(record)


def facts(record: logging.LogRecord, always: Mapping[str, str]) -> dict[str, Any]:
    """Return a record as fields. An exception is given by its type and its innermost frames, at most 8."""
    at = datetime.fromtimestamp(record.created, UTC)
    found: dict[str, Any] = {
        "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "level": record.levelname.lower(),
        "logger": record.name, "message": record.getMessage(), **always, **getattr(record, FIELDS, {}),
    }  # fmt: skip
    if record.exc_info and record.exc_info[0] is not None:
        found["exception"] = record.exc_info[0].__name__
        frames = traceback.extract_tb(record.exc_info[2])
        found["at"] = " < ".join(f"{frame.name} {frame.filename}:{frame.lineno}" for frame in reversed(frames[-8:]))
    return found


def checked(form: str, level: str, terminal: bool) -> tuple[str, int]:
    """Return the log format and the number of the log level.

    Defaults: format ``text`` on a terminal, else ``json``; level ``info`` for ``json``, ``warning`` for ``text``.
    Raises ``LogSettingsError``.
    """
    if form and form not in FORMS:
        raise LogSettingsError(f"--log-format {form}: give {' or '.join(FORMS)}")
    if level and level.lower() not in LEVELS:
        raise LogSettingsError(f"--log-level {level}: give {', '.join(LEVELS)}")
    level = level.lower() or ("info" if form == "json" else "warning")
    return form or ("text" if terminal else "json"), logging.getLevelNamesMapping()[level.upper()]


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to the current ``sys.stderr``: a live progress bar replaces it, and shows lines above
    itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def begin(form: str, level: str, always: Mapping[str, str] | None = None, stream: TextIO | None = None) -> None:
    """Set up logging of this process. Called by the command line and by actors' processes alone: a program that uses
    Cortex as a library sets up its own logging. Raises ``LogSettingsError``.

    ``always``: fields of every line of JSON (``envelope``). Lines of text at the default level leave out records of
    ``TOLD`` events; lines of JSON where no form was asked for leave out those of ``COUNTED``.
    """
    asked, asked_form = level, form
    form, number = checked(form, level, (stream or sys.stderr).isatty())
    _envelope.clear()
    _envelope.update(always or {})
    handler = logging.StreamHandler(stream) if stream is not None else _StderrHandler()
    handler.setFormatter(LogFormatter(form))
    handler.setLevel(number)
    if not asked and (form == "text" or not asked_form):
        handler.addFilter(partial(_is_of_others, TOLD if form == "text" else COUNTED))
    setattr(handler, _MARK, True)
    others, ours = logging.getLogger(), logging.getLogger(OURS)
    for logger in (others, ours):
        for old in [each for each in logger.handlers if hasattr(each, _MARK)]:
            logger.removeHandler(old)
        logger.addHandler(handler)
    ours.setLevel(number)
    ours.propagate = False
    if others.level < logging.WARNING:
        others.setLevel(logging.WARNING)


TOLD: Final = frozenset({"job.blocked", "job.broken", "job.ended", "job.rows_failing"})
"""Events that the command which runs the job tells in words of its own."""
COUNTED: Final = frozenset({"job.rows_failing"})
"""Events that its progress and its last lines, which are text unless JSON was asked for, count."""


def _is_of_others(events: frozenset[str], record: logging.LogRecord) -> bool:
    return getattr(record, FIELDS, {}).get("event") not in events


def form_here() -> str:
    """Return the format in which this process writes its logs; empty if ``begin`` was not called."""
    for handler in logging.getLogger(OURS).handlers:
        if hasattr(handler, _MARK) and isinstance(handler.formatter, LogFormatter):
            return handler.formatter.form
    return ""


def begin_of_actor(name: str, node: str, environ: Mapping[str, str]) -> None:
    """Set up logging of an actor's process: JSON, from ``info`` on, unless ``CORTEX_LOG_FORMAT`` and
    ``CORTEX_LOG_LEVEL`` give valid values."""
    try:
        begin(environ.get("CORTEX_LOG_FORMAT") or "json", environ.get("CORTEX_LOG_LEVEL") or "info",
              {"actor": name, "node": node})  # fmt: skip
    except LogSettingsError:
        begin("json", "info", {"actor": name, "node": node})
