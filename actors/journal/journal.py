"""The journal of a job, over whatever keeps its rows. ``actors.journal.state_folder`` has what the journals of many
jobs stand in.

What is promised is written here once: one commit a turn, and every write checks, inside its transaction, that the
epoch is still the writer's own, so that an orphan of a killed run can write nothing. Two things keep rows:
``actors.journal.sqlite``, a file a job on a disk of this machine, and ``actors.journal.postgres``, a database that any
machine reaches.
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
from actors.journal.state_folder import checked_name as checked_name
from actors.journal.storage import Storage
from cortex.journal import codec, snapshots
from cortex.journal.snapshots import PieceSpan, SnapshotPieces
from cortex.state import events

READS = 3
"""How often a snapshot is looked for where pieces go while it is read: whoever writes has written a newer one."""


class Journal:
    """One job's journal. Open it to read; take the epoch to write."""

    def __init__(self, storage: Storage, *, folder: StateFolder | None = None, forgotten_too: bool = False) -> None:
        """``folder``: that it stands in. Raises ``StoreError``; for a job that was forgotten ``ContentRemoved``, unless
        ``forgotten_too``."""
        self._storage = storage
        self.took_s = 0.0
        """How long the last commit took."""
        self.folder = folder
        self.job = storage.job
        self.remote = storage.remote
        self.epoch = 0
        self._check_format()
        if not forgotten_too and self.meta("forgotten") is not None:
            self.close()
            raise ContentRemoved(
                f"job {self.job} was forgotten: its prompts and replies are gone, `cortex status {self.job}` has its "
                f"figures, `cortex rm {self.job}` makes its name free"
            )
        self._seq = self._last()

    def _last(self) -> int:
        return max(self._storage.last(), self.dropped())

    def _check_format(self) -> None:
        """Journals of all releases have a fact ``format``, whatever else they have. One that this release can read
        keeps its number until somebody writes it: the release that it is of may look at it until then."""
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
        """Let go of what keeps it."""
        self._storage.close()

    # -- small facts -----------------------------------------------------------------------------------------------

    def meta(self, key: str) -> bytes | None:
        """A small fact kept beside the turns."""
        return self._storage.meta(key)

    def set_meta(self, key: str, value: bytes) -> None:
        """Keep a small fact. Raises ``Fenced`` for a writer whose epoch is over."""
        self._storage.set_meta(key, value, self.epoch)

    def zero_what_goes(self) -> None:
        """What is deleted from now on is written over, where that can be had."""
        self._storage.zero_what_goes()

    def drop(self, upto: int, shrink: bool = False) -> None:
        """Remove the turns up to this one, and the snapshots before it: that of this very turn stands in for them, and
        is whole. ``shrink``: no more will come, so the room may be given back. Raises ``Fenced``."""
        self._storage.drop(upto, self.first_at_s(), shrink, self.epoch)

    def forget(self, figures: bytes) -> None:
        """Remove all turns and snapshots, and keep these figures. Whoever wrote before is fenced."""
        self._storage.zero_what_goes()
        self.take_epoch(b"")
        self._storage.forget(figures, self.epoch)

    # -- writing ---------------------------------------------------------------------------------------------------

    def take_epoch(self, owner: bytes, least: int = 1) -> int:
        """Become the only writer: whoever wrote before is fenced from here on. ``owner`` says who it is now."""
        self.epoch = self._storage.take_epoch(owner, least)
        self._seq = self._last()
        if self.meta("format") != b"%d" % codec.FORMAT:
            self.set_meta("format", b"%d" % codec.FORMAT)
        return self.epoch

    def newest_epoch(self) -> int:
        """The last epoch that was taken, by whomever; 0 where none was."""
        return self._storage.newest_epoch()

    def append(self, blobs: Sequence[bytes]) -> int:
        """Commit turns, durable when this returns, and the last one's number. Raises ``Fenced`` or ``DiskFull``; or
        ``DatabaseUnreachable``, and then nobody knows: give the same turns again."""
        seq, began_s = self._seq, time.perf_counter()
        self._storage.append(self.epoch, seq + 1, blobs)
        self.took_s = time.perf_counter() - began_s
        self._seq = seq = seq + len(blobs)
        return seq

    def snapshot(self, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        """Keep K as it was after turn ``seq``, when ``emitted`` results had been given out, and of all snapshots the
        newest ``keep``; 0: all. What they stood in for is replayed from the turns, which must be there for it."""
        self._storage.put_snapshot(seq, emitted, blob, keep, self.epoch)

    def piece(self, generation: int, number: int, blob: bytes) -> None:
        """Keep a piece (``cortex.journal.snapshots``) for the snapshots that are kept after it."""
        self._storage.put_piece(generation, number, blob, self.epoch)

    def sweep(self) -> None:
        """Remove the pieces that belong to no snapshot."""
        if self._storage.count_pieces(None):
            spans = [span for _, head in self._storage.heads(0) if (span := snapshots.span_of(head)) is not None]
            self._storage.keep_pieces(spans, self.epoch)

    # -- reading ---------------------------------------------------------------------------------------------------

    def turns(self, after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Turns after a number, with theirs, replies filled in where the journal refers to them."""
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
        """When the job's first turn was, also where it has left; 0 where there was none."""
        if (found := self.meta("first_at_s")) is not None:
            return float(found)
        first = next(self._storage.turns(0, count=1), None)
        return codec.turn_head(first[1])[0] if first is not None else 0.0

    def dropped(self) -> int:
        """Number of the last turn that left the journal; 0: none did."""
        found = self.meta("dropped")
        return int(found) if found else 0

    def as_it_is(self) -> contextlib.AbstractContextManager[None]:
        """All that is read meanwhile is of one moment, whoever writes."""
        return self._storage.as_it_is()

    def page(self, after: int, count: int) -> Iterator[tuple[int, events.Turn]]:
        """The next turns, at most so many. Nothing stays open between two pages, so that what was written meanwhile is
        seen: an open reading sees the journal as it was when it began."""
        rows = list(self._storage.turns(after, count=count))
        if not rows and after < self.dropped():
            self._refuse_gap(after, 0)
        for seq, blob in rows:
            self._refuse_gap(after, seq)
            after = seq
            yield seq, self._filled(codec.decode_turn(blob))

    def reopenings(self) -> list[tuple[int, events.RowsReopened]]:
        """Where failed rows were opened again since the job was last opened: turn, and what was opened."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        found = []
        for seq in (number for number in numbers if number > self.opened_at()):
            turn = self._turn(seq) or events.Turn(0.0, ())
            found += [(seq, event) for b in turn.batches for event in b if type(event) is events.RowsReopened]
        return found

    def will_reopen(self) -> None:
        """The next turn is to open failed rows again: whoever reads results looks there."""
        numbers = msgspec.json.decode(self.meta("reopened") or b"[]", type=list[int])
        self.set_meta("reopened", msgspec.json.encode(sorted({*numbers, self.seq + 1})))

    def turns_with(self, needles: Sequence[bytes], after: int = 0) -> Iterator[tuple[int, events.Turn]]:
        """Those of the turns after a number whose bytes hold each of these: many need not be decoded."""
        for seq, blob in self._storage.turns(after, holding=needles):
            yield seq, self._filled(codec.decode_turn(blob))

    def openings(self) -> Iterator[tuple[int, events.Turn]]:
        """The turns that opened the job."""
        for seq, turn in self.turns_with((b"opened",)):
            if codec.opening(turn) is not None:
                yield seq, turn

    def blobs(self, upto: int) -> Iterator[tuple[int, bytes]]:
        """The first turns, with their numbers, as they are kept."""
        return self._storage.turns(0, upto)

    def heads(self, upto: int, count: int | None = None) -> Iterator[tuple[float, bytes]]:
        """When turns were and the accounts that they carry, from this turn back; ``count``: of so many."""
        return (codec.turn_head(blob) for _, blob in self._storage.turns(0, upto, down=True, count=count))

    def account(self, upto: int) -> bytes:
        """What the job had come to by this turn (``journal.Account``); empty where no turn says so."""
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
            raise StoreError(f"{self.job}: turn {event.seq} does not hold the reply that is referred to")
        return msgspec.structs.replace(event, reply=source.reply)

    def event(self, seq: int, position: int) -> events.Event | None:
        """One event by its address: the turn, and its place among all events of the turn."""
        turn = self._turn(seq)
        flat = [event for batch in turn.batches for event in batch] if turn is not None else []
        return flat[position] if position < len(flat) else None

    def latest_snapshot(self, emitted_max: int | None = None, upto: int | None = None) -> tuple[int, bytes] | None:
        """The newest snapshot since the job was last opened, not beyond so many results, nor after a turn."""
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
        """K as it was kept after these turns, the latest first."""
        for seq, blob in self._storage.snapshots(after, upto, 1 << 62, None):
            if (whole := self._whole(blob)) is not None:
                yield seq, whole

    def pieces(self) -> SnapshotPieces:
        """To go on with those of the newest snapshot, which K is read from."""
        for _, blob in self._storage.snapshots(self.opened_at(), 1 << 62, 1 << 62, 1):
            parts = snapshots.split(blob)
            if parts is not None and self._has(PieceSpan.of(parts.span)):
                return SnapshotPieces(self.epoch, parts)
        return SnapshotPieces(self.epoch)

    def _whole(self, blob: bytes) -> bytes | None:
        """A snapshot with its pieces; None where some are not there: it was replaced meanwhile."""
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
        """Number of the turn after which a replay begins: that of the newest snapshot, or of the opening."""
        opened_at = self.opened_at()
        for seq, head in self._storage.heads(opened_at):
            span = snapshots.span_of(head)
            if span is None or self._has(span):
                return seq
        return opened_at

    def _has(self, span: PieceSpan) -> bool:
        return self._storage.count_pieces(span) == span.last - span.first + 1

    def opened_at(self) -> int:
        """Number of the turn before the one that last opened the job: replay starts after it."""
        return int(self.meta("opened_at") or 0)

    def size_bytes(self) -> int:
        """Bytes that it takes."""
        return self._storage.size_bytes()


def replies_in(blobs: Iterable[tuple[int, events.Turn]]) -> Iterator[tuple[bytes, int, int]]:
    """(hash, seq, position) of every reply that these turns paid for: what the index of replies is rebuilt from."""
    for seq, turn in blobs:
        position = 0
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    yield event.hash, seq, position
                position += 1
