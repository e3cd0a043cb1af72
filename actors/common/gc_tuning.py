"""Frequency of garbage collection: this project's records form no reference cycles, and the search costs a fifth."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_MAX = 50_000
"""Net allocations before the youngest generation is collected: Python's default of 700 is one turn of a channel."""


def seldom() -> None:
    """Collect garbage less often from now on: imports create many lasting objects, and collection at Python's default
    frequency takes a tenth of a command's start.

    For processes that this project owns; in a user's process the setting is the user's.
    """
    gc.set_threshold(YOUNG_MAX, 20, 20)


def never_at_the_end() -> None:
    """Skip garbage collection at the exit of the process, when its memory is freed as a whole.

    Python collects several times at exit, over all imported modules, which takes a third of a second and more with the
    SDK. Cleanup at exit is done by ``atexit`` or was done before; handlers registered later run before this one.
    """
    atexit.register(gc.freeze)


def settle() -> None:
    """Exempt all objects that are alive now from garbage collection, and collect the others less often (``seldom``)."""
    seldom()
    gc.freeze()


def settle_where_owned() -> None:
    """Exempt all objects that are alive now, in a process where ``seldom`` was called; do nothing in a user's process,
    where the garbage of that moment would stay to the end."""
    if gc.get_threshold()[0] == YOUNG_MAX:
        gc.freeze()


@contextmanager
def unwatched() -> Iterator[None]:
    """Return a context without garbage collection: for a replay, which makes many records and no cycles."""
    watched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if watched:
            gc.enable()
