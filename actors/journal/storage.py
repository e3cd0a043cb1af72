"""Interfaces of storage: rows of one job's journal, the index of replies, and small values of a state folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from cortex.journal.snapshots import PieceSpan

T = TypeVar("T")


class Storage(Protocol):
    """Storage of one job's journal: turns and snapshots by number, and small values (facts) beside them.

    Writes take an ``epoch``: the write happens only while it is the newest epoch of the job, otherwise ``Fenced`` is
    raised; 0 skips this check. All methods raise ``StoreError``.
    """

    job: str
    remote: bool
    """True if a commit waits for another machine, so that an event loop must not wait for it."""

    def meta(self, key: str) -> bytes | None:
        """Return a fact; None if it is not set. Raises ``Damaged`` if it is not what was stored."""

    def facts(self) -> dict[str, int] | None:
        """Return the names and checksums of the facts; None if they have no checksums. Raises ``Damaged``."""

    def see_structure(self) -> None:
        """Check what is not rows: pages, indexes. Raises ``Damaged``."""

    def see_stands(self) -> None:
        """Raise ``StoreError`` if what this storage writes to is not under its name any more, after an attempt to put
        it back. A look that fails proves nothing."""

    def idle_s(self) -> float | None:
        """Return the seconds since the last turn, by the clock of the storage; None if it has none of its own."""

    def set_meta(self, key: str, value: bytes, epoch: int) -> None:
        """Store a fact, replacing the previous value."""

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """Return the next epoch, at least ``least``. From now on only its holder may write. ``owner`` is stored.

        The fact ``sealed`` is set with it, unless it is set: the number of the next turn, and this epoch.
        """

    def newest_epoch(self) -> int:
        """Return the newest epoch that was taken; 0 if none was."""

    def append(self, epoch: int, seq: int, blobs: Sequence[bytes]) -> None:
        """Store these turns, all or none, durable on return. ``seq`` is the number of the first.

        None of them may be stored already; but turns that were sent before and never confirmed count as done.
        """

    def last(self) -> int:
        """Return the largest number of a stored turn; 0 if there is none."""

    def turns(
        self, after: int, upto: int | None = None, *, down: bool = False, count: int | None = None,
        holding: Sequence[bytes] = (),
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        """Yield (number, turn) in the order of numbers, after ``after``; ``down``: in reverse.

        ``holding``: only turns that contain all of these byte strings. Turns written meanwhile may be missing.
        """

    def put_snapshot(self, seq: int, emitted: int, blob: bytes, keep: int, epoch: int) -> None:
        """Store a snapshot and, in the same transaction, remove all but the newest ``keep`` of the job; 0: remove none.
        """

    def heads(self, after: int) -> list[tuple[int, bytes]]:
        """Return (turn, first ``HEAD_BYTES``) of the snapshots after a turn, latest first."""

    def put_piece(self, generation: int, number: int, blob: bytes, epoch: int) -> None:
        """Store a piece of snapshots (``cortex.journal.snapshots``), replacing an earlier one."""

    def piece(self, generation: int, number: int) -> bytes | None:
        """Return a piece; None if it does not exist."""

    def count_pieces(self, span: PieceSpan | None) -> int:
        """Return the number of stored pieces in the span; None: of all pieces."""

    def keep_pieces(self, spans: Sequence[PieceSpan], epoch: int) -> None:
        """Remove all pieces outside of these spans."""

    def snapshots(self, after: int, upto: int, emitted_max: int, count: int | None) -> Iterator[tuple[int, bytes]]:
        """Yield snapshots of these turns, latest first."""

    def drop(self, upto: int, first_at_s: float, shrink: bool, epoch: int) -> None:
        """Remove the turns up to ``upto``, the snapshots before it, and all pieces.

        Sets the facts ``dropped`` and, unless it is set, ``first_at_s``. ``shrink``: no further turns will come.
        """

    def forget(self, figures: bytes, epoch: int) -> None:
        """Remove all rows but the fact ``format``, and store ``figures`` as the fact ``forgotten``."""

    def zero_what_goes(self) -> None:
        """Overwrite rows that are removed from now on, if possible."""

    def as_it_is(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which all reads see one moment, despite concurrent writes."""

    def size_bytes(self) -> int:
        """Return the size of the journal in bytes."""

    def close(self) -> None:
        """Close the storage."""


class ReplyIndex(Protocol):
    """Storage of the index of remembered replies of a state folder. All methods raise ``StoreError``."""

    def seq_of(self, job: str) -> int:
        """Return the last turn of a job that is in the index."""

    def empty(self) -> bool:
        """Return True if the index is empty."""

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """Add (hash, turn, position) of replies that a job paid for, up to its turn ``seq``: all or nothing."""

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """Yield (hash, job, turn, position) of the hashes that are in the index."""

    def close(self) -> None:
        """Close the index."""


class KeyValues(Protocol):
    """Small values by name, which several processes change, one at a time. All methods raise ``StoreError``."""

    def read(self) -> dict[str, bytes]:
        """Return all values by name."""

    def now_s(self) -> float:
        """Return the time by the clock of the storage, in seconds since 1970."""

    def change(self, how: Callable[[dict[str, bytes]], tuple[Mapping[str, bytes | None], T]]) -> T:
        """Pass all values to ``how`` and store its changes in one exclusive transaction.

        ``how`` returns (changes by name, result); None as a change removes the value. The result is returned once the
        changes are durable. ``how`` may be called twice.
        """
