"""Remembered replies: an index over the hashes of all questions that the journals of a state folder hold answers to.

It stays out of the commit that absorbs and can be rebuilt from the journals, so it is written lazily, without waiting
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

_FLUSH_AT = 4_096


def remembered(folder: StateFolder, hashes: Sequence[bytes]) -> frozenset[int]:
    """Which of these questions a reply is remembered to, by their places; as far as the index knows."""
    known = folder.remembered(hashes)
    places = {hash_: place for place, hash_ in enumerate(hashes)}
    return frozenset(places[hash_] for hash_ in known)


class CachedReply:
    """Where a remembered reply stands, and the reply."""

    __slots__ = ("job", "position", "reply", "seq")

    def __init__(self, job: str, seq: int, position: int, reply: Reply) -> None:
        self.job, self.seq, self.position, self.reply = job, seq, position, reply


class JournalLookup(Protocol):
    """Where other jobs' journals stand."""

    def journal(self, job: str) -> Journal:
        """That of one job. Raises ``StoreError``."""

    def jobs(self) -> list[str]:
        """Names of all jobs."""


class ReplyCache:
    """The index of one state folder, as one job's channel sees it."""

    def __init__(self, folder: JournalLookup, job: str, index: ReplyIndex) -> None:
        self._folder = folder
        self._job = job
        self._index = index
        self._pending: list[tuple[bytes, int, int]] = []
        """What is not written yet: hash, turn, place in it."""
        self._places: dict[bytes, tuple[int, int]] = {}
        """Where those stand that somebody has looked for since."""
        self._seq = 0
        self._journals: dict[str, Journal] = {}

    def catch_up(self, own: Journal, anew: bool = False) -> None:
        """Take in what this job's journal holds and the index does not: its last run may have been killed. ``anew``: it
        begins anew, and so do its child jobs, under other names: nobody else would take in what theirs hold."""
        after = self._index.seq_of(self._job)
        if after < own.seq:
            self.note(own.seq, replies_in(own.turns(after)))
        if anew:
            for name in self._folder.jobs():
                if name.startswith(f"{self._job}~"):
                    with contextlib.suppress(StoreError):  # one that cannot be read is asked again
                        self._catch_up_with(name)

    def _catch_up_with(self, child: str) -> None:
        source, after = self._journal(child), self._index.seq_of(child)
        if after < source.seq:
            self._index.put(child, source.seq, list(replies_in(source.turns(after))))

    def empty(self) -> bool:
        """Whether nothing is remembered at all: then there is no use in looking."""
        return not self._pending and self._index.empty()

    def note(self, seq: int, paid: Iterable[tuple[bytes, int, int]]) -> None:
        """These replies stand in this job's journal now, whose last turn is ``seq``."""
        self._pending += paid
        self._seq = seq
        if len(self._pending) >= _FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        """Write the index. A failure costs only speed later: the journals hold the truth."""
        with contextlib.suppress(StoreError):
            self._index.put(self._job, self._seq, self._pending)
            self._pending, self._places = [], {}

    def find(self, hashes: list[bytes], own: Journal) -> dict[bytes, CachedReply]:
        """The remembered replies among these questions."""
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
        """The reply itself, or None where that journal is gone or was made anew: then it is asked again."""
        try:
            source = own if job == self._job else self._journal(job)
            event = source.event(seq, position)
        except DatabaseUnreachable:
            raise  # it is there, and was paid for
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
        """Write what is pending and let go of the files."""
        self.flush()
        for other in self._journals.values():
            other.close()
        self._index.close()
