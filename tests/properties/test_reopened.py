"""Failed rows that are asked again, stopped and continued in any order: each row has one line in the end, a job that
rests lists and counts the best outcome of each row that was ever known, and all readers of the journal read the list
that K counts."""

from __future__ import annotations

import tempfile
from collections import Counter
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
from policies.failures.failure import outweighs
from tests.support.state_machine_harness import Stage, row

ROWS = 7
WINDOW = 3
KEYS = [f"r{place}" for place in range(ROWS)]
KINDS = ("cut", "refused", "rejected")
"""Failures of three different worths."""


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
        self.again = 0
        self.best: dict[str, str] = {}
        """Best outcome of each row so far."""
        self.live = None
        self.live_list: object = None
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
        first = k.position - self.base
        given = [
            msgspec.structs.replace(row(KEYS[place]), place=place if first + at < self.again else -1)
            for at, place in enumerate(some)
        ]
        self.turn(events.RowsRead(tuple(given), k.position, end, end - self.base == len(self.wanted)))

    def settle(self, draw: int, failing: bool) -> None:
        calls = [call for call in self.stage.calls.values() if call.goal in self.stage.k.goals]
        if calls:
            call, kind = calls[draw % len(calls)], KINDS[draw % 3] if failing else "succeeded"
            self.turn(self.stage.broke(call, kind) if failing else self.stage.answered(call))
            before = self.best.get(call.sample, "")
            ended = call.goal not in self.stage.k.goals
            if ended and (kind == "succeeded" or not before or not outweighs(before, kind)):
                self.best[call.sample] = kind

    def reopen(self, draw: int) -> None:
        """Ask failed rows again; by the draw those of one kind, of which the rest of the input may follow."""
        k = self.stage.k
        if k.outcome not in ("complete", "partial"):
            return
        failed = [line for line in self.read() if line.row and (draw > 2 or line.kind == KINDS[draw])]
        if not failed:
            return
        counts = dict(Counter(line.kind for line in failed))
        unread = [] if k.source_ended else [place for place, key in enumerate(KEYS) if place >= k.tally.rows_read]
        places = sorted(KEYS.index(line.row) for line in failed)
        ordered = self.stage.program.ordered
        self.base, self.wanted, self.again = k.position, places + unread, len(places)
        self.turn(
            events.RowsReopened(
                "ann", k.edition + 1, tuple(line.row for line in failed), tuple(line.index for line in failed),
                counts, k.position, ordered, kind_of=tuple([*counts].index(line.kind) for line in failed),
            ),
            events.Resumed("ann"),
        )  # fmt: skip

    def lines(self, index: int = 0, at_rest: bool = False):
        return lines(self.reader, lambda terms: self.stage.program, index, at_rest)

    def read(self, index: int = 0, at_rest: bool = False) -> list:
        found = []
        for line in self.lines(index, at_rest):
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
        self.agree_on_outcomes(read)
        version = self.stage.k.edition, self.stage.k.restored is None
        if self.live is None or self.live_list != version:
            self.live, self.live_list, self.seen = self.lines(), version, []
        while (line := next(self.live)) is not None:
            self.seen.append(line)
        assert self.seen == read, "who reads on sees what comes"
        half = len(read) // 2
        assert [line.value for line in self.read(half)] == [line.value for line in read[half:]]


    def agree_on_outcomes(self, read: list) -> None:
        k = self.stage.k
        known = {key: self.best[key] for key in KEYS if key in self.best}
        listed = known
        if self.stage.program.ordered and k.outcome != "cancelled":
            prefix = next((place for place, key in enumerate(KEYS) if key not in known), ROWS)
            listed = {key: known[key] for key in KEYS[:prefix]}
        assert outcomes(self.read(at_rest=True)) == listed
        if not k.outcome:
            return
        assert outcomes(read) == listed, "a job at rest lists the best outcome of each row"
        failed = Counter(kind for kind in known.values() if kind not in ("succeeded", "cancelled"))
        assert {kind: n for kind, n in k.tally.failed_for_good.items() if kind != "cancelled"} == failed
        assert k.tally.succeeded == sum(kind == "succeeded" for kind in known.values())


def outcomes(read: list) -> dict[str, str]:
    """Outcome of each row in a list of results."""
    return {msgspec.json.decode(line.value)["custom_id"]: str(line.kind) or "succeeded" for line in read}


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
                    life.reopen(draw)
                elif step == "drain":
                    life.turn(events.Stopped("ann", "drain"))
                else:
                    life.turn(events.Resumed("ann"), events.PermitsGranted(WINDOW))
                life.put_down()
                life.agree()
            if cancelled and life.stage.k.outcome != "complete":
                for goal in life.stage.k.goals.values():
                    life.best.setdefault(goal.row, "cancelled")
                life.turn(events.Stopped("ann", "cancel"))
                life.stage.calls.clear()
                life.agree()
                return
            while life.stage.k.outcome != "complete" or any(line.row for line in life.read()):
                life.reopen(3)
                life.turn(events.Resumed("ann"), events.PermitsGranted(WINDOW))
                life.feed(WINDOW)
                life.settle(0, False)
                life.agree()
            assert sorted(msgspec.json.decode(line.value)["custom_id"] for line in life.read()) == KEYS
            assert life.stage.k.tally.succeeded == ROWS and life.stage.k.tally.failed == 0
        finally:
            life.journal.close()
            life.reader.close()
