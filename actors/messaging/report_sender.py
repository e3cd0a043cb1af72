"""Numbered reports of a branch or worker to the cortex, each repeated until it is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from actors.ports.runtime import Runtime
from cortex.scheduler.reports import ProgressReport, ReportAnswer

REPORT_S = 0.25
"""Seconds between two reports, until the cortex sets another interval."""
URGENT_S = 0.02
"""Seconds between two reports at least, however urgent."""
AGAIN_S = 1.0
"""Seconds before an unacknowledged report is sent again."""

_encoder = msgspec.msgpack.Encoder()
_answer_decoder = msgspec.msgpack.Decoder(ReportAnswer)


class ReportSender:
    """Sender of reports.

    ``made`` returns the report of a number; ``more`` returns whether there is anything to report after it. While
    nothing happens nothing is sent: the last report says that its sender is idle. ``heard`` takes each answer.
    """

    def __init__(
        self, runtime: Runtime, made: Callable[[int], ProgressReport], more: Callable[[], bool],
        heard: Callable[[ReportAnswer], None] = lambda answer: None,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._cortex = runtime.peer("cortex")
        self._made = made
        self._more = more
        self._heard = heard
        self._number = 0
        self._wanted_s = REPORT_S
        self._reported_s = float("-inf")
        self._urgent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Send a report soon."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())

    def at_once(self) -> None:
        """Send an urgent report."""
        self._urgent.set()
        self.wake()

    async def close(self) -> None:
        """Stop sending."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _send(self) -> None:
        while True:
            await self._pause()
            self._urgent.clear()
            self._number += 1
            self._reported_s = self._runtime.monotonic_s()
            blob = _encoder.encode(self._made(self._number))
            while not await self._acknowledged(blob):  # noqa: ASYNC110 - nobody says when a cortex is back
                await asyncio.sleep(AGAIN_S)
            if not self._more():
                return

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._wanted_s):  # in 3.11 wait_for may swallow a cancellation
                await self._urgent.wait()
        except TimeoutError:
            return
        early_s = self._reported_s + URGENT_S - self._runtime.monotonic_s()
        if early_s > 0:
            await asyncio.sleep(early_s)

    async def _acknowledged(self, blob: bytes) -> bool:
        try:
            answer = _answer_decoder.decode(await self._cortex.ask("report", blob))
        except Exception:  # unreachable, gone or restarting: the next cortex shall have the report
            return False
        self._wanted_s = max(URGENT_S, answer.after_s)
        self._heard(answer)
        return True
