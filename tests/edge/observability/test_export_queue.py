"""The way out: bounded however long a collector is away, asleep while there is nothing, and a file that stays bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from actors.observability.base.conventions import SpanText
from actors.observability.traces import exporters
from actors.observability.traces.export_queue import SPAN_BYTES, EncodedSpans, ExportQueue
from actors.observability.traces.exporters import FileExporter, SpanBatch, traces_path
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.ports.telemetry import JobObservers
from cortex.state import commands
from tests.support.otlp_collector import Received
from tests.support.patience import PATIENCE_S


class Stuck:
    """Takes nothing until it is let."""

    name = "stuck"

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.seen = 0

    def export(self, batches: Sequence[SpanBatch]) -> str:
        self.began.set()
        self.go.wait(PATIENCE_S)
        self.seen += sum(len(batch.wire) for batch in batches)
        return ""

    def close(self) -> None: ...


def parcel(count: int = 10, done=lambda: None) -> EncodedSpans:
    return EncodedSpans("j", "f", count, [b"x" * SPAN_BYTES] * count, [], count * SPAN_BYTES, done)


def test_what_waits_is_bounded_and_nobody_waits_for_it():
    stuck, done = Stuck(), []
    box = ExportQueue(lambda: [stuck], batch_spans=50, queue_spans=100, delay_s=PATIENCE_S)
    taken = [box.put(parcel(done=lambda: done.append(1))) for _ in range(5)]
    assert stuck.began.wait(PATIENCE_S), "a batch is on its way, and no other one is taken before it has ended"
    taken += [box.put(parcel(done=lambda: done.append(1))) for _ in range(1_000)]
    assert stuck.seen == 0, "nobody has waited for it"
    assert sum(taken) == 15, "100 spans wait, and 50 are on their way"
    assert box.full and box.let_go == 10 * (1_005 - 15)
    assert not box.flush(0.05)
    stuck.go.set()
    assert box.flush(PATIENCE_S)
    assert stuck.seen == 10 * sum(taken) == 10 * len(done)
    box.close()


def test_a_request_that_outlives_the_close_adds_no_line_when_it_ends(caplog, monkeypatch):
    class Fails(Stuck):
        def export(self, batches: Sequence[SpanBatch]) -> str:
            super().export(batches)
            return "no"

    monkeypatch.setattr(ExportQueue, "flush", lambda self: False)
    stuck = Fails()
    box = ExportQueue(lambda: [stuck], batch_spans=10, queue_spans=100, delay_s=0.01)
    box.put(parcel(20))
    assert stuck.began.wait(PATIENCE_S)
    box.put(parcel())
    box.close()
    said = "10 spans were dropped; 20 spans may be lost: their request has not ended"
    assert [record.message for record in caplog.records] == [said]
    stuck.go.set()
    assert box._thread is not None
    box._thread.join(PATIENCE_S)
    assert box.let_go == 30 and len(caplog.records) == 1


def test_there_is_no_thread_before_there_is_something_and_it_sleeps_after():
    stuck = Stuck()
    stuck.go.set()
    box = ExportQueue(lambda: [stuck], batch_spans=50, queue_spans=100, delay_s=0.01)
    assert box._thread is None
    box.put(parcel())
    assert box.flush(PATIENCE_S)
    thread = box._thread
    assert thread is not None
    clock = time.pthread_getcpuclockid(thread.ident)

    def used_s() -> float:
        began_s = time.clock_gettime(clock)
        threading.Event().wait(0.3)
        return time.clock_gettime(clock) - began_s

    # Garbage of other tests may be collected in its last steps before it sleeps; one that polls works at any time.
    assert any(used_s() < 0.005 for _ in range(5))
    box.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def span(number: int) -> SpanText:
    return SpanText(1, number, 0, "x", 1, 1, 2, False, [("cortex.job.id", "j"), ("session.id", "j")], ())


def test_a_file_makes_room_for_another_and_a_torn_line_spoils_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(exporters, "FILE_BYTES_MAX", 5_000)
    encoder = OtlpEncoder([])
    files = FileExporter(encoder)
    path = traces_path(tmp_path, "j")
    for number in range(1, 100):
        assert files.export([SpanBatch("j", str(tmp_path), [], [encoder.json(span(number))])]) == ""
    kept = sorted(path.parent.iterdir())
    assert [one.name for one in kept] == ["j.1.jsonl", "j.jsonl"] or [one.name for one in kept] == ["j.1.jsonl"]
    assert all(one.stat().st_size < 6_000 and one.stat().st_mode & 0o777 == 0o600 for one in kept)
    path.write_bytes(path.read_bytes() + b'{"resourceSpans":[{"reso')
    files.export([SpanBatch("j", str(tmp_path), [], [encoder.json(span(200))])])
    last = path.read_bytes().splitlines()[-1]
    torn = tmp_path / "last.jsonl"
    torn.write_bytes(last)
    assert Received().read(torn).spans[0].span_id == (200).to_bytes(8, "big")


def test_a_folder_that_cannot_be_written_is_told_and_raises_nothing(tmp_path):
    (tmp_path / "traces").write_text("a file")
    assert FileExporter(OtlpEncoder([])).export([SpanBatch("j", str(tmp_path), [], [b"{}"])])


class Raises:
    def turn_timed(self, took): ...

    def turn(self, seq, turn, out, k):
        raise RuntimeError("oh")

    def close(self): ...


@pytest.mark.parametrize("count", [1, 2])
def test_whoever_raises_is_let_go_and_the_others_look_on(count):
    seen = []

    class Looks(Raises):
        def turn(self, seq, turn, out, k):
            seen.append(seq)

    watches = JobObservers([Raises() for _ in range(count)] + [Looks()])
    watches.turn(1, None, None, None)
    watches.turn(2, None, None, None)
    assert seen == [1, 2]


LAUNCH = commands.LaunchChildJob(1, 1, "p", b"{}", None, None)


@pytest.mark.parametrize(("names", "out"), [(False, []), (True, []), (False, [LAUNCH])])
def test_a_turn_is_seen_when_its_calls_are_on_their_way_and_before_that_only_where_they_carry_names(names, out):
    """Once either way, also where the one that names them is let go meanwhile."""
    seen = []

    class Looks(Raises):
        def turn(self, seq, turn, out, k):
            seen.append(seq)

    class Names(Raises):
        names_calls = names

        def begin(self, journal): ...
        def again(self, seq, turn, out, k): ...
        def kept(self, seq): ...
        def child_of(self, goal, attempt): ...
        def marked(self, calls): ...

    watches = JobObservers([Looks(), Names()])
    watches.before(None, 1, None, out, None)
    assert seen == ([1] if names or out else [])
    watches.after(None, 1, None, out, None)
    assert seen == [1]
