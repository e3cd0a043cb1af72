"""Tasks that nobody awaits: an error that ends one is logged, and its owner can act on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

_log = logging.getLogger("cortex.tasks")


def watched(
    work: Coroutine[Any, Any, None], of: str, died: Callable[[BaseException], object] | None = None
) -> asyncio.Task[None]:  # fmt: skip
    """Begin a task of the job or actor ``of``. If an error ends it, log that and call ``died`` with the error.

    asyncio logs such an error when the task is garbage, which one that its owner keeps for ``close`` never is. A
    cancellation that the owner asked for is no error; one that the task's own work raised is
    (docs.python.org/3/library/asyncio-task.html, ``Task.cancelling``).
    """
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(partial(_ended, f"{getattr(work, '__qualname__', 'a task')} of {of}", died))
    return task


def _ended(what: str, died: Callable[[BaseException], object] | None, task: asyncio.Task[None]) -> None:
    error: BaseException | None
    if task.cancelled():
        error = None if task.cancelling() else asyncio.CancelledError("raised by its own work")
    else:
        error = task.exception()
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]  # of a task group: the first error has ended the others
    if error is None:
        return
    _log.error("%s has ended by an error", what, exc_info=error)
    if died is not None:
        died(error)
