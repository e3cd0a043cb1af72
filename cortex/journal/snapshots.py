"""A large K written down again and again, and what does not change any more only once.

A goal that has ended stays as it is, unless failed rows are opened again, and goals keep their order. So the bytes of
those at the front that have ended are kept in *pieces*, and a snapshot holds the rest: it takes as long as what has
come since the one before, not as all of K. Put together again they are ``journal.encode_state``, byte for byte
(``tests/properties/test_snapshots.py``). What began after a goal that still lives is in each snapshot, as ever.

Pieces have numbers within a *generation*, the epoch of the life that began them. A later life goes on with them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from cortex.state.goals import ENDED, Goal
from cortex.state.state import State

PIECE_GOALS_MIN = 10_000
"""Fewer are left in the snapshot: a piece is a commit of its own."""
PIECE_BYTES = 8_000_000
"""A piece that has as many is full."""
_TOGETHER = 256
"""So many goals are encoded at a time, at the most: values may be large."""

_encoder = msgspec.msgpack.Encoder()


class PieceSpan(NamedTuple):
    """The pieces of a snapshot."""

    generation: int
    first: int
    last: int

    @classmethod
    def of(cls, blob: bytes) -> PieceSpan:
        """As a snapshot has it: three numbers of eight bytes."""
        return cls(*_SPAN.unpack(blob))


_SPAN = struct.Struct(">QQQ")
_START = b"\x98\xc4" + bytes([_SPAN.size])
"""Of a snapshot in pieces: an array of eight, whose first stands for as many bytes. A whole one is a map."""
HEAD_BYTES = len(_START) + _SPAN.size
"""So much of a snapshot says which pieces belong to it."""


class SplitSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot some of which stands in pieces."""

    span: bytes
    """``PieceSpan.of`` it."""
    held: int
    """How many goals are in the pieces."""
    last: int
    """The last of them."""
    edition: int
    """``State.edition``: goals that had failed may have been opened again since."""
    goals: int
    """How many goals there are, in pieces and here."""
    before: bytes
    """K as ``encode_state`` has it, up to its goals; then the entries of those that are in no piece; then the rest."""
    entries: bytes
    after: bytes


_decoder = msgspec.msgpack.Decoder(SplitSnapshot)
_BEFORE = State.__struct_fields__[: State.__struct_fields__.index("goals")]


class SnapshotPieces:
    """What of one K stands in pieces."""

    def __init__(self, generation: int, parts: SplitSnapshot | None = None) -> None:
        """``parts``: the snapshot that K was read from, whose pieces are gone on with."""
        span = PieceSpan.of(parts.span) if parts is not None else PieceSpan(generation, 1, 0)
        self.generation, self.first = span.generation, span.first
        self.next = span.last + 1
        """The number of the next that is made."""
        self.held = parts.held if parts is not None else 0
        """How many goals are in them: so many at the front of K."""
        self._last = parts.last if parts is not None else 0
        self._edition = parts.edition if parts is not None else 0

    def more(self, k: State) -> list[bytes]:
        """Pieces to be kept before the next snapshot: goals at the front that have ended since. Where the front is not
        what it was, the first of them is the first that counts."""
        if not self._stands(k):
            self.first, self.held = self.next, 0
        self._edition = k.edition
        front = takewhile(lambda goal: goal.status in ENDED, islice(k.goals.values(), self.held, None))
        ended = [*front]
        if len(ended) < PIECE_GOALS_MIN:
            return []
        found = _cut(ended)
        self.next += len(found)
        self.held += len(ended)
        self._last = ended[-1].id
        return found

    def _stands(self, k: State) -> bool:
        """Whether the first goals are those in the pieces: none of them has left, and none was opened again."""
        return not self.held or (
            k.edition == self._edition and next(islice(k.goals, self.held - 1, None), 0) == self._last
        )

    def snapshot(self, k: State) -> bytes:
        """K, but for what stands in pieces."""
        if not self.held:
            return _encoder.encode(k)
        living = dict(islice(k.goals.items(), self.held, None))
        blob, entries = _encoder.encode(msgspec.structs.replace(k, goals=living)), _encoder.encode(living)
        start = _start_of_goals(k)
        end = start + len(entries)
        assert blob[start:end] == entries, "fields stand in their order"
        span = _SPAN.pack(self.generation, self.first, self.next - 1)
        return _encoder.encode(
            SplitSnapshot(
                span, self.held, self._last, self._edition, len(k.goals), blob[:start], _entries(entries, len(living)),
                blob[end:],
            )
        )  # fmt: skip


def _start_of_goals(k: State) -> int:
    """Where they stand in K's bytes."""
    fields = [_encoder.encode(name) + _encoder.encode(getattr(k, name)) for name in _BEFORE]
    return len(_head(len(k.__struct_fields__))) + sum(map(len, fields)) + len(_encoder.encode("goals"))


def _cut(goals: list[Goal]) -> list[bytes]:
    """The entries of a map of these, in pieces."""
    pieces: list[bytes] = []
    some: list[bytes] = []
    size = 0
    for start in range(0, len(goals), _TOGETHER):
        few = goals[start : start + _TOGETHER]
        entries = _entries(_encoder.encode({goal.id: goal for goal in few}), len(few))
        some.append(entries)
        size += len(entries)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(some))
            some, size = [], 0
    return [*pieces, b"".join(some)] if some else pieces


def span_of(head: bytes) -> PieceSpan | None:
    """Which pieces belong to a snapshot, of which these are the first ``HEAD_BYTES``; None for one that is whole."""
    return PieceSpan.of(head[len(_START) : HEAD_BYTES]) if head.startswith(_START) else None


def split(blob: bytes) -> SplitSnapshot | None:
    """The parts of a snapshot; None for one that is whole."""
    return _decoder.decode(blob) if blob.startswith(_START) else None


def joined(parts: SplitSnapshot, pieces: Iterable[bytes]) -> bytes:
    """The whole snapshot."""
    return b"".join([parts.before, _head(parts.goals), *pieces, parts.entries, parts.after])


# -- maps of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md#map-format-family) ------------------


def _head(count: int) -> bytes:
    """What stands before so many entries."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


def _entries(blob: bytes, count: int) -> bytes:
    """A map without its head."""
    return blob[len(_head(count)) :]
