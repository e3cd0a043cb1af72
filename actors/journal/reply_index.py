"""Remembered replies: an index over the hashes of all questions answered in the journals of a state folder.

The index is not part of a turn's commit and can be rebuilt from the journals, so it is written lazily, without waiting
for the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Protocol

from actors.journal.journal import DatabaseUnreachable, Journal, StateFolder, StoreError, replies_in
from actors.journal.storage import ReplyIndex
from cortex.state import events
from cortex.values.reply import Reply

FLUSH_AT = 4_096
"""Replies after which the index is written, by default."""


def remembered(folder: StateFolder, hashes: Sequence[bytes]) -> frozenset[int]:
    """Return the indexes of these questions that have a remembered reply, as far as the index of replies is up to date.
    """
    known = folder.remembered(hashes)
    places = {hash_: place for place, hash_ in enumerate(hashes)}
    return frozenset(places[hash_] for hash_ in known)


class CachedReply:
    """Address of a remembered reply, and the reply."""

    __slots__ = ("job", "position", "reply", "seq")

    def __init__(self, job: str, seq: int, position: int, reply: Reply) -> None:
        self.job, self.seq, self.position, self.reply = job, seq, position, reply


class JournalLookup(Protocol):
    """Access to the journals of other jobs."""

    def journal(self, job: str) -> Journal:
        """Return the journal of a job. Raises ``StoreError``."""

    def jobs(self) -> list[str]:
        """Return the names of all jobs."""


class ReplyCache:
    """Index of replies of one state folder, as seen by one job's channel. ``flush_at``: replies that are held until
    the index is written.
    """

    def __init__(self, folder: JournalLookup, job: str, index: ReplyIndex, flush_at: int = FLUSH_AT) -> None:
        self._folder = folder
        self._flush_at = flush_at
        self._job = job
        self._index = index
        self._pending: list[tuple[bytes, int, int]] = []
        """Replies not written to the index yet: hash, turn, position."""
        self._places: dict[bytes, tuple[int, int]] = {}
        """Addresses of pending replies, by hash, filled in by ``find``."""
        self._seq = 0
        self._journals: dict[str, Journal] = {}

    def catch_up(self, own: Journal, anew: bool = False) -> None:
        """Add the replies that this job's journal holds and the index lacks: its last run may have been killed. An
        index that is ahead of its journal, which has lost its end or is another one, takes all of its replies anew.

        ``anew``: the job begins anew, and so do its child jobs, under other names: the replies of their journals are
        added as well, since no other run would do so.
        """
        after = self._index.seq_of(self._job)
        if after < own.seq:
            self.note(own.seq, replies_in(own.turns(after)))
        elif after > own.seq:  # at once: when the journal has as many turns again, nothing tells it any more
            self.note(own.seq, replies_in(own.turns()))
            self.flush()
        if anew:
            for name in self._folder.jobs():
                if name.startswith(f"{self._job}~"):
                    with contextlib.suppress(StoreError):  # the questions of an unreadable journal are asked again
                        self._catch_up_with(name)

    def _catch_up_with(self, child: str) -> None:
        source, after = self._journal(child), self._index.seq_of(child)
        after = after if after <= source.seq else 0
        if after < source.seq:
            self._index.put(child, source.seq, list(replies_in(source.turns(after))))

    def empty(self) -> bool:
        """Return True if no reply is remembered at all, so that lookups are useless."""
        return not self._pending and self._index.empty()

    def note(self, seq: int, paid: Iterable[tuple[bytes, int, int]]) -> None:
        """Add replies that are now in this job's journal, whose last turn is ``seq``."""
        self._pending += paid
        self._seq = seq
        if len(self._pending) >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write the index. A failure only costs speed later: the journals hold the truth."""
        with contextlib.suppress(StoreError):
            self._index.put(self._job, self._seq, self._pending)
            self._pending, self._places = [], {}

    def find(self, hashes: list[bytes], own: Journal) -> dict[bytes, CachedReply]:
        """Return the remembered replies among these questions, by hash."""
        own_places = self._places
        own_places.update((hash_, (seq, at)) for hash_, seq, at in self._pending[len(own_places) :])
        places = {h: (self._job, *own_places[h]) for h in hashes if h in own_places}
        for hash_, job, seq, position in self._index.find(hashes):
            places.setdefault(bytes(hash_), (job, seq, position))
        found = {}
        for hash_, (job, seq, position) in places.items():
            reply = self._read(job, seq, position, hash_, own)
            if reply is not None:
                found[hash_] = CachedReply(job, seq, position, reply)
        return found

    def _read(self, job: str, seq: int, position: int, hash_: bytes, own: Journal) -> Reply | None:
        """Return the reply itself; None if its journal was removed or begun anew: the question is then asked again."""
        try:
            source = own if job == self._job else self._journal(job)
            event = source.event(seq, position)
        except DatabaseUnreachable:
            raise  # the reply exists and was paid for: do not ask again
        except StoreError:
            return None
        if isinstance(event, events.Answered) and event.hash == hash_:
            return event.reply
        return None

    def _journal(self, job: str) -> Journal:
        if job not in self._journals:
            self._journals[job] = self._folder.journal(job)
        return self._journals[job]

    def close(self) -> None:
        """Write pending replies and close the files."""
        self.flush()
        for other in self._journals.values():
            other.close()
        self._index.close()
