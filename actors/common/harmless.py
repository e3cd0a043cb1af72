"""Callbacks whose errors stop nothing: progress, log lines and whatever else is only shown."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def harmless(callback: Callable[[T], object], name: str) -> Callable[[T], None]:
    """Return a callback that never raises an ``Exception``. The first error is a ``RuntimeWarning`` that says ``name``.

    The process may turn warnings into errors, or have no stream to print them on: neither stops the caller.
    """
    told = False

    def call(value: T) -> None:
        nonlocal told
        try:
            callback(value)
        except Exception as error:
            if not told:
                told = True
                text = f"{name} raised {type(error).__name__}: {error}; the job goes on"
                with contextlib.suppress(Exception):
                    warnings.warn(text, RuntimeWarning, stacklevel=2)

    return call
