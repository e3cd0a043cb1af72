"""Snapshots of which some stands in pieces, wherever a journal is kept: read whole, or not at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
import pytest

from actors.journal.journal import Fenced, Journal, StateFolder
from cortex.journal import codec
from cortex.journal.snapshots import SplitSnapshot
from cortex.state import events
from cortex.state.state import Goal, State
from cortex.values.limits import JobTerms, Limits, Route

TERMS = JobTerms(
    job="j", program="batch", params_json=b"{}", fingerprint="", limits=Limits(), streams=False,
    route=Route(endpoint="e", model="m"),
)  # fmt: skip


@pytest.fixture
def folder(state: str) -> StateFolder:
    return StateFolder(state).prepare()


@pytest.fixture
def mine(folder: StateFolder) -> Iterator[Journal]:
    made = folder.journal("j", create=True)
    made.take_epoch(b"{}")
    yield made
    made.close()


def _turn(at_s: float) -> bytes:
    return codec.encode_turn(at_s, [codec.encode_batch([events.Ticked()])], b"")


def _split(first: int, last: int, generation: int = 1) -> tuple[bytes, bytes]:
    """A snapshot to which these pieces belong, each a goal, and the same whole."""
    goals = {number: Goal("row", id=number) for number in range(first, last + 1)}
    whole = codec.encode_state(State(terms=TERMS, goals=goals))
    before, after = codec.encode_state(State(terms=TERMS)).split(b"\xa5goals\x80")
    span = struct.pack(">QQQ", generation, first, last)
    parts = SplitSnapshot(span, len(goals), last, 0, len(goals), before + b"\xa5goals", b"", after)
    return msgspec.msgpack.encode(parts), whole


def _pieces(source: Journal, first: int, last: int, generation: int = 1) -> None:
    for number in range(first, last + 1):
        source.piece(generation, number, msgspec.msgpack.encode({number: Goal("row", id=number)})[1:])


def _count(source: Journal) -> int:
    return source._storage.count_pieces(None)


def test_a_snapshot_in_pieces_is_read_whole(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 10)])
    before = mine.size_bytes()
    _pieces(mine, 1, 3)
    (blob, whole), (later, whole_later) = _split(1, 2), _split(1, 3)
    mine.snapshot(2, 2, blob)
    mine.snapshot(5, 5, later)
    mine.snapshot(6, 6, b"K6")
    reader = folder.journal("j")
    assert list(reader.snapshots(0, 9)) == [(6, b"K6"), (5, whole_later), (2, whole)]
    assert reader.latest_snapshot(upto=4) == (2, whole)
    assert reader.size_bytes() > before
    assert reader.replay_from() == 6
    reader.close()


def test_what_belongs_to_no_snapshot_is_swept_and_nothing_else(mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 10)])
    mine.sweep()
    _pieces(mine, 1, 5, generation=1)
    _pieces(mine, 1, 12, generation=11)
    mine.snapshot(2, 2, _split(2, 3, generation=1)[0])
    mine.snapshot(5, 5, _split(3, 10, generation=11)[0])
    mine.snapshot(6, 6, b"K6")
    mine.sweep()
    left = [(g, n) for g in (1, 11) for n in range(1, 13) if mine._storage.piece(g, n) is not None]
    assert left == [(1, 2), (1, 3), *((11, number) for number in range(3, 11))]
    assert [seq for seq, _ in mine.snapshots(0, 9)] == [6, 5, 2]
    mine.snapshot(7, 7, b"K7", keep=2)
    mine.sweep()
    assert _count(mine) == 0


def test_one_whose_pieces_are_not_there_is_passed_over(mine: Journal) -> None:
    mine.append([_turn(float(at)) for at in range(1, 10)])
    _pieces(mine, 1, 2)
    blob, whole = _split(1, 2)
    mine.snapshot(2, 2, blob)
    mine.snapshot(5, 5, _split(1, 3)[0])
    assert (mine.latest_snapshot(), mine.replay_from()) == ((2, whole), 2)
    assert list(mine.snapshots(0, 9)) == [(2, whole)]
    assert (mine.pieces().generation, mine.pieces().held) == (mine.epoch, 0), "it begins anew"
    mine._storage.keep_pieces([], mine.epoch)
    assert (mine.latest_snapshot(), mine.replay_from()) == (None, 0), "all is replayed"


def test_another_life_goes_on_with_them(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    assert (mine.pieces().generation, mine.pieces().next, mine.pieces().held) == (1, 1, 0)
    _pieces(mine, 1, 3)
    blob, whole = _split(1, 2)
    mine.snapshot(1, 1, blob)
    other = folder.journal("j")
    other.take_epoch(b"{}")
    with pytest.raises(Fenced):
        mine.piece(1, 3, b"late")
    with pytest.raises(Fenced):
        mine.sweep()
    found = other.pieces()
    assert (found.generation, found.first, found.next, found.held) == (1, 1, 3, 2)
    assert other.latest_snapshot() == (1, whole)
    other.piece(1, 3, b"in place of what nobody refers to")
    piece = other._storage.piece(1, 3)
    assert piece is not None and piece[:-8] == b"in place of what nobody refers to", "with its seal"
    other.set_meta("opened_at", b"1")
    assert (other.pieces().generation, other.pieces().held) == (2, 0), "a job that is begun anew has none"
    other.close()


def test_a_snapshot_that_is_replaced_while_it_is_read_is_looked_for_again(folder: StateFolder, mine: Journal) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    _pieces(mine, 1, 1)
    blob, whole = _split(1, 1)
    mine.snapshot(1, 1, _split(7, 7)[0])
    reader = folder.journal("j")
    look = reader._storage.piece

    def replaced(generation: int, number: int) -> bytes | None:
        if number == 7:
            mine.snapshot(2, 2, blob, keep=1)
        return look(generation, number)

    reader._storage.piece = replaced  # type: ignore[method-assign]
    assert reader.latest_snapshot() == (2, whole)
    reader.close()


@pytest.mark.parametrize("how", ["drop", "forget"])
def test_pieces_go_with_the_text_that_is_in_them(folder: StateFolder, mine: Journal, how: str) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    _pieces(mine, 1, 1)
    mine.snapshot(2, 0, _split(1, 1)[0])
    assert mine.latest_snapshot() is not None
    if how == "drop":
        mine.snapshot(1, 0, b"K")
        mine.drop(1)
        assert mine.latest_snapshot() == (1, b"K")
    else:
        mine.forget(b"{}")
    assert _count(mine) == 0
