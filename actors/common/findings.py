"""Findings of the checks of ``cortex doctor``."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "warning", "wrong"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``do`` says what to do where something is the matter."""

    check: str
    state: State
    message: str = msgspec.field(name="said")  # the key of `cortex doctor --json`
    do: str = ""


def ok(check: str, said: str) -> Finding:
    """All is well."""
    return Finding(check=check, state="ok", message=said)


def warning(check: str, said: str, do: str) -> Finding:
    """It may do harm."""
    return Finding(check=check, state="warning", message=said, do=do)


def wrong(check: str, said: str, do: str) -> Finding:
    """A run would fail, or lose something."""
    return Finding(check=check, state="wrong", message=said, do=do)
