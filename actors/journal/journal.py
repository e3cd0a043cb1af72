"""Journal of a job, over any storage. ``actors.journal.state_folder`` holds the journals of many jobs.

The guarantees are implemented here once: one commit a turn, and every write checks, inside its transaction, that the
writer's epoch is still the newest, so that an orphan of a killed run can write nothing. There are two storages:
``actors.journal.sqlite``, a file a job on a disk of this machine, and ``actors.journal.postgres``, a database that can
be reached from any machine.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from actors.journal.errors import ContentRemoved as ContentRemoved
from actors.journal.errors import Damaged as Damaged
from actors.journal.errors import DatabaseUnreachable as DatabaseUnreachable
from actors.journal.errors import DiskFull as DiskFull
from actors.journal.errors import Fenced as Fenced
from actors.journal.errors import FolderFault as FolderFault
from actors.journal.errors import JobEnded as JobEnded
from actors.journal.errors import JobHeld as JobHeld
from actors.journal.errors import NoSuchJob as NoSuchJob
from actors.journal.errors import StoreError as StoreError
from actors.journal.errors import TextRedacted as TextRedacted
from actors.journal.errors import UnsupportedFormat as UnsupportedFormat
from actors.journal.errors import removed
from actors.journal.state_folder import StateFolder as StateFolder
from actors.journal.state_folder import advised
from actors.journal.state_folder import checked_name as checked_name
from actors.journal.storage import Storage
from cortex.journal import codec, seals, snapshots
from cortex.journal.snapshots import PieceSpan, SnapshotPieces
from cortex.state import events

_log = logging.getLogger("cortex.journal")

MISSING_MAX = 1_000
"""Missing turns that are named one by one, at most."""
NAME = "job"
"""Fact: name of the job whose journal it is."""
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
        self._sealed: tuple[int, int] | None = None
        """First turn, and first generation of pieces, that have seals; None: none has, as far as is known."""
        self._bare_upto = 0
        """Last turn that certainly has none."""
        self._own = 0
        """Checksum of the last turn, for the next one."""
        self._lost: StoreError | None = None
        """Error by which the journal was found to have lost its name."""
        self._check_format()
        if not forgotten_too and self.meta("forgotten") is not None:
            self.close()
            raise ContentRemoved(
                f"job {self.job} was forgotten: its prompts and replies are gone, "
                f"`{advised(folder, 'status', self.job)}` has its figures, "
                f"`{advised(folder, 'rm', self.job)}` makes its name free"
            )
        self._seq = self._last()
        if self._seals() is not None and self._storage.facts() is None:
            raise self._damaged(0, "its facts have lost their checksums")
        self._head = int(self.meta("head") or 0)
        """Turn that a job ended with: it must be there."""
        self._see_whose()

    def _last(self) -> int:
        return max(self._storage.last(), self.dropped())

    def _check_format(self) -> None:
        """Raise ``UnsupportedFormat`` for a journal that this release cannot read.

        Journals of all releases have the fact ``format``. A readable older journal keeps its format number until its
        next writer, so that the release that wrote it may still read it.
        """
        found = self.meta("format")
        if found is None and self._storage.last():
            raise self._damaged(0, "its facts are missing")
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

    def _see_whose(self) -> None:
        """Raise ``Damaged`` for the journal of another job, by its fact ``job``, or by the opening if it has none."""
        named = self.meta(NAME)
        found = named.decode(errors="replace") if named is not None else self._opened_as()
        if found and found != self.job:
            self.close()
            raise self._damaged(0, f"its journal is that of the job {found!r}")

    def _opened_as(self) -> str:
        """Return the job's name in the turn that last opened it; empty if there is none that can be read."""
        opened_at = self.opened_at()
        try:
            record = next(self._storage.turns(opened_at, opened_at + 1), None)
            terms = codec.opening(codec.decode_turn(self._bare(*record)[0])) if record is not None else None
        except (StoreError, msgspec.MsgspecError, UnicodeDecodeError):
            terms = None  # whoever reads the turn is told
        return terms.job if terms is not None else ""

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
        if self._head > self._seq:
            raise self._damaged(self._seq + 1, "it and all later turns are missing")
        self.epoch = self._storage.take_epoch(owner, least)
        self._seq = self._last()
        self._own = self._checksum_of_last()
        if self.meta("format") != b"%d" % codec.FORMAT:
            self.set_meta("format", b"%d" % codec.FORMAT)
        if self.meta(NAME) is None:
            self.set_meta(NAME, self.job.encode())
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
        own, records = self._own, []
        for number, blob in enumerate(blobs, seq + 1):
            record, own = seals.sealed(number, blob, own)
            records.append(record)
        self._storage.append(self.epoch, seq + 1, records)
        self.took_s = time.perf_counter() - began_s
        self._seq, self._own = seq + len(blobs), own
        return self._seq

    def note_end(self) -> None:
        """Note the number of the last turn, at the end of a job: should it be lost from the disk, that is noticed."""
        self.set_meta("head", b"%d" % self._seq)

    def snapshot(self, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        """Store K as it was after turn ``seq``, when ``emitted`` results had been given out.

        Of all snapshots the newest ``keep`` are kept; 0: all. For a removed snapshot its turns are replayed, so they
        must be in the journal.
        """
        if self._is_sealed(seq):
            blob = seals.sealed(seq, blob, seals.SNAPSHOT)[0]
        self._storage.put_snapshot(seq, emitted, blob, keep, self.epoch)

    def piece(self, generation: int, number: int, blob: bytes) -> None:
        """Store a piece (``cortex.journal.snapshots``) for the snapshots that follow."""
        self._storage.put_piece(generation, number, self._sealed_piece(generation, number, blob), self.epoch)

    def sweep(self) -> None:
        """Remove the pieces that belong to no snapshot."""
        if self._storage.count_pieces(None):
            spans = [span for _, head in self._storage.heads(0) if (span := snapshots.span_of(head)) is not None]
            self._storage.keep_pieces(spans, self.epoch)

    # -- reading ---------------------------------------------------------------------------------------------------

    def turns(self, after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Yield (number, turn) after a number, with replies filled in where the journal refers to earlier ones."""
        before = after
        for seq, blob in self._blobs(after):
            self._refuse_gap(before, seq)
            before = seq
            yield seq, self._filled(self._decoded(seq, blob))
        if before == after < self.dropped():
            self._refuse_gap(after, 0)

    def _refuse_gap(self, before: int, seq: int) -> None:
        if seq != before + 1 and self.dropped():
            raise TextRedacted(
                f"job {self.job} keeps no text (--no-keep-text): what it asked and was answered left its journal "
                "when its results were on disk"
            )

    def _turn(self, seq: int) -> events.Turn | None:
        found = next(self._blobs(seq - 1, seq), None)
        return self._decoded(seq, found[1]) if found is not None else None

    def first_at_s(self) -> float:
        """Return the time of the job's first turn, even if it was removed, in seconds since 1970; 0 if there was none.
        """
        if (found := self.meta("first_at_s")) is not None:
            return float(found)
        first = next(self._blobs(0, count=1), None)
        return codec.turn_head(first[1])[0] if first is not None else 0.0

    def last_times(self) -> tuple[float, float]:
        """Return the times of the last turn (``codec.turn_times``); (0, 0) if there is none."""
        last = next(self._blobs(0, down=True, count=1), None)
        return codec.turn_times(last[1]) if last is not None else (0.0, 0.0)

    def idle_s(self) -> float | None:
        """Return the seconds since the last turn, by the clock of the store; None if it has none of its own."""
        return self._storage.idle_s()

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
        rows = list(self._blobs(after, count=count))
        if not rows and after < self.dropped():
            self._refuse_gap(after, 0)
        for seq, blob in rows:
            self._refuse_gap(after, seq)
            after = seq
            yield seq, self._filled(self._decoded(seq, blob))

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
        for seq, blob in self._blobs(after, holding=needles):
            yield seq, self._filled(self._decoded(seq, blob))

    def openings(self) -> Iterator[tuple[int, events.Turn]]:
        """Yield the turns that opened the job."""
        for seq, turn in self.turns_with((b"opened",)):
            if codec.opening(turn) is not None:
                yield seq, turn

    def blobs(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """Yield (number, encoded turn) up to ``upto``."""
        return self._blobs(0, upto)

    def heads(self, upto: int, count: int | None = None) -> Iterator[tuple[float, bytes]]:
        """Yield (time, account) of turns, from ``upto`` backwards; ``count``: at most as many."""
        return (codec.turn_head(blob) for _, blob in self._blobs(0, upto, down=True, count=count))

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
            for seq, record in self._storage.snapshots(self.opened_at(), last, emitted, None):
                blob = self._snapshot(seq, record)
                if blob is not None and (whole := self._whole(seq, blob)) is not None:
                    return seq, whole
                lacking = blob is not None
            if not lacking:
                break
        return None

    def snapshots(self, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """Yield (turn, K) of the snapshots after these turns, latest first."""
        for seq, record in self._storage.snapshots(after, upto, 1 << 62, None):
            blob = self._snapshot(seq, record)
            if blob is not None and (whole := self._whole(seq, blob)) is not None:
                yield seq, whole

    def pieces(self) -> SnapshotPieces:
        """Return the pieces of the newest snapshot, from which K is read, so that further snapshots can reuse them."""
        for seq, record in self._storage.snapshots(self.opened_at(), 1 << 62, 1 << 62, 1):
            blob = self._snapshot(seq, record)
            parts = snapshots.split(blob) if blob is not None else None
            stands = parts is not None and self._continues(PieceSpan.of(parts.span))
            if stands and blob is not None and self._whole(seq, blob) is not None:
                return SnapshotPieces(self.epoch, parts)
        return SnapshotPieces(self.epoch)

    def _continues(self, span: PieceSpan) -> bool:
        """Return whether further pieces may be added to these: all are there, and all have seals."""
        return self._has(span) and (sealed := self._seals()) is not None and span.generation >= sealed[1]

    def _snapshot(self, seq: int, record: bytes) -> bytes | None:
        """Return a snapshot without its seal; None, with a warning, if it is damaged: its turns are replayed."""
        try:
            return seals.opened(seq, record)[0] if self._is_sealed(seq) else record
        except seals.BadSeal:
            _log.warning("job %s: its snapshot of turn %d is damaged: its turns are replayed instead", self.job, seq)
            return None

    def _whole(self, seq: int, blob: bytes) -> bytes | None:
        """Return a snapshot with its pieces; None if pieces are missing: the snapshot was replaced meanwhile.

        None, with a warning, also if a piece is damaged.
        """
        parts = snapshots.split(blob)
        if parts is None:
            return blob
        generation, first, last = PieceSpan.of(parts.span)
        sealed = self._seals()
        pieces: list[bytes] = []
        for number in range(first, last + 1):
            if (piece := self._storage.piece(generation, number)) is None:
                return None
            try:
                if sealed is not None and generation >= sealed[1]:
                    piece = seals.opened(_piece_number(generation, number), piece)[0]
            except seals.BadSeal:
                _log.warning("job %s: a piece of its snapshot of turn %d is damaged: its turns are replayed instead",
                             self.job, seq)  # fmt: skip
                return None
            pieces.append(piece)
        return snapshots.joined(parts, pieces)

    def _sealed_piece(self, generation: int, number: int, blob: bytes) -> bytes:
        sealed = self._seals()
        if sealed is None or generation < sealed[1]:
            return blob
        return seals.sealed(_piece_number(generation, number), blob, seals.PIECE)[0]

    # -- seals -------------------------------------------------------------------------------------------------------

    def _seals(self) -> tuple[int, int] | None:
        """Return the first turn and the first generation of pieces that have seals; None: none has."""
        if self._sealed is None:
            last = self._last()
            found = (self.meta("sealed") or b"").split()
            if found:
                self._sealed = int(found[0]), int(found[1])
            else:
                self._bare_upto = last
        return self._sealed

    def see_stands(self) -> None:
        """Raise ``StoreError`` if the journal is not under its name any more, after an attempt to put it back.

        The error is final: later calls raise it again, although something stands under the name by then.
        """
        if self._lost is not None:
            raise self._lost
        try:
            self._storage.see_stands()
        except StoreError as error:
            self._lost = error
            raise

    def see_writable(self) -> None:
        """Raise the error that the next turn would meet: that of ``see_stands``, or of ``see_own``. Adds nothing."""
        self.see_stands()
        self.see_own()

    def see_own(self) -> None:
        """Raise ``Fenced`` if another writer has taken an epoch of this journal, ``StoreError`` if it was removed."""
        if (newest := self.newest_epoch()) == self.epoch:
            return
        if not newest:
            raise removed(self.job)
        raise Fenced(f"{self.job}: another run has taken the job over")

    def damaged(self, seq: int) -> Damaged:
        """Return the error for a turn that is damaged."""
        return self._damaged(seq, "its bytes are not those that were written, or it is missing")

    def see_structure(self) -> None:
        """Check the structure of the storage, if it can. Raises ``Damaged``."""
        self._storage.see_structure()

    def damages(self) -> Iterator[tuple[str, int]]:
        """Yield (kind, number) of each record that is not what was written: ``turn`` or ``snapshot``; or
        that has no seal to tell, as journals of earlier releases: ``unsealed``.

        All that is stored is read. A turn that is missing, or does not follow the one before, counts as a damaged one.
        """
        expected, last_own = max(1, self.dropped() + 1), 0
        for seq, record in self._storage.turns(0):
            yield from (("turn", missing) for missing in range(expected, min(seq, expected + MISSING_MAX)))
            expected, before_own, last_own = seq + 1, last_own, 0
            try:
                blob, before, last_own = self._bare(seq, record)
                codec.decode_turn(blob)
                if before is not None and before_own and before != before_own:
                    yield "turn", seq
            except (Damaged, msgspec.MsgspecError, UnicodeDecodeError):
                yield "turn", seq
            if not self._is_sealed(seq):
                yield "unsealed", seq
        known = max(self._seq, self._head) + 1
        yield from (("turn", missing) for missing in range(expected, min(known, expected + MISSING_MAX)))
        for seq, record in self._storage.snapshots(0, 1 << 62, 1 << 62, None):
            bare = self._snapshot(seq, record)
            if bare is None or self._whole(seq, bare) is None:
                yield "snapshot", seq

    def _is_sealed(self, seq: int) -> bool:
        if self._sealed is None and seq > self._bare_upto:
            self._seals()
        return self._sealed is not None and seq >= self._sealed[0]

    def _checksum_of_last(self) -> int:
        """Return the checksum of the last turn, which the next one names; 0 if it has none, or was removed."""
        last = next(self._storage.turns(self._seq - 1, self._seq), None)
        if last is None or not self._is_sealed(self._seq):
            return 0
        self._bare(*last)
        return seals.own_of(last[1])

    def _bare(self, seq: int, record: bytes) -> tuple[bytes, int | None, int]:
        """Return a turn without its seal, and the checksums before and of it; None and 0 if it has no seal.

        Raises ``Damaged``.
        """
        if not self._is_sealed(seq):
            return record, None, 0
        try:
            return seals.opened(seq, record)
        except seals.BadSeal:
            raise self._damaged(seq, "its bytes are not those that were written") from None

    def _blobs(
        self, after: int, upto: int | None = None, *, down: bool = False, count: int | None = None,
        holding: Sequence[bytes] = (),
    ) -> Iterator[tuple[int, bytes]]:  # fmt: skip
        """Yield (number, encoded turn) as ``Storage.turns``, checked. Raises ``Damaged``."""
        last, near = 0, 0
        expected = 0 if down or holding or upto is not None or count is not None else max(self._seq, self._head)
        try:
            for seq, record in self._storage.turns(after, upto, down=down, count=count, holding=holding):
                blob, before, own = self._bare(seq, record)
                if not holding:
                    if (last or not down) and seq != ((last - 1) if down else (last or after) + 1):
                        self._see_gap(last or after, seq)
                    elif last and before is not None and near and (own != near if down else before != near):
                        raise self._damaged(max(seq, last), "it does not follow the turn before it")
                last, near = seq, (before or 0) if down else own
                yield seq, blob
        except Damaged as error:
            if error.seq:
                raise
            raise self._damaged((last or after) + (-1 if down else 1), str(error)) from None
        if max(last, after) < expected and self.dropped() < expected:
            raise self._damaged(max(last, after) + 1, "it and all later turns are missing")

    def _see_gap(self, before: int, seq: int) -> None:
        """Raise ``Damaged`` for turns that are missing, and were not removed on purpose."""
        low, high = sorted((before, seq))
        if self.dropped() < high - 1:
            raise self._damaged(low + 1, "it is missing")

    def _decoded(self, seq: int, blob: bytes) -> events.Turn:
        try:
            return codec.decode_turn(blob)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._damaged(seq, "it cannot be read") from None

    def _damaged(self, seq: int, what: str) -> Damaged:
        """Return the error for a damaged journal, as one line with what can be done."""
        verify = f"`{advised(self.folder, 'verify', self.job)}` says what is whole"
        if not seq:
            return Damaged(f"job {self.job} is damaged: {what}; {verify}; bring back a backup of its state folder")
        ways = "bring back a backup of its state folder"
        if seq > 1:
            options = f"--at {seq - 1}"
            ways += f", or go on from the turn before with `{advised(self.folder, 'fork', self.job, options)}`"
        return Damaged(f"job {self.job} is damaged at turn {seq:,}: {what}; {verify}; {ways}", seq)

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


def _piece_number(generation: int, number: int) -> int:
    return generation << 32 | number


def replies_in(blobs: Iterable[tuple[int, events.Turn]]) -> Iterator[tuple[bytes, int, int]]:
    """Yield (hash, seq, position) of every reply that these turns paid for: the content of the index of replies."""
    for seq, turn in blobs:
        position = 0
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    yield event.hash, seq, position
                position += 1
