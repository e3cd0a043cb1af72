"""Exit codes of all commands and the signals that a command takes: the tables behind ``cortex --help`` and the page
``docs/reference.md``.
"""

from __future__ import annotations

import signal
from typing import Final

import msgspec

from actors.common.errors import USAGE

COMPLETE: Final = 0
FAILED: Final = 1
PARTIAL: Final = 3
HUNG_UP: Final = 129
INTERRUPTED: Final = 130
TERMINATED: Final = 143


class ExitCode(msgspec.Struct, frozen=True):
    """Exit code: its number, its meaning in a few words, when it is given, and whether a scheduler repeats the
    command."""

    code: int
    meaning: str
    when: str
    repeat: str


EXIT_CODES: Final = (
    ExitCode(COMPLETE, "complete", "all rows succeeded, or as many as `--accept-failed` asks for", "no"),
    ExitCode(
        FAILED, "failed, or a row failed",
        "the job failed for good or was cancelled; it is complete with failed rows; a check of `doctor`, `verify`, "
        "`diff` or `plan` found something; a fault of Cortex", "no: `cortex retry JOB` asks failed rows again",
    ),
    ExitCode(
        USAGE, "bad usage, or rows refused before sending",
        "nothing was sent because an option, a file or an address is wrong; or rows were refused before sending", "no",
    ),
    ExitCode(
        PARTIAL,
        "partial: resumable (cap, deadline, blocked account, drain, lost head, full disk, database away), or records "
        "of the input were unreadable",
        "the job can go on: the last line gives the command; or records of the input were unreadable",
        "yes, with `cortex resume JOB`, once the reason is gone",
    ),
    ExitCode(HUNG_UP, "hung up", "SIGHUP: drained, resumable", "yes"),
    ExitCode(INTERRUPTED, "interrupted", "SIGINT (Ctrl-C): drained or stopped, resumable", "yes"),
    ExitCode(TERMINATED, "terminated", "SIGTERM: drained or stopped, resumable", "yes"),
)  # fmt: skip
"""Every exit code of a command. The codes of signals are 128 and the signal's number, as shells write them (POSIX,
2.8.2 *Exit Status for Commands*)."""


class SignalRule(msgspec.Struct, frozen=True):
    """Reaction to a signal: the exit code, what the first one does, and what a further one does."""

    name: str
    code: int
    first: str
    further: str


SIGNAL_RULES: Final = (
    SignalRule("SIGINT", INTERRUPTED, "drains: calls in flight are finished, and nothing new is sent",
               "stops at once; a third one ends the process"),
    SignalRule("SIGTERM", TERMINATED, "drains", "stops at once; a third one ends the process"),
    SignalRule("SIGHUP", HUNG_UP, "drains; under `nohup` nothing", "nothing: the draining goes on"),
)  # fmt: skip
"""Signals that a running job takes. SIGHUP comes twice when a terminal is lost: the shell resends it to its jobs
(bash(1), *Signals*), and the kernel sends it when the session leader has ended (setpgid(2), credentials(7)); so a
further one is no order to hurry."""


def signals_taken() -> dict[int, int]:
    """Return the exit code of each signal that this process takes.

    SIGHUP is left out where the system has none and where the parent has it ignored, as nohup(1) does.
    """
    found = {}
    for rule in SIGNAL_RULES:
        number = getattr(signal, rule.name, None)
        ignored = number is not None and rule.code == HUNG_UP and signal.getsignal(number) is signal.SIG_IGN
        if number is not None and not ignored:
            found[number] = rule.code
    return found


def epilog() -> str:
    """Return the last lines of ``cortex --help``."""
    return f"Exit codes: {'; '.join(f'{each.code} {each.meaning}' for each in EXIT_CODES)}."


def section() -> str:
    """Return the section of the reference page about exit codes and signals."""
    codes = [f"| {each.code} | {each.meaning} | {each.when} | {each.repeat} |" for each in EXIT_CODES]
    rules = [f"| {each.name} | {each.first} | {each.further} | {each.code} |" for each in SIGNAL_RULES]
    return "\n".join(
        (
            "## Exit codes and signals", "",
            "Every command ends with one of these codes. Code 3 and the codes of signals mean that nothing is lost and "
            "that the job can go on; a scheduler that repeats commands should repeat these.", "",
            "| code | meaning | given when | repeat |", "|---|---|---|---|", *codes, "",
            "While a job runs, its command takes these signals. `kill -9` needs no preparation: the same command, or "
            "`cortex resume JOB`, continues the job and pays again at most the calls that were in flight.", "",
            "| signal | the first one | a further one | exit code |", "|---|---|---|---|", *rules, "",
        )
    )  # fmt: skip
