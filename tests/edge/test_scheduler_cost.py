"""What the cortex's step does for a call does not grow with the calls that are finished: counted, not timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from benchmarks.scheduler import Load
from cortex import health
from cortex.orders import Event


class Counted(Load):
    """Counts the lines of Python that run in ``step``."""

    lines = 0
    counting = False

    def tell(self, event: Event) -> None:
        if not self.counting:
            super().tell(event)
            return
        before = sys.gettrace()
        sys.settrace(self._seen)
        try:
            super().tell(event)
        finally:
            sys.settrace(before)

    def _seen(self, frame: FrameType, what: str, _: object) -> Any:
        self.lines += what == "line"
        return self._seen

    def lines_a_call(self, calls: int) -> float:
        self.lines, self.counting = 0, True
        self.lone(calls)
        self.counting = False
        return self.lines / calls

    def size(self) -> int:
        return len(msgspec.msgpack.encode(self.state))


def test_a_call_costs_the_same_after_ten_thousand_others() -> None:
    load = Counted(1, 1, 1, 0.02)
    load.lone(4_000)  # 80 s: the buffers are full
    early, size = load.lines_a_call(1_000), load.size()
    load.lone(10_000)
    assert load.lines_a_call(1_000) == pytest.approx(early, rel=0.02)
    assert load.size() < 2 * size  # buffers are cut in bulk, at twice their bound


def test_a_term_that_grows_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all that was ever heard, looked through each time."""
    finished: list[int] = []
    hear = health.hear

    def whole(buffer: health.Buffer, at_s: float, done: int) -> None:
        hear(buffer, at_s, done)
        finished.append(done)
        for _ in finished:
            pass

    monkeypatch.setattr(health, "hear", whole)
    load = Counted(1, 1, 1, 0.02)
    load.lone(100)
    early = load.lines_a_call(50)
    load.lone(400)
    assert load.lines_a_call(50) > 1.5 * early
