"""Event loop whose clock jumps to the next timer: tests of minutes take no time, and use no real clock."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from actors.routing.model_factory import ModelMaker, make_model
from actors.runtime.inline import InlineRuntime

T = TypeVar("T")
P = ParamSpec("P")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop that never waits for a timer. ``jumps`` counts the jumps of the clock to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.at_s = 0.0
        self.jumps = 0

    def time(self) -> float:
        return self.at_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run the function at once: work in a thread takes no time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _run_once(self) -> None:
        timers = [timer for timer in self._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.jumps += 1
            self.at_s = max(self.at_s, min(timer.when() for timer in timers))
        super()._run_once()  # type: ignore[misc]


def virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on virtual time: whenever its process stands still, no timer is late and none comes too early."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        virtually(test(*args, **named))

    return run


class VirtualRuntime(InlineRuntime):
    """Inline runtime on the clock of its loop."""

    def __init__(self, models: ModelMaker = make_model, branches: int = 1) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(models, clock=lambda: 1_000_000.0 + loop.time(), branches=branches)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def steady_s(self) -> float:
        return asyncio.get_running_loop().time()

    def boot_id(self) -> str:
        return ""
