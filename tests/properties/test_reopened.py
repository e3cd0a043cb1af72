"""Whatever fails, and however often it is asked again, stopped and begun again: each row has one line in the end, and
whoever reads the journal, from wherever, reads the list that K says there is."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.history.result_history import lines
from actors.journal.journal import Journal
from actors.journal.sqlite.storage import FileStorage
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.values.limits import Limits
from tests.support.state_machine_harness import Stage, row

ROWS = 7
WINDOW = 3
KEYS = [f"r{place}" for place in range(ROWS)]


class Life:
    """One job with its journal on disk, fed and answered as the draws have it."""

    def __init__(self, ordered: bool, path: Path) -> None:
        limits = Limits(concurrency=WINDOW, window_rows=WINDOW)
        self.stage = Stage(Batch(ordered=ordered), limits, permits=WINDOW, streams=True)
        self.journal = Journal(FileStorage(path, create=True))
        self.journal.take_epoch(b"{}")
        self.reader = Journal(FileStorage(path))
        self.written = 0
        self.wanted = list(range(ROWS))
        self.base = 0
        self.again = False
        self.live = None
        self.live_edition = 0
        self.seen: list = []

    def turn(self, *happened: events.Event) -> None:
        if any(isinstance(event, events.RowsReopened) for event in happened):
            self.put_down()
            self.journal.will_reopen()
        self.stage.turn(*happened)
        self.put_down()

    def put_down(self) -> None:
        for turn in self.stage.turns[self.written :]:
            self.journal.append([codec.encode_turn(turn.at_s, map(codec.encode_batch, turn.batches))])
            k = self.stage.k
            if self.written % 5 == 4 and turn is self.stage.turns[-1]:
                self.journal.snapshot(self.journal.seq, k.emitted, codec.encode_state(k))
            self.written += 1

    def feed(self, most: int) -> None:
        k = self.stage.k
        some = self.wanted[k.position - self.base :][: min(most, k.rows_wanted())]
        if not some and not (k.position - self.base == len(self.wanted) and not k.source_ended):
            return
        end = k.position + len(some)
        given = [msgspec.structs.replace(row(KEYS[place]), place=place if self.again else -1) for place in some]
        self.turn(events.RowsRead(tuple(given), k.position, end, end - self.base == len(self.wanted)))

    def settle(self, draw: int, failing: bool) -> None:
        calls = list(self.stage.calls.values())
        if calls:
            call = calls[draw % len(calls)]
            self.turn(self.stage.broke(call, "refused") if failing else self.stage.answered(call))

    def reopen(self) -> None:
        k = self.stage.k
        if k.outcome not in ("complete", "partial") or not k.source_ended:
            return
        failed = [line for line in self.read() if line.row]
        if not failed:
            return
        places = sorted(KEYS.index(line.row) for line in failed)
        ordered = self.stage.program.ordered
        self.again, self.base, self.wanted = True, k.position, places
        self.turn(
            events.RowsReopened(
                "ann", k.edition + 1, tuple(line.row for line in failed), tuple(line.index for line in failed),
                {"refused": len(failed)}, k.position, ordered,
            ),
            events.Resumed("ann"),
        )  # fmt: skip

    def lines(self, index: int = 0):
        return lines(self.reader, lambda terms: self.stage.program, index)

    def read(self, index: int = 0) -> list:
        found = []
        for line in self.lines(index):
            if line is None:
                break
            found.append(line)
        return found

    def agree(self) -> None:
        read = self.read()
        assert [line.index for line in read] == list(range(self.stage.k.emitted))
        keys = [msgspec.json.decode(line.value)["custom_id"] for line in read]
        assert len(set(keys)) == len(keys)
        if self.stage.program.ordered and self.stage.k.outcome != "cancelled":
            assert keys == KEYS[: len(keys)]
        if self.live is None or self.live_edition != self.stage.k.edition:
            self.live, self.live_edition, self.seen = self.lines(), self.stage.k.edition, []
        while (line := next(self.live)) is not None:
            self.seen.append(line)
        assert self.seen == read, "who reads on sees what comes"
        half = len(read) // 2
        assert [line.value for line in self.read(half)] == [line.value for line in read[half:]]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["feed", "feed", "settle", "settle", "settle", "fail", "fail", "drain", "resume", "reopen"]),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=90,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.booleans(), st.booleans())
def test_each_row_has_one_line_in_the_end(steps, ordered, cancelled):
    with tempfile.TemporaryDirectory() as folder:
        life = Life(ordered, Path(folder) / "j.sqlite")
        try:
            for step, draw in steps:
                if step == "feed":
                    life.feed(1 + draw)
                elif step in ("settle", "fail"):
                    life.settle(draw, step == "fail")
                elif step == "reopen":
                    life.reopen()
                elif step == "drain":
                    life.turn(events.Stopped("ann", "drain"))
                else:
                    life.turn(events.Resumed("ann"), events.PermitsGranted(WINDOW))
                life.put_down()
                life.agree()
            if cancelled and life.stage.k.outcome != "complete":
                life.turn(events.Stopped("ann", "cancel"))
                life.stage.calls.clear()
                life.agree()
                return
            while life.stage.k.outcome != "complete" or any(line.row for line in life.read()):
                life.reopen()
                life.turn(events.Resumed("ann"), events.PermitsGranted(WINDOW))
                life.feed(WINDOW)
                life.settle(0, False)
                life.agree()
            assert sorted(msgspec.json.decode(line.value)["custom_id"] for line in life.read()) == KEYS
            assert life.stage.k.tally.succeeded == ROWS and life.stage.k.tally.failed == 0
        finally:
            life.journal.close()
            life.reader.close()
