"""Equality of values that were told with values that a program reads from the results, in the forms of docs/tables.md.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from typing import Any


def alike(found: Any, told: Any) -> bool:
    """Return whether a program found the value that was told.

    A text is found to the letter. Other values may be found as their text: of JSON, and of Parquet in CSV and JSON.
    """
    if told is None:
        return found is None or found == ""
    if isinstance(told, str):
        return type(found) is str and found == told
    if isinstance(told, float):
        return _float_alike(found, told)
    if isinstance(told, dt.datetime):
        return _moment(found) == told
    if isinstance(told, bytes):
        return found in (told, base64.b64encode(told).decode(), _text_of(told))
    if isinstance(told, list | dict):
        return _plain(found) == _plain(told)
    return bool(found == told) or found == json.dumps(told)


def _text_of(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _float_alike(found: Any, told: float) -> bool:
    try:
        number = float(found)
    except (TypeError, ValueError):
        return False
    if math.isnan(told):
        return math.isnan(number)
    return number == told and math.copysign(1, number) == math.copysign(1, told)


def _moment(found: Any) -> Any:
    if isinstance(found, str):
        found = dt.datetime.fromisoformat(found)
    return found.astimezone(dt.UTC) if isinstance(found, dt.datetime) else found


def _plain(value: Any) -> Any:
    """Return a nested value as JSON has it."""
    if isinstance(value, str):
        return json.loads(value)
    return json.loads(json.dumps(value.tolist() if hasattr(value, "tolist") else value))
