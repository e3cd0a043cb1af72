"""How often a process of ours looks for garbage in cycles: our own records make none, and looking costs a fifth."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_MAX = 50_000
"""Objects made, less those that went, before the young are looked at: Python's own 700 is one turn of a channel."""


def seldom() -> None:
    """Look for garbage more rarely from now on: imports make much that stays, and Python's own pace takes a tenth of a
    command's start. For processes that are ours alone; in a user's own, memory is the user's affair."""
    gc.set_threshold(YOUNG_MAX, 20, 20)


def never_at_the_end() -> None:
    """Look for none as the process ends, when its memory goes as a whole: Python does so several times, over all that
    was ever imported, which with the SDK takes a third of a second and more. What is to happen at the end is
    ``atexit``'s, or was closed before; this comes after all that is registered later."""
    atexit.register(gc.freeze)


def settle() -> None:
    """What is alive now lives as long as this process: look at it no more, and ``seldom`` at what is young."""
    seldom()
    gc.freeze()


@contextmanager
def unwatched() -> Iterator[None]:
    """Look for no garbage at all while the block runs: for a replay, which makes many records and no cycles."""
    watched = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if watched:
            gc.enable()
