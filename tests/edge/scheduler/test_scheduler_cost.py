"""What the cortex's step does for a call grows neither with the calls that are finished nor with the nodes: counted, not
timed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest

from benchmarks.nodes.simulated_nodes import Spread
from benchmarks.scheduler import Load
from cortex.scheduler import autoscaling, health, supervision
from cortex.scheduler.protocol import ChannelJoined, Event, MemberReported, MembersChanged
from cortex.scheduler.state import SchedulerState


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
    hear = health.record_life

    def whole(buffer: health.HealthBuffer, at_s: float, done: int) -> None:
        hear(buffer, at_s, done)
        finished.append(done)
        for _ in finished:
            pass

    monkeypatch.setattr(health, "record_life", whole)
    load = Counted(1, 1, 1, 0.02)
    load.lone(100)
    early = load.lines_a_call(50)
    load.lone(400)
    assert load.lines_a_call(50) > 1.5 * early


class CountedSpread(Spread):
    """Counts the lines of Python that run in ``step`` for reports and claims."""

    lines = 0
    counting = False

    def tell(self, event: Event) -> None:
        if not self.counting or type(event) not in (MemberReported, ChannelJoined):
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


def _lines_a_message(nodes: int) -> float:
    load = CountedSpread(nodes)
    load.stretch(5.0)
    load.clear()
    load.counting = True
    load.stretch(2.0)
    return load.lines / (load.events[MemberReported] + load.events[ChannelJoined])


def test_a_report_costs_the_same_with_ten_times_as_many_nodes() -> None:
    few, many = _lines_a_message(20), _lines_a_message(200)
    assert many == pytest.approx(few, rel=0.1)


def test_a_look_at_all_nodes_with_each_report_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    hear = supervision.reported

    def all_of_them(state: SchedulerState, *more: Any) -> bool:
        for _ in state.nodes:
            pass
        return hear(state, *more)

    monkeypatch.setattr(supervision, "reported", all_of_them)
    assert _lines_a_message(200) > 1.5 * _lines_a_message(20)


def test_a_thousand_branches_that_come_to_life_are_told_of_a_few_times() -> None:
    assert 0 < Spread(300).out[MembersChanged] <= autoscaling.FEW
