"""When K is written down: often enough to open a job quickly, not so often that a call costs more the more went before."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from actors import upkeep
from actors.outlet import Outlet
from actors.store_errors import Unreachable
from actors.upkeep import LAST_EVENTS, Upkeep
from cortex import journal, snapshots
from cortex.events import Turn
from cortex.goals import Goal, Status
from cortex.items import Item
from cortex.limits import Limits, Route, Terms
from cortex.programs.batch import Batch
from cortex.state import State


class Kept:
    """A journal that keeps snapshots alone, and their pieces."""

    epoch = 4

    def __init__(self) -> None:
        self.snapshots: list[tuple[int, int, bytes]] = []
        self.keeps: list[int] = []
        self.pieces: dict[int, bytes] = {}
        self.dropped: list[int] = []
        self.away = 0

    def snapshot(self, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        self.snapshots.append((seq, emitted, blob))
        self.keeps.append(keep)

    def piece(self, number: int, blob: bytes) -> None:
        if self.away == number:
            raise Unreachable("away")
        assert number not in self.pieces
        self.pieces[number] = blob

    def drop_pieces(self, first: int) -> None:
        self.dropped.append(first)

    def whole(self) -> bytes:
        """The last snapshot."""
        blob = self.snapshots[-1][2]
        parts = snapshots.split(blob)
        if parts is None:
            return blob
        assert parts.epoch == self.epoch
        return snapshots.joined(parts, [self.pieces[number] for number in range(parts.first, parts.last + 1)])

    def zero_what_goes(self) -> None: ...


def opened(snapshot_events: int = 100) -> State:
    limits, route = Limits(snapshot_events=snapshot_events), Route(endpoint="e", model="m")
    return journal.open_job(
        Terms(job="j", program="batch", params_json=b"{}", fingerprint="", limits=limits, route=route, streams=False)
    )


def looked(k: State, *, events: int, turns: int, grows: int = 0) -> list[int]:
    """After which turns K was written down."""
    source = Kept()
    look = Upkeep(source, k, lambda seq: None, Batch(), Outlet(0))  # type: ignore[arg-type]
    for seq in range(1, turns + 1):
        for _ in range(grows):
            k.goals[len(k.goals) + 1] = Goal("row")
        look.took(events, Turn(0.0, ()), k.outcome)
        look.look(k, seq)
    return [seq for seq, _, _ in source.snapshots]


def test_a_small_k_is_written_down_every_so_many_events() -> None:
    assert looked(opened(), events=25, turns=12) == [4, 8, 12]


def test_a_k_that_grows_is_written_down_when_it_has_grown_by_a_fifth() -> None:
    at = looked(opened(), events=100, turns=100, grows=100)
    assert at[:7] == [1, 2, 3, 4, 5, 6, 8] and at[-1] - at[-2] == 14 and len(at) < 24  # not 100
    assert sum(at) < 7 * 100  # each goal is written so often
    assert all(later - before <= 1 + before / 5 for before, later in pairwise(at))


@pytest.mark.parametrize(("keeps_text", "keep"), [(True, 2), (False, 0)])
def test_old_snapshots_go_unless_one_stands_in_for_turns_that_are_to_go(keeps_text: bool, keep: int) -> None:
    k, source = opened(10), Kept()
    k.terms = msgspec.structs.replace(k.terms, keeps_text=keeps_text)
    look = Upkeep(source, k, lambda seq: None, Batch(), Outlet(0))  # type: ignore[arg-type]
    for seq in range(1, 4):
        look.took(10, Turn(0.0, ()), "")
        look.look(k, seq)
    assert source.keeps == [keep] * 3


def test_a_job_that_has_ended_is_written_down_unless_little_came_since() -> None:
    for events, told in ((LAST_EVENTS - 1, []), (LAST_EVENTS, [1])):
        k = opened(50_000)
        k.outcome = "complete"
        assert looked(k, events=events, turns=1) == told


def test_a_k_too_large_for_a_value_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SNAPSHOT_BYTES_MAX", 10)
    assert looked(opened(), events=100, turns=3) == []


def test_a_snapshot_says_of_a_goal_what_is_not_usual_and_gives_the_same_back() -> None:
    goal = Goal("row", b"text", id=7, status=Status.RESOLVED, answer="yes", tries=1, row="7")
    k = opened()
    k.goals[7] = goal
    k.items[1] = Item("note", "text", id=1)
    blob = journal.encode_state(k)
    assert journal.decode_state(blob) == k and journal.encode_state(journal.decode_state(blob)) == blob
    assert len(blob) - len(journal.encode_state(opened())) < 150


class Ending:
    """A job whose rows end in their order, ten a turn of as many events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keeps_text: bool = True) -> None:
        monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 10)
        self.k, self.source, self.seq = opened(10), Kept(), 0
        self.k.terms = msgspec.structs.replace(self.k.terms, keeps_text=keeps_text)
        self.upkeep = Upkeep(self.source, self.k, lambda seq: None, Batch(), Outlet(0))  # type: ignore[arg-type]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            for _ in range(10):
                number = len(self.k.goals) + 1
                self.k.goals[number] = Goal("row", number, id=number, status=Status.RESOLVED)
            self.upkeep.took(10, Turn(0.0, ()), "")
            self.upkeep.look(self.k, self.seq)
            if self.source.snapshots and self.source.snapshots[-1][0] == self.seq:
                assert self.source.whole() == journal.encode_state(self.k)


def test_what_has_ended_is_written_once_and_a_k_of_it_as_often_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ending(monkeypatch)
    job.turns(12)
    assert [seq for seq, _, _ in job.source.snapshots] == [*range(1, 13)]
    assert len(job.source.pieces) == 12
    assert len(job.source.snapshots[-1][2]) == pytest.approx(len(job.source.snapshots[0][2]), abs=8)
    assert job.source.dropped == [1] * 11, "once both snapshots that are kept are of this life, others' pieces go"
    job.turns(100)
    assert 20 < len(job.source.snapshots) < 40, "a few bytes of each are written again"


def test_pieces_of_which_one_could_not_be_kept_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 100)
    monkeypatch.setattr(snapshots, "_TOGETHER", 2)
    job = Ending(monkeypatch)
    job.turns(1)
    count = len(job.source.pieces)
    job.source.away = count + 2
    job.turns(1)
    assert len(job.source.snapshots) == 1 and len(job.source.pieces) == count + 1
    job.source.away = 0
    job.turns(1)
    assert len(job.source.snapshots) == 2
    job.turns(2)
    assert job.source.dropped[-1] > count, "what the last two do not refer to goes"


def test_a_job_that_keeps_no_text_has_whole_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ending(monkeypatch, keeps_text=False)
    job.turns(3)
    assert (job.source.pieces, job.source.dropped) == ({}, [])
    assert job.source.snapshots[-1][2] == journal.encode_state(job.k)


def test_after_pieces_that_are_too_large_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "SNAPSHOT_BYTES_MAX", 10)
    job = Ending(monkeypatch)
    job.turns(2)
    assert (job.source.snapshots, job.source.pieces) == ([], {})
    monkeypatch.setattr(upkeep, "SNAPSHOT_BYTES_MAX", 1_000_000)
    job.turns(2)
    assert len(job.source.snapshots) == 2
