"""Values of rows that come from Python, as JSON has them: those of the standard library, numpy and pandas."""

from __future__ import annotations

import datetime
import os
from typing import Any

import msgspec


def json_value(value: Any) -> Any:
    """Return a value that msgspec encodes, for one that msgspec does not know. Raises ``TypeError`` for all others.

    Numbers, texts and times of numpy become those of Python; pandas' ``Timestamp`` and ``Timedelta`` become a datetime
    and a timedelta; ``NaT`` and ``NA`` become null; a path becomes its text.
    """
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    if isinstance(value, datetime.datetime):  # a subclass of it: msgspec takes the class alone
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta(seconds=value.total_seconds())
    if isinstance(value, (str, bool, int, float, bytes)):
        return _builtin(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # a scalar or an array of numpy
        return _of_numpy(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"values of type {type(value).__name__} are not known")


def _builtin(value: Any) -> Any:
    """Return the value as an instance of the built-in class that its own class derives from."""
    base = next(each for each in (str, bool, int, float, bytes) if isinstance(value, each))
    return base(value)


def _of_numpy(value: Any) -> Any:
    """Return a scalar or an array of numpy as values of Python. Times keep their digits: ``tolist`` counts
    nanoseconds."""
    if value.dtype.kind == "M":
        texts = value.astype(str).tolist()
        return None if texts == "NaT" else texts
    if value.dtype.kind == "m":
        return value.astype("timedelta64[us]").tolist()
    return value.tolist()


encode = msgspec.json.Encoder(enc_hook=json_value).encode
"""Encode one row as JSON. Raises ``TypeError`` or ``ValueError`` for a value that JSON cannot hold."""
