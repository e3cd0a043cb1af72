"""When K is written down: often enough to open a job quickly, not so often that a call costs more the more went before."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

from actors.channel import journal_maintenance
from actors.channel.journal_maintenance import LAST_EVENTS, JournalMaintenance
from actors.history.results import ResultBuffer
from actors.journal.errors import DatabaseUnreachable
from cortex.journal import codec, snapshots
from cortex.journal.snapshots import PieceSpan, SnapshotPieces
from cortex.programs.batch import Batch
from cortex.state.events import Turn
from cortex.state.goals import Goal, Status
from cortex.state.items import Item
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route


class Kept:
    """A journal that keeps snapshots alone, and their pieces."""

    def note_end(self) -> None:
        """Take that the job has ended."""

    def __init__(self) -> None:
        self.snapshots: list[tuple[int, int, bytes]] = []
        self.keeps: list[int] = []
        self.stands: dict[tuple[int, int], bytes] = {}
        self.written = 0
        self.away = -1
        self.sweeps = 0

    def snapshot(self, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        self.snapshots.append((seq, emitted, blob))
        self.keeps.append(keep)

    def pieces(self) -> SnapshotPieces:
        return SnapshotPieces(4, snapshots.split(self.snapshots[-1][2]) if self.snapshots else None)

    def piece(self, generation: int, number: int, blob: bytes) -> None:
        if self.written == self.away:
            raise DatabaseUnreachable("away")
        self.stands[generation, number] = blob
        self.written += 1

    def sweep(self) -> None:
        self.sweeps += 1

    def whole(self) -> bytes:
        """The last snapshot."""
        blob = self.snapshots[-1][2]
        parts = snapshots.split(blob)
        if parts is None:
            return blob
        generation, first, last = PieceSpan.of(parts.span)
        return snapshots.joined(parts, [self.stands[generation, number] for number in range(first, last + 1)])

    def zero_what_goes(self) -> None: ...


def opened(snapshot_events: int = 100) -> State:
    limits, route = Limits(snapshot_events=snapshot_events), Route(endpoint="e", model="m")
    return codec.open_job(
        JobTerms(job="j", program="batch", params_json=b"{}", fingerprint="", limits=limits, route=route, streams=False)
    )


def looked(k: State, *, events: int, turns: int, grows: int = 0) -> list[int]:
    """After which turns K was written down."""
    source = Kept()
    look = JournalMaintenance(source, k, lambda seq: None, Batch(), ResultBuffer(0))  # type: ignore[arg-type]
    for seq in range(1, turns + 1):
        for _ in range(grows):
            k.goals[len(k.goals) + 1] = Goal("row", "as long as a row is, or may be" * 4)
        look.record_turn(events, Turn(0.0, ()), k.outcome)
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
    look = JournalMaintenance(source, k, lambda seq: None, Batch(), ResultBuffer(0))  # type: ignore[arg-type]
    for seq in range(1, 4):
        look.record_turn(10, Turn(0.0, ()), "")
        look.look(k, seq)
    assert source.keeps == [keep] * 3


def test_a_job_that_has_ended_is_written_down_unless_little_came_since() -> None:
    for events, entries in ((LAST_EVENTS - 1, []), (LAST_EVENTS, [1])):
        k = opened(50_000)
        k.outcome = "complete"
        assert looked(k, events=events, turns=1) == entries


def test_a_k_too_large_for_a_value_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_maintenance, "SNAPSHOT_BYTES_MAX", 10)
    assert looked(opened(), events=100, turns=3) == []


def test_a_snapshot_says_of_a_goal_what_is_not_usual_and_gives_the_same_back() -> None:
    goal = Goal("row", b"text", id=7, status=Status.RESOLVED, answer="yes", tries=1, row="7")
    k = opened()
    k.goals[7] = goal
    k.items[1] = Item("note", "text", id=1)
    blob = codec.encode_state(k)
    assert codec.decode_state(blob) == k and codec.encode_state(codec.decode_state(blob)) == blob
    assert len(blob) - len(codec.encode_state(opened())) < 150


class Ending:
    """A job whose rows end in their order, ten a turn of as many events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, keeps_text: bool = True) -> None:
        monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 10)
        monkeypatch.setattr(journal_maintenance, "BYTES_AN_EVENT", 800)  # what is not of goals is much of so small a K
        self.k, self.source, self.seq = opened(10), Kept(), 0
        self.k.terms = msgspec.structs.replace(self.k.terms, keeps_text=keeps_text)
        self.begin()

    def begin(self) -> None:
        """Another life."""
        self.upkeep = JournalMaintenance(self.source, self.k, lambda seq: None, Batch(), ResultBuffer(0))  # type: ignore[arg-type]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.seq += 1
            for _ in range(10):
                number = len(self.k.goals) + 1
                self.k.goals[number] = Goal("row", number, id=number, status=Status.RESOLVED)
            self.upkeep.record_turn(10, Turn(0.0, ()), "")
            self.upkeep.look(self.k, self.seq)
            if self.source.snapshots and self.source.snapshots[-1][0] == self.seq:
                assert self.source.whole() == codec.encode_state(self.k)


def test_what_has_ended_is_written_once_and_a_k_of_it_as_often_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ending(monkeypatch)
    for _ in range(5):
        job.turns(40)
        job.begin()
    assert [seq for seq, _, _ in job.source.snapshots] == [*range(1, 201)]
    assert job.source.written == len(job.source.stands) == 200 == job.source.sweeps, "whatever lives there were"
    first, last = (len(job.source.snapshots[at][2]) for at in (0, -1))
    assert last - first < 16 < len(codec.encode_state(job.k)) - last


def test_one_of_which_much_is_not_in_pieces_is_written_when_that_has_cost_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Ending(monkeypatch)
    for number in range(1, 601):
        job.k.items[number] = Item("note", "as long as a note is, or may be" * 4, id=number)
    job.turns(100)
    assert 6 < len(job.source.snapshots) < 20
    held = len(job.source.stands)
    job.turns(100)
    assert job.source.written > held and len(job.source.snapshots) < 40


def test_where_a_piece_could_not_be_kept_the_next_snapshot_goes_on_from_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 100)
    monkeypatch.setattr(snapshots, "_TOGETHER", 2)
    job = Ending(monkeypatch)
    job.turns(3)
    count, stood = job.source.written, dict(job.source.stands)
    job.source.away = count + 1
    job.turns(1)
    assert len(job.source.snapshots) == 3 and job.source.written == count + 1
    job.source.away = -1
    job.turns(1)
    assert [seq for seq, _, _ in job.source.snapshots] == [1, 2, 3, 5], "at the next turn"
    assert all(job.source.stands[number] == blob for number, blob in stood.items()), "what others refer to stays"
    job.turns(2)


def test_a_job_that_keeps_no_text_has_whole_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ending(monkeypatch, keeps_text=False)
    job.turns(3)
    assert job.source.stands == {}
    assert job.source.snapshots[-1][2] == codec.encode_state(job.k)


def test_a_piece_that_is_too_large_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Ending(monkeypatch)
    job.turns(1)
    monkeypatch.setattr(journal_maintenance, "SNAPSHOT_BYTES_MAX", len(job.source.snapshots[0][2]) + 50)
    for number in range(11, 21):
        job.k.goals[number] = Goal("row", "long" * 100, id=number, status=Status.RESOLVED)
    job.turns(1)
    assert (len(job.source.snapshots), job.source.written) == (1, 1)
