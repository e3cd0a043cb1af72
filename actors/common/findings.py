"""Findings of the checks of ``cortex doctor``."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "warning", "wrong"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a check, shown as one line. ``do``: what to do about a warning or an error."""

    check: str
    state: State
    message: str = msgspec.field(name="said")  # the key of `cortex doctor --json`
    do: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(check=check, state="ok", message=text)


def warning(check: str, text: str, do: str) -> Finding:
    """Return a finding about a possible problem."""
    return Finding(check=check, state="warning", message=text, do=do)


def wrong(check: str, text: str, do: str) -> Finding:
    """Return a finding about a problem that would make a run fail or lose data."""
    return Finding(check=check, state="wrong", message=text, do=do)
