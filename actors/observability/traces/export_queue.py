"""Export queue of spans: bounded, with one thread a process, which sleeps while the queue is empty.

The thread only writes and sends. If the thread encoded spans, the event loop would wait for the thread after each of
its own system calls, until the interpreter switches back: 5 ms, whereas encoding a span takes 5 us.

The event loop never waits for the queue. While a collector is down the queue fills up, and new spans are dropped; this
is logged once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from actors.observability.traces.exporters import ExporterError, SpanBatch, SpanExporter

CLOSE_S = 3.0
"""Most seconds that the end of a process waits for queued spans."""
SPAN_BYTES = 600
"""Approximate size of a queued span. Limits in spans are applied as limits in bytes with this factor."""

_log = logging.getLogger("cortex.traces")


class EncodedSpans(NamedTuple):
    """Encoded spans of one turn of a job."""

    job: str
    folder: str
    spans: int
    wire: list[bytes]
    lines: list[bytes]
    size_bytes: int
    done: Callable[[], None]
    """Called when the spans are exported or dropped, and need not be exported again."""


class ExportQueue:
    """Queue and its exporting thread. ``make`` creates the exporters, in the thread, once there is something to
    export."""

    def __init__(
        self, make: Callable[[], list[SpanExporter]], *, batch_spans: int, queue_spans: int, delay_s: float
    ) -> None:
        self._make = make
        self._batch_spans, self._delay_s = batch_spans, delay_s
        self._size_max = queue_spans * SPAN_BYTES
        self._queue: deque[EncodedSpans] = deque()
        self._size = 0
        self._spans = 0
        self._sent_spans = 0
        """Spans of the request in flight."""
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._hurry = self._closing = self._closed = self._busy = False
        self._exporters: list[SpanExporter] | None = None
        self._down: dict[str, bool] = {}
        self.let_go = 0
        """Number of dropped spans: the queue was full, or an exporter did not accept them."""

    @property
    def full(self) -> bool:
        """Whether the queue has no room, so that encoding is a waste."""
        return self._size >= self._size_max

    def lose(self, count: int) -> None:
        """Count spans as dropped."""
        self.let_go += count

    def put(self, payload: EncodedSpans) -> bool:
        """Queue these spans. Returns at once; False if there is no room."""
        with self._change:
            if self._closing or self._size + payload.size_bytes > self._size_max:
                self.let_go += payload.spans
                return False
            self._queue.append(payload)
            self._size += payload.size_bytes
            self._spans += payload.spans
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cortex traces", daemon=True)
                self._thread.start()
            elif len(self._queue) == 1 or self._spans >= self._batch_spans:
                self._change.notify_all()
            return True

    def flush(self, within_s: float = CLOSE_S) -> bool:
        """Export the queued spans, within ``within_s`` seconds. Returns whether all are exported; afterwards the
        thread goes on."""
        until_s = time.monotonic() + within_s
        with self._change:
            if any(self._down.values()):
                return False  # an exporter is down: waiting would not help
            self._hurry = True
            self._change.notify_all()
            while self._queue or self._busy:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not self._change.wait(left_s):
                    return not (self._queue or self._busy)
            return True

    def close(self) -> None:
        """Flush, drop the rest, and end the thread. Called when the process ends."""
        self.flush()
        with self._change:
            self._closing = True
            self.let_go += self._spans
            self._queue.clear()
            self._spans = self._size = 0
            self._change.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(0.5)
        self._closed = True  # a later end of the request in flight is not logged
        if lost := self._lost():
            _log.warning("%s", lost)

    def _lost(self) -> str:
        """Return how many spans were dropped, and how many are in a request that has not ended; else empty."""
        dropped = f"{self.let_go} spans were dropped" if self.let_go else ""
        unknown = f"{self._sent_spans} spans may be lost: their request has not ended" if self._sent_spans else ""
        return "; ".join(filter(None, (dropped, unknown)))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._queue and not self._closing:
                    self._hurry = False
                    self._change.wait()
                if self._closing:
                    break
                until_s = time.monotonic() + self._delay_s
                while self._spans < self._batch_spans and not self._hurry and not self._closing:
                    left_s = until_s - time.monotonic()
                    if left_s <= 0:
                        break
                    self._change.wait(left_s)
                taken = self._taken()
                self._busy, self._sent_spans = True, sum(payload.spans for payload in taken)
            try:
                self._export(taken)
            except Exception:  # an error of an exporter must not end the thread
                _log.exception("spans could not be exported")
            with self._change:
                self._busy, self._sent_spans = False, 0
                self._change.notify_all()
        for exporter in self._exporters or ():
            exporter.close()

    def _taken(self) -> list[EncodedSpans]:
        taken: list[EncodedSpans] = []
        count = 0
        while self._queue and (not taken or count + self._queue[0].spans <= self._batch_spans):
            payload = self._queue.popleft()
            taken.append(payload)
            count += payload.spans
            self._size -= payload.size_bytes
        self._spans -= count
        return taken

    def _export(self, taken: list[EncodedSpans]) -> None:
        if self._exporters is None:
            try:
                self._exporters = self._make()
            except ExporterError as error:
                self._exporters = []
                _log.warning("traces are not exported: %s", error)
        if self._exporters:
            batches, count = _joined(taken), sum(payload.spans for payload in taken)
            for exporter in self._exporters:
                self._delivered(exporter, batches, count)
        for payload in taken:
            payload.done()

    def _delivered(self, exporter: SpanExporter, batches: list[SpanBatch], count: int) -> None:
        text = exporter.export(batches)
        was_down = self._down.get(exporter.name, False)
        self._down[exporter.name] = bool(text)
        if not text:
            if was_down and not self._closed:
                _log.warning("traces: %s accepts spans again; %d were dropped meanwhile", exporter.name, self.let_go)
            return
        self.let_go += count
        if not was_down and not self._closed:
            _log.warning(
                "traces: %s accepts no spans (%s); the job goes on; excess spans are dropped", exporter.name, text
            )


def _joined(taken: list[EncodedSpans]) -> list[SpanBatch]:
    """Return the batches with neighbours of one job merged: a batch is one line of a file."""
    joined: list[SpanBatch] = []
    for payload in taken:
        last = joined[-1] if joined else None
        if last is not None and (last.job, last.folder) == (payload.job, payload.folder):
            last.wire.extend(payload.wire)
            last.lines.extend(payload.lines)
        else:
            joined.append(SpanBatch(payload.job, payload.folder, list(payload.wire), list(payload.lines)))
    return joined
