"""Snapshots of which some stands in pieces, wherever a journal is kept: read whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from actors.store import Fenced, Folder, Journal
from cortex import events, journal
from cortex.limits import Limits, Route, Terms
from cortex.snapshots import Split
from cortex.state import Goal, State

TERMS = Terms(
    job="j", program="batch", params_json=b"{}", fingerprint="", limits=Limits(), streams=False,
    route=Route(endpoint="e", model="m"),
)  # fmt: skip


@pytest.fixture
def folder(state: str) -> Folder:
    return Folder(state).prepare()


@pytest.fixture
def mine(folder: Folder) -> Iterator[Journal]:
    made = folder.journal("j", create=True)
    made.take_epoch(b"{}")
    yield made
    made.close()


def _turn(at_s: float) -> bytes:
    return journal.encode_turn(at_s, [journal.encode_batch([events.Ticked()])], b"")


def _split(first: int, last: int, epoch: int = 1) -> tuple[bytes, bytes]:
    """A snapshot that refers to these pieces, each a goal, and the same whole."""
    goals = {number: Goal("row", id=number) for number in range(first, last + 1)}
    whole = journal.encode_state(State(terms=TERMS, goals=goals))
    before, after = journal.encode_state(State(terms=TERMS)).split(b"\xa5goals\x80")
    blob = msgspec.msgpack.encode(Split(epoch, first, last, len(goals), before + b"\xa5goals", b"", after))
    return blob, whole


def _pieces(source: Journal, first: int, last: int) -> None:
    for number in range(first, last + 1):
        source.piece(number, msgspec.msgpack.encode({number: Goal("row", id=number)})[1:])


def test_a_snapshot_in_pieces_is_read_whole(folder: Folder, mine: Journal) -> None:
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
    mine.drop_pieces(1)
    assert reader.latest_snapshot(upto=5) == (5, whole_later)
    mine.drop_pieces(2)
    assert list(reader.snapshots(0, 9)) == [(6, b"K6")], "one whose pieces went has gone"
    assert reader.latest_snapshot(upto=5) is None
    reader.close()


def test_pieces_of_another_life_are_told_apart(folder: Folder, mine: Journal) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    _pieces(mine, 1, 2)
    blob, whole = _split(1, 2)
    mine.snapshot(1, 1, blob)
    other = folder.journal("j")
    other.take_epoch(b"{}")
    with pytest.raises(Fenced):
        mine.piece(3, b"late")
    with pytest.raises(Fenced):
        mine.drop_pieces(9)
    other.piece(1, msgspec.msgpack.encode({1: Goal("other", id=1)})[1:])
    assert other.latest_snapshot() == (1, whole)
    other.drop_pieces(1)
    assert other.latest_snapshot() is None and other.meta("format") is not None
    other.snapshot(2, 2, _split(1, 1, epoch=2)[0])
    assert (found := other.latest_snapshot()) is not None and b"other" in found[1]
    other.close()


def test_a_snapshot_that_is_replaced_while_it_is_read_is_looked_for_again(folder: Folder, mine: Journal) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    _pieces(mine, 1, 1)
    blob, whole = _split(1, 1)
    mine.snapshot(1, 1, _split(7, 7)[0])
    reader = folder.journal("j")
    look = reader._storage.piece

    def replaced(epoch: int, number: int) -> bytes | None:
        if number == 7:
            mine.snapshot(2, 2, blob, keep=1)
        return look(epoch, number)

    reader._storage.piece = replaced  # type: ignore[method-assign]
    assert reader.latest_snapshot() == (2, whole)
    reader.close()


@pytest.mark.parametrize("how", ["drop", "forget"])
def test_pieces_go_with_the_text_that_is_in_them(folder: Folder, mine: Journal, how: str) -> None:
    mine.append([_turn(1.0), _turn(2.0)])
    _pieces(mine, 1, 1)
    mine.snapshot(2, 0, _split(1, 1)[0])
    assert mine.latest_snapshot() is not None
    if how == "drop":
        mine.snapshot(1, 0, b"K")
        mine.drop(1)
        assert mine.latest_snapshot() is None
    else:
        mine.forget(b"{}")
    assert mine._storage.piece(1, 1) is None
