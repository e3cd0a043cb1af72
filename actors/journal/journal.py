"""Journal of a job, over any storage. ``actors.journal.state_folder`` holds the journals of many jobs.

The guarantees are implemented here once: one commit a turn, and every write checks, inside its transaction, that the
writer's epoch is still the newest, so that an orphan of a killed run can write nothing. There are two storages:
``actors.journal.sqlite``, a file a job on a disk of this machine, and ``actors.journal.postgres``, a database that can
be reached from any machine.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from actors.journal.errors import ContentRemoved as ContentRemoved
from actors.journal.errors import DatabaseUnreachable as DatabaseUnreachable
from actors.journal.errors import DiskFull as DiskFull
from actors.journal.errors import Fenced as Fenced
from actors.journal.errors import JobHeld as JobHeld
from actors.journal.errors import NoSuchJob as NoSuchJob
from actors.journal.errors import StoreError as StoreError
from actors.journal.errors import TextRedacted as TextRedacted
from actors.journal.errors import UnsupportedFormat as UnsupportedFormat
from actors.journal.state_folder import StateFolder as StateFolder
from actors.journal.state_folder import advised
from actors.journal.state_folder import checked_name as checked_name
from actors.journal.storage import Storage
from cortex.journal import codec, snapshots
from cortex.journal.snapshots import PieceSpan, SnapshotPieces
from cortex.state import events

READS = 3
"""Attempts to read a snapshot whose pieces are removed meanwhile: its writer has then written a newer one."""


class Journal:
    """Journal of one job. Open it to read; take the epoch to write."""

    def __init__(self, storage: Storage, *, folder: StateFolder | None = None, forgotten_too: bool = False) -> None:
        """Open a journal over a storage. ``folder``: state folder that holds it.

        Raises ``StoreError``; for a job that was forgotten ``ContentRemoved``, unless ``forgotten_too``.
        """
        self._storage = storage
        self.took_s = 0.0
        """Seconds that the last commit took."""
        self.folder = folder
        self.job = storage.job
        self.remote = storage.remote
        self.epoch = 0
        self._check_format()
        if not forgotten_too and self.meta("forgotten") is not None:
            self.close()
            raise ContentRemoved(
                f"job {self.job} was forgotten: its prompts and replies are gone, "
                f"`{advised(folder, 'status', self.job)}` has its figures, "
                f"`{advised(folder, 'rm', self.job)}` makes its name free"
            )
        self._seq = self._last()

    def _last(self) -> int:
        return max(self._storage.last(), self.dropped())

    def _check_format(self) -> None:
        """Raise ``UnsupportedFormat`` for a journal that this release cannot read.

        Journals of all releases have the fact ``format``. A readable older journal keeps its format number until its
        next writer, so that the release that wrote it may still read it.
        """
        found = self.meta("format")
        if found is None:
            self.set_meta("format", b"%d" % codec.FORMAT)
        elif not codec.OLDEST <= int(found) <= codec.FORMAT:
            self.close()
            newer = int(found) > codec.FORMAT
            reads = f"{codec.OLDEST} to {codec.FORMAT}" if codec.OLDEST < codec.FORMAT else f"{codec.FORMAT}"
            do = "upgrade cortex-bounded-calls to open it" if newer else "open it with the release that wrote it"
            raise UnsupportedFormat(
                f"job {self.job} was written by {'a newer' if newer else 'an older'} release (journal format "
                f"{int(found)}, this one reads {reads}): {do}"
            )

    @property
    def seq(self) -> int:
        """Number of the last turn; 0 before the first."""
        return int(self._seq)

    def close(self) -> None:
        """Close the storage."""
        self._storage.close()

    # -- small facts -----------------------------------------------------------------------------------------------

    def meta(self, key: str) -> bytes | None:
        """Return a fact: a small value stored beside the turns. None if it is not set."""
        return self._storage.meta(key)

    def set_meta(self, key: str, value: bytes) -> None:
        """Store a fact. Raises ``Fenced`` for a writer whose epoch is over."""
        self._storage.set_meta(key, value, self.epoch)

    def zero_what_goes(self) -> None:
        """Overwrite rows that are deleted from now on, if the storage can."""
        self._storage.zero_what_goes()

    def drop(self, upto: int, shrink: bool = False) -> None:
        """Remove the turns up to this one and the snapshots before it. The snapshot of this turn replaces them, and is
        whole.

        ``shrink``: no further turns will come, so disk space may be given back. Raises ``Fenced``.
        """
        self._storage.drop(upto, self.first_at_s(), shrink, self.epoch)

    def forget(self, figures: bytes) -> None:
        """Remove all turns and snapshots, and keep these figures. The previous writer is fenced."""
        self._storage.zero_what_goes()
        self.take_epoch(b"")
        self._storage.forget(figures, self.epoch)

    # -- writing ---------------------------------------------------------------------------------------------------

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """Become the only writer: the previous writer is fenced from now on. ``owner`` identifies this writer."""
        self.epoch = self._storage.take_epoch(owner, least)
        self._seq = self._last()
        if self.meta("format") != b"%d" % codec.FORMAT:
            self.set_meta("format", b"%d" % codec.FORMAT)
        return self.epoch

    def newest_epoch(self) -> int:
        """Return the newest epoch that any writer has taken; 0 if none was."""
        return self._storage.newest_epoch()

    def append(self, blobs: Sequence[bytes]) -> int:
        """Commit turns, durable on return, and return the last one's number.

        Raises ``Fenced`` or ``DiskFull``; or ``DatabaseUnreachable``, and then the outcome is unknown: append the same
        turns again.
        """
        seq, began_s = self._seq, time.perf_counter()
        self._storage.append(self.epoch, seq + 1, blobs)
        self.took_s = time.perf_counter() - began_s
        self._seq = seq = seq + len(blobs)
        return seq

    def snapshot(self, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        """Store K as it was after turn ``seq``, when ``emitted`` results had been given out.

        Of all snapshots the newest ``keep`` are kept; 0: all. For a removed snapshot its turns are replayed, so they
        must be in the journal.
        """
        self._storage.put_snapshot(seq, emitted, blob, keep, self.epoch)

    def piece(self, generation: int, number: int, blob: bytes) -> None:
        """Store a piece (``cortex.journal.snapshots``) for the snapshots that follow."""
        self._storage.put_piece(generation, number, blob, self.epoch)

    def sweep(self) -> None:
        """Remove the pieces that belong to no snapshot."""
        if self._storage.count_pieces(None):
            spans = [span for _, head in self._storage.heads(0) if (span := snapshots.span_of(head)) is not None]
            self._storage.keep_pieces(spans, self.epoch)

    # -- reading ---------------------------------------------------------------------------------------------------

    def turns(self, after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Yield (number, turn) after a number, with replies filled in where the journal refers to earlier ones."""
        before = after
        for seq, blob in self._storage.turns(after):
            self._refuse_gap(before, seq)
            before = seq
            yield seq, self._filled(codec.decode_turn(blob))
        if before == after < self.dropped():
            self._refuse_gap(after, 0)

    def _refuse_gap(self, before: int, seq: int) -> None:
        if seq != before + 1 and self.dropped():
            raise TextRedacted(
                f"job {self.job} keeps no text (--no-keep-text): what it asked and was answered left its journal "
                "when its results were on disk"
            )

    def _turn(self, seq: int) -> events.Turn | None:
        found = next(self._storage.turns(seq - 1, seq), None)
        return codec.decode_turn(found[1]) if found is not None else None

    def first_at_s(self) -> float:
        """Return the time of the job's first turn, even if it was removed, in seconds since 1970; 0 if there was none.
        """
        if (found := self.meta("first_at_s")) is not None:
            return float(found)
        first = next(self._storage.turns(0, count=1), None)
        return codec.turn_head(first[1])[0] if first is not None else 0.0

    def dropped(self) -> int:
        """Return the number of the last turn that was removed; 0: none."""
        found = self.meta("dropped")
        return int(found) if found else 0

    def as_it_is(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which all reads see the journal at one moment, despite concurrent writes."""
        return self._storage.as_it_is()

    def page(self, after: int, count: int) -> Iterator[tuple[int, events.Turn]]:
        """Yield the next turns, at most ``count``.

        Nothing stays open between two pages, so that turns written meanwhile are seen: an open read sees the journal as
        it was at the start of the read.
        """
        rows = list(self._storage.turns(after, count=count))
        if not rows and after < self.dropped():
            self._refuse_gap(after, 0)
        for seq, blob in rows:
            self._refuse_gap(after, seq)
            after = seq
            yield seq, self._filled(codec.decode_turn(blob))

    def reopenings(self) -> list[tuple[int, events.RowsReopened]]:
        """Return (turn number, event) of failed rows reopened since the job was last opened."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        found = []
        for seq in (number for number in numbers if number > self.opened_at()):
            turn = self._turn(seq) or events.Turn(0.0, ())
            found += [(seq, event) for b in turn.batches for event in b if type(event) is events.RowsReopened]
        return found

    def will_reopen(self) -> None:
        """Note that the next turn reopens failed rows: readers of results look there."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        self.set_meta("reopened", msgspec.json.encode(sorted({*numbers, self.seq + 1})))

    def turns_with(self, needles: Sequence[bytes], after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Yield the turns after a number whose bytes contain each of the ``needles``; other turns need not be decoded.
        """
        for seq, blob in self._storage.turns(after, holding=needles):
            yield seq, self._filled(codec.decode_turn(blob))

    def openings(self) -> Iterator[tuple[int, events.Turn]]:
        """Yield the turns that opened the job."""
        for seq, turn in self.turns_with((b"opened",)):
            if codec.opening(turn) is not None:
                yield seq, turn

    def blobs(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, encoded turn) up to ``upto``."""
        return self._storage.turns(0, upto)

    def heads(self, upto: int, count: int | None = None) -> Iterator[tuple[float, bytes]]:
        """Yield (time, account) of turns, from ``upto`` backwards; ``count``: at most as many."""
        return (codec.turn_head(blob) for _, blob in self._storage.turns(0, upto, down=True, count=count))

    def account(self, upto: int) -> bytes:
        """Return the account of the job as of this turn (``journal.Account``); empty if no turn holds one."""
        return next((account for _, account in self.heads(upto) if account), b"")

    def _filled(self, turn: events.Turn) -> events.Turn:
        if not any(type(event) is events.ReplyRecalled and event.reply is None for b in turn.batches for event in b):
            return turn
        return msgspec.structs.replace(turn, batches=tuple(tuple(map(self._fill, b)) for b in turn.batches))

    def _fill(self, event: events.Event) -> events.Event:
        if type(event) is not events.ReplyRecalled or event.reply is not None:
            return event
        source = self.event(event.seq, event.position)
        if not isinstance(source, (events.Answered, events.ReplyRecalled)) or source.hash != event.hash:
            raise StoreError(f"{self.job}: turn {event.seq} does not contain the reply that a later turn refers to")
        return msgspec.structs.replace(event, reply=source.reply)

    def event(self, seq: int, position: int) -> events.Event | None:
        """Return an event by its address: the turn, and its position among all events of the turn."""
        turn = self._turn(seq)
        flat = [event for batch in turn.batches for event in batch] if turn is not None else []
        return flat[position] if position < len(flat) else None

    def latest_snapshot(self, emitted_max: int | None = None, upto: int | None = None) -> tuple[int, bytes] | None:
        """Return (turn, snapshot) of the newest snapshot since the job was last opened; None if there is none.

        ``emitted_max``: largest number of results given out. ``upto``: last turn.
        """
        emitted, last = (1 << 62 if bound is None else bound for bound in (emitted_max, upto))
        for _ in range(READS):
            lacking = False
            for seq, blob in self._storage.snapshots(self.opened_at(), last, emitted, None):
                if (whole := self._whole(blob)) is not None:
                    return seq, whole
                lacking = True
            if not lacking:
                break
        return None

    def snapshots(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Yield (turn, K) of the snapshots after these turns, latest first."""
        for seq, blob in self._storage.snapshots(after, upto, 1 << 62, None):
            if (whole := self._whole(blob)) is not None:
                yield seq, whole

    def pieces(self) -> SnapshotPieces:
        """Return the pieces of the newest snapshot, from which K is read, so that further snapshots can reuse them."""
        for _, blob in self._storage.snapshots(self.opened_at(), 1 << 62, 1 << 62, 1):
            parts = snapshots.split(blob)
            if parts is not None and self._has(PieceSpan.of(parts.span)):
                return SnapshotPieces(self.epoch, parts)
        return SnapshotPieces(self.epoch)

    def _whole(self, blob: bytes) -> bytes | None:
        """Return a snapshot with its pieces; None if pieces are missing: the snapshot was replaced meanwhile."""
        parts = snapshots.split(blob)
        if parts is None:
            return blob
        generation, first, last = PieceSpan.of(parts.span)
        pieces: list[bytes] = []
        for number in range(first, last + 1):
            if (piece := self._storage.piece(generation, number)) is None:
                return None
            pieces.append(piece)
        return snapshots.joined(parts, pieces)

    def replay_from(self) -> int:
        """Return the number of the turn after which a replay begins: that of the newest snapshot, or of the opening."""
        opened_at = self.opened_at()
        for seq, head in self._storage.heads(opened_at):
            span = snapshots.span_of(head)
            if span is None or self._has(span):
                return seq
        return opened_at

    def _has(self, span: PieceSpan) -> bool:
        return self._storage.count_pieces(span) == span.last - span.first + 1

    def opened_at(self) -> int:
        """Return the number of the turn before the one that last opened the job: replay starts after it."""
        return int(self.meta("opened_at") or 0)

    def size_bytes(self) -> int:
        """Return the size of the journal in bytes."""
        return self._storage.size_bytes()


def replies_in(blobs: Iterable[tuple[int, events.Turn]]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (hash, seq, position) of every reply that these turns paid for: the content of the index of replies."""
    for seq, turn in blobs:
        position = 0
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    yield event.hash, seq, position
                position += 1
