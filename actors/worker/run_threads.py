"""Threads of a worker: one for each tool run, made when the run begins."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class RunThreads(Executor):
    """Executor that begins each call at once, in a thread of its own, and keeps no queue.

    The worker bounds how many there are. They are daemon threads: a process does not wait at its end for a tool that
    does not return, as it would for those of ``concurrent.futures.ThreadPoolExecutor``, which joins them at exit
    (docs.python.org/3/library/concurrent.futures.html, ThreadPoolExecutor).
    """

    def submit(self, call: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Begin a call. Raises ``RuntimeError`` if the system gives no further thread."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = context.run(call, *args, **named)
            except BaseException as error:  # SystemExit of an author's tool, too, is an outcome of its run
                future.set_exception(error)
            else:
                future.set_result(value)

        threading.Thread(target=run, name="cortex-tool", daemon=True).start()
        return future
