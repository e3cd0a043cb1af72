"""Thread that lives as long as its process.

Linux ends the processes of a private Ray when the *thread* that started them ends (``PR_SET_PDEATHSIG`` in prctl(2)).
The thread of a job ends with the job, while another job of the same process may still use that Ray.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class PinnedThread:
    """Executor that runs functions one after the other in one thread, which ends with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in the thread. Return what it returns, or raise what it raises."""
        return await asyncio.wrap_future(self._begin(function))

    def _begin(self, function: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._stay, name=self._name, daemon=True)
                self._thread.start()
        future: Future[T] = Future()
        self._work.put((future, function))
        return future

    def _stay(self) -> None:
        while True:
            future, function = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
