"""Incremental snapshots of a large K: ended goals are stored only once.

An ended goal does not change, unless failed rows are opened again, and goals keep their order. So the bytes of the
ended goals at the front are stored in *pieces*, and a snapshot holds the rest: it takes time in proportion to what has
been added since the last one, not to all of K. Joined together they equal ``codec.encode_state``, byte for byte
(``tests/properties/test_snapshots.py``). Goals made after a goal that is still live are in each snapshot.

Pieces are numbered within a *generation*, the epoch of the channel incarnation that began them. Later incarnations
continue them.
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
"""Number of ended goals below which they stay in the snapshot: a piece is a commit of its own."""
PIECE_BYTES = 8_000_000
"""Size in bytes at which a piece is full."""
_TOGETHER = 256
"""Largest number of goals encoded at a time: values may be large."""

_encoder = msgspec.msgpack.Encoder()


class PieceSpan(NamedTuple):
    """Pieces of a snapshot."""

    generation: int
    first: int
    last: int

    @classmethod
    def of(cls, blob: bytes) -> PieceSpan:
        """Decode the span of a snapshot: three numbers of eight bytes."""
        return cls(*_SPAN.unpack(blob))


_SPAN = struct.Struct(">QQQ")
_START = b"\x98\xc4" + bytes([_SPAN.size])
"""First bytes of a snapshot in pieces: an array of eight whose first element is a span. A whole snapshot is a map."""
HEAD_BYTES = len(_START) + _SPAN.size
"""Length of the beginning of a snapshot that names its pieces."""


class SplitSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Snapshot with a part of its goals in pieces."""

    span: bytes
    """Encoded ``PieceSpan``."""
    held: int
    """Number of goals in the pieces."""
    last: int
    """Last goal in the pieces."""
    edition: int
    """``State.edition``: failed goals may have been opened again since."""
    goals: int
    """Number of goals in the pieces and in the snapshot."""
    before: bytes
    """Bytes of K as in ``encode_state`` up to its goals. ``entries`` are the goals that are in no piece, ``after`` the
    rest."""
    entries: bytes
    after: bytes


_decoder = msgspec.msgpack.Decoder(SplitSnapshot)
_BEFORE = State.__struct_fields__[: State.__struct_fields__.index("goals")]


class SnapshotPieces:
    """State of the pieces of one K."""

    def __init__(self, generation: int, parts: SplitSnapshot | None = None) -> None:
        """``parts``: the snapshot that K was read from, to continue its pieces."""
        span = PieceSpan.of(parts.span) if parts is not None else PieceSpan(generation, 1, 0)
        self.generation, self.first = span.generation, span.first
        self.next = span.last + 1
        """Number of the next piece."""
        self.held = parts.held if parts is not None else 0
        """Number of goals in the pieces: the first ones of K."""
        self._last = parts.last if parts is not None else 0
        self._edition = parts.edition if parts is not None else 0

    def more(self, k: State) -> list[bytes]:
        """Return the pieces to store before the next snapshot: goals at the front that have ended since.

        If the front is not what it was, the pieces begin anew.
        """
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
        """True if the first goals are those in the pieces: none was removed, and none was opened again."""
        return not self.held or (
            k.edition == self._edition and next(islice(k.goals, self.held - 1, None), 0) == self._last
        )

    def snapshot(self, k: State) -> bytes:
        """Encode K without the goals in pieces."""
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
    """Offset of the goals in K's bytes."""
    fields = [_encoder.encode(name) + _encoder.encode(getattr(k, name)) for name in _BEFORE]
    return len(_head(len(k.__struct_fields__))) + sum(map(len, fields)) + len(_encoder.encode("goals"))


def _cut(goals: list[Goal]) -> list[bytes]:
    """Encode these goals as entries of a map, in pieces."""
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
    """Return the pieces of a snapshot, from its first ``HEAD_BYTES``; None if it is whole."""
    return PieceSpan.of(head[len(_START) : HEAD_BYTES]) if head.startswith(_START) else None


def split(blob: bytes) -> SplitSnapshot | None:
    """Decode the parts of a snapshot; None if it is whole."""
    return _decoder.decode(blob) if blob.startswith(_START) else None


def joined(parts: SplitSnapshot, pieces: Iterable[bytes]) -> bytes:
    """Join a snapshot with its pieces."""
    return b"".join([parts.before, _head(parts.goals), *pieces, parts.entries, parts.after])


# -- maps of MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md#map-format-family) ------------------


def _head(count: int) -> bytes:
    """Header of a map with this number of entries."""
    if count < 16:
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdf" + count.to_bytes(4, "big")


def _entries(blob: bytes, count: int) -> bytes:
    """Bytes of a map without its header."""
    return blob[len(_head(count)) :]
