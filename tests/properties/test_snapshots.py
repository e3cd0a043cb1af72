"""A snapshot of which some stands in pieces is K as it is, byte for byte, whatever happened since the pieces were made."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec, snapshots
from cortex.journal.snapshots import HEAD_BYTES, PieceSpan, SnapshotPieces, SplitSnapshot, joined, span_of, split
from cortex.loop.step import step
from cortex.state.goals import Goal, Status
from cortex.state.state import State
from tests.properties.test_duplicates import PROGRAMS, run

SEEDS = st.integers(0, 10**9)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 1)
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 200)
    monkeypatch.setattr(snapshots, "_TOGETHER", 2)


class Kept:
    """What is kept of one K, and put together again."""

    def __init__(self) -> None:
        self.pieces = SnapshotPieces(3)
        self.blobs: dict[int, bytes] = {}
        self.splits = 0

    def look(self, k: State) -> None:
        more = self.pieces.more(k)
        for number, blob in enumerate(more, self.pieces.next - len(more)):
            assert number not in self.blobs, "an earlier snapshot may refer to it"
            self.blobs[number] = blob
        blob = self.pieces.snapshot(k)
        assert self.whole(blob) == codec.encode_state(k)
        span = span_of(blob[:HEAD_BYTES])
        assert (span is None) == (split(blob) is None)
        if span is not None:
            assert span == (3, self.pieces.first, self.pieces.next - 1)

    def another_life(self, k: State) -> None:
        """It goes on with the pieces of the snapshot that K is read from."""
        self.look(k)
        self.pieces = SnapshotPieces(4, split(self.pieces.snapshot(k)))
        self.pieces.generation = 3  # where nothing stood in pieces it would be another

    def whole(self, blob: bytes) -> bytes:
        parts = split(blob)
        if parts is None:
            return blob
        self.splits += 1
        _, first, last = PieceSpan.of(parts.span)
        return joined(parts, [self.blobs[number] for number in range(first, last + 1)])


@pytest.mark.parametrize("name", PROGRAMS)
@given(SEEDS, st.integers(1, 5))
@settings(max_examples=10)
def test_it_is_k_as_it_is_whatever_happened_since(name: str, seed: int, every: int) -> None:
    turns, program = run(name, seed).stage.turns, PROGRAMS[name]
    k, kept, chance = codec.open_job(turns[0].batches[0][0].terms), Kept(), random.Random(seed)
    for turn in turns:
        step(k, program, turn)
        if chance.randrange(every) == 0:
            kept.look(k)
        if chance.randrange(4 * every) == 0:
            kept.another_life(k)
    kept.look(k)


def test_the_runs_are_worth_it() -> None:
    """In most, something stands in pieces while other goals live."""
    splits = dict.fromkeys(PROGRAMS, 0)
    for name, seed in ((name, seed) for name in PROGRAMS for seed in range(4)):
        turns, program = run(name, seed).stage.turns, PROGRAMS[name]
        k, kept = codec.open_job(turns[0].batches[0][0].terms), Kept()
        for turn in turns:
            step(k, program, turn)
            kept.look(k)
            splits[name] += bool(kept.pieces.held and k.live)
    assert sum(splits.values()) > 50 and sum(map(bool, splits.values())) > len(PROGRAMS) // 2, splits


def of(count: int, lives: int = 0) -> State:
    """K with so many goals that have ended, and some at the end that have not."""
    k = codec.open_job(run("flat", 1).stage.turns[0].batches[0][0].terms)
    for number in range(1, count + lives + 1):
        ended = number <= count
        k.goals[number] = Goal("row", [number], id=number, status=Status.RESOLVED if ended else Status.OPEN)
    return k


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 255, 65_535, 65_536, 70_000])
@pytest.mark.parametrize("lives", [0, 1, 15, 16, 66_000])
def test_maps_of_any_length(count: int, lives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_TOGETHER", 256)
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 100_000)
    kept = Kept()
    kept.look(of(count, lives))
    assert (kept.pieces.held, kept.splits) == (count, 1)
    assert (len(kept.blobs) > 1) == (count > 60_000)


def test_what_stands_in_a_piece_is_not_written_again() -> None:
    kept, k = Kept(), of(100, 1)
    kept.look(k)
    first = dict(kept.blobs)
    k.goals[101].status = Status.FAILED
    k.goals[102] = Goal("row", id=102)
    kept.look(k)
    assert kept.pieces.held == 101 and kept.pieces.first == 1
    assert len(kept.blobs) == len(first) + 1 and len(kept.pieces.snapshot(k)) < len(codec.encode_state(of(0, 1))) + 60
    assert kept.pieces.more(k) == []
    kept.another_life(k)
    assert kept.pieces.more(k) == [] and len(kept.blobs) == len(first) + 1


def test_few_that_have_ended_are_left_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 10)
    kept = Kept()
    kept.look(of(9))
    assert (kept.blobs, kept.splits) == ({}, 0)
    kept.look(of(10))
    assert kept.splits == 1


def test_where_the_front_is_another_it_begins_anew() -> None:
    for change in (lambda k: k.goals.pop(1), lambda k: k.goals.pop(50), lambda k: k.goals.pop(100), reopened):
        kept, k = Kept(), of(100, 1)
        kept.look(k)
        before = kept.pieces.next
        change(k)
        kept.look(k)
        assert kept.pieces.first == before > 1
        count = len(kept.blobs)
        kept.look(k)
        assert len(kept.blobs) == count, "once"


def test_what_was_opened_again_between_two_lives_is_seen() -> None:
    kept, k = Kept(), of(100, 1)
    kept.another_life(k)
    before = kept.pieces.next
    reopened(k)
    kept.look(k)
    assert kept.pieces.first == before > 1


def reopened(k: State) -> None:
    """As ``events.RowsReopened`` leaves it."""
    k.edition += 1
    k.goals[7].status = Status.OPEN


def test_a_snapshot_of_before_can_still_be_put_together() -> None:
    kept, k = Kept(), of(100, 1)
    kept.look(k)
    blob, then = kept.pieces.snapshot(k), codec.encode_state(k)
    reopened(k)
    kept.look(k)
    assert kept.whole(blob) == then


def test_parts_are_told_from_a_whole_one() -> None:
    k = of(3)
    assert split(codec.encode_state(k)) is None and split(b"") is None
    kept = Kept()
    kept.look(k)
    parts = split(kept.pieces.snapshot(k))
    assert isinstance(parts, SplitSnapshot) and (*PieceSpan.of(parts.span), parts.held, parts.last, parts.goals) == (
        3,
        1,
        1,
        3,
        3,
        3,
    )
