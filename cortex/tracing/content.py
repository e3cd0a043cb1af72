"""Texts that spans hold where capturing is allowed: values of programs as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


def as_json(value: Any) -> bytes:
    """Return a value as JSON; empty if there is none, or if it has no JSON form: a span is no reason to fail."""
    if value is None:
        return b""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return b""
