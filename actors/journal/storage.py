"""What keeps rows: of one job's journal, and for all jobs of a state folder together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from cortex.journal.snapshots import PieceSpan

T = TypeVar("T")


class Storage(Protocol):
    """What keeps the rows of one job's journal: turns and snapshots by their number, and small facts beside them.

    ``epoch`` with a write: it is done only while that is the newest epoch of the job, else ``Fenced`` is raised; 0 asks
    for no such check. All raise ``StoreError``.
    """

    job: str
    remote: bool
    """Whether a commit waits for another machine, so that no event loop should wait with it."""

    def meta(self, key: str) -> bytes | None:
        """A small fact."""

    def set_meta(self, key: str, value: bytes, epoch: int) -> None:
        """Keep a small fact, in place of what stood there."""

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """The next epoch, which from here on alone may write; it is no smaller than ``least``. ``owner`` is kept."""

    def newest_epoch(self) -> int:
        """The last epoch that was taken; 0 where none was."""

    def append(self, epoch: int, seq: int, blobs: Sequence[bytes]) -> None:
        """Keep these turns, all or none, durable when this returns. The first of them has the number ``seq``, and none
        of them may be there; but one that was sent before and never confirmed is taken as done."""

    def last(self) -> int:
        """The largest number of a turn that is there; 0 where none is."""

    def turns(
        self, after: int, upto: int | None = None, *, down: bool = False, count: int | None = None,
        holding: Sequence[bytes] = (),
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        """Turns after a number, by their numbers, ``down``: the last one first. ``holding``: only where all of these
        bytes are in it. What is written meanwhile need not be among them."""

    def put_snapshot(self, seq: int, emitted: int, blob: bytes, keep: int, epoch: int) -> None:
        """Keep a snapshot and, in the same transaction, remove those before the newest ``keep`` of the job; 0: none."""

    def heads(self, after: int) -> list[tuple[int, bytes]]:
        """The first ``HEAD_BYTES`` of the snapshots after a turn, the last one first."""

    def put_piece(self, generation: int, number: int, blob: bytes, epoch: int) -> None:
        """Keep a piece of snapshots (``cortex.journal.snapshots``), in place of what stood there."""

    def piece(self, generation: int, number: int) -> bytes | None:
        """A piece; None where it is not there."""

    def count_pieces(self, span: PieceSpan | None) -> int:
        """How many of these are there; None: of all."""

    def keep_pieces(self, spans: Sequence[PieceSpan], epoch: int) -> None:
        """Remove all pieces but these."""

    def snapshots(self, after: int, upto: int, emitted_max: int, count: int | None) -> Iterator[tuple[int, bytes]]:
        """Snapshots of these turns, the last one first."""

    def drop(self, upto: int, first_at_s: float, shrink: bool, epoch: int) -> None:
        """Remove the turns up to this one, the snapshots before it, and all pieces. The facts ``dropped`` and, unless
        it stands there, ``first_at_s`` tell of it. ``shrink``: no more will come."""

    def forget(self, figures: bytes, epoch: int) -> None:
        """Remove all rows but the fact ``format``, and keep ``figures`` as the fact ``forgotten``."""

    def zero_what_goes(self) -> None:
        """What is removed from now on is written over, where that can be had."""

    def as_it_is(self) -> contextlib.AbstractContextManager[None]:
        """All that is read meanwhile is of one moment, whoever writes."""

    def size_bytes(self) -> int:
        """Bytes that the journal takes."""

    def close(self) -> None:
        """Let go of it."""


class ReplyIndex(Protocol):
    """What keeps the index of remembered replies of a state folder. All raise ``StoreError``."""

    def seq_of(self, job: str) -> int:
        """The last turn of a job that is in the index."""

    def empty(self) -> bool:
        """Whether nothing is in it."""

    def put(self, job: str, seq: int, rows: Sequence[tuple[bytes, int, int]]) -> None:
        """(hash, turn, place in it) of replies that a job paid for, up to its turn ``seq``: all of it or nothing."""

    def find(self, hashes: Sequence[bytes]) -> Iterator[tuple[bytes, str, int, int]]:
        """(hash, job, turn, place in it) of those that are there."""

    def close(self) -> None:
        """Let go of it."""


class KeyValues(Protocol):
    """Small values by name, which several processes change, one at a time. All raise ``StoreError``."""

    def read(self) -> dict[str, bytes]:
        """All that stand there."""

    def now_s(self) -> float:
        """The time where it is kept, in seconds since 1970."""

    def change(self, how: Callable[[dict[str, bytes]], tuple[Mapping[str, bytes | None], T]]) -> T:
        """``how`` is given what stands there, and says what is to stand under which names, None: nothing, and what is
        returned when that is durable. Nobody else changes anything meanwhile. It may be asked twice."""
