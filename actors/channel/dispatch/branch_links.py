"""Links of a channel to its branches, and the choice of the branch with the least load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import msgspec

from actors.messaging.payload import Payload, of_calls
from actors.ports.runtime import NEAR_BYTES_MAX, NEAR_MAX, Peer, is_near
from cortex.state import commands
from cortex.values.limits import Limits

LEVEL_BITS_MAX = 3
"""Base-2 logarithm of the load, in calls, within which branches count as equal and take turns.

That is eight calls, or an eighth of all calls that a job makes at once if this is less. With few calls each one counts:
otherwise a branch that has fallen silent would soon have all of them."""
TOGETHER_MAX = 256
"""Calls given to one branch in a row: as many as a message takes. A message costs as much as forty calls in it."""

LATE_S = 1.0
"""Seconds for the answer that a branch has sent before it ended: results may come along with it."""
CALL_BYTES = 160
"""Bytes of an encoded call without its body, about."""

_encoder = msgspec.msgpack.Encoder()


class BranchLink:
    """Link to one branch: its state, the calls given to it, and the acknowledgements sent to it."""

    __slots__ = (
        "acknowledged",
        "audited",
        "beaten",
        "brought",
        "carrying",
        "has_credential",
        "incarnation",
        "leaving",
        "level",
        "met",
        "name",
        "near",
        "now",
        "on_disk",
        "on_the_way",
        "out",
        "past",
        "peer",
        "queue",
        "seen",
        "unacknowledged",
        "up",
        "waiting",
    )  # fmt: skip

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer = peer
        self.near = is_near(peer)
        self.now: Callable[..., Any] | None = getattr(peer, "now", None) if self.near else None
        """Function that calls a method of the branch at once, without a wait; None if the branch is in another process.
        """
        self.incarnation = ""
        self.past: set[str] = set()
        """Incarnations known to be dead. Their messages may still arrive."""
        self.met = False
        """True once the branch has told what it knows of the job. It is given calls after that alone."""
        self.has_credential = True
        self.up = True
        self.leaving = False
        """True if the branch takes no more calls."""
        self.queue: dict[int, commands.Call] = {}
        """Calls that are not sent yet, by ``flight_key``."""
        self.out: dict[int, commands.Call] = {}
        """Calls at the branch, or on their way to it, by ``flight_key``."""
        self.on_the_way: Sequence[int] = ()
        """Calls of the message that is being sent, which the branch may or may not have taken."""
        self.seen: set[int] = set()
        """Calls that were out at the last audit."""
        self.brought = (0, 0)
        """Number of the last message whose answer brought results, and the last attempt among these."""
        self.on_disk = self.acknowledged = self.unacknowledged = 0
        """Last messages whose results are on disk (``on_disk``), of which the branch was told (``acknowledged``), and
        of which it was to be told when this was last looked at (``pending_ack``)."""
        self.carrying = False
        self.waiting: asyncio.Timeout | None = None
        """Wait for the answer to the message that is being sent."""
        self.level = -1
        self.beaten = self.audited = 0
        """Beats at which the branch was last asked for a sign of life, and for the calls that it holds."""

    def burden(self) -> int:
        """Return the number of calls given to the branch."""
        return len(self.queue) + len(self.out)

    def packed(self, limits: Limits) -> tuple[Payload, list[int]]:
        """Return the next message and the keys of its calls, which are on their way from now on.

        The queue must not be empty.
        """
        queue, calls_max, bytes_max = self.queue, limits.message_calls_max, limits.message_bytes_max
        if self.near:
            calls_max, bytes_max = max(NEAR_MAX, calls_max), max(NEAR_BYTES_MAX, bytes_max)
        some = queue if len(queue) <= calls_max else dict(islice(queue.items(), calls_max))
        calls, blob = list(some.values()), b""
        fits = sum([len(call.body) for call in calls]) + CALL_BYTES * len(calls) <= bytes_max
        if fits and not self.near:  # within one process the bytes are not read
            blob = _encoder.encode(calls)
            fits = len(blob) <= bytes_max  # names may be long, too
        if not fits:
            blob, count = _cut(calls, bytes_max)
            some = dict(islice(queue.items(), count))
            calls = calls[:count]
        self.out.update(some)
        if len(calls) == len(queue):
            self.queue = {}
        else:
            for key in some:
                del queue[key]
        return of_calls(blob, calls), list(some)

    def stop_waiting(self) -> None:
        """Wait no longer than ``LATE_S`` for an answer of the process that was asked: it has ended."""
        if self.waiting is not None and not self.waiting.expired():
            until_s, ends_s = asyncio.get_running_loop().time() + LATE_S, self.waiting.when()
            if ends_s is not None and until_s < ends_s:
                self.waiting.reschedule(until_s)

    def put_back(self, keys: list[int]) -> None:
        """Queue again, before all others, the calls of a message that was not taken, as far as they are still out."""
        back = {key: self.out.pop(key) for key in keys if key in self.out}
        self.queue = back | self.queue


def _cut(calls: list[commands.Call], bytes_max: int) -> tuple[bytes, int]:
    """Return a message of the first calls, as many as fit into ``bytes_max``, and their number."""
    blobs: list[msgspec.Raw] = []
    size = 0
    for call in calls:
        blob = _encoder.encode(call)
        size += len(blob)
        if blobs and size > bytes_max:
            break
        blobs.append(msgspec.Raw(blob))
    return _encoder.encode(blobs), len(blobs)


def come_back(
    keys: Iterable[int], where: dict[int, BranchLink], brought: Callable[[BranchLink], None]
) -> list[BranchLink]:
    """Remove attempts that have ended from their links, and return these links.

    ``brought`` is called with each link whose last message with results is complete by that.
    """
    link: BranchLink | None = None
    last = 0
    touched: list[BranchLink] = []
    for key in keys:
        if (at := where.pop(key, None)) is None:
            continue
        if at is not link:  # neighbours are mostly of one branch
            link, out, last = at, at.out, at.brought[1]
            touched.append(at)
        if out.pop(key, None) is None:
            at.queue.pop(key, None)
        if key == last:
            brought(at)
    return touched


class BranchLinks:
    """Links of one channel.

    Usable links are in levels by their load, so that choosing one costs the same for any number of branches; ``look``
    moves a link to its present level.
    """

    def __init__(self, concurrency: int = 100) -> None:
        """``concurrency``: calls that the job makes at once."""
        self.level_bits = max(0, min(LEVEL_BITS_MAX, (concurrency // 8).bit_length() - 1))
        self._by_name: dict[str, BranchLink] = {}
        self._levels: dict[int, dict[str, BranchLink]] = {}
        self._least = 0
        """Lower bound of the levels in use."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[BranchLink]:
        return iter(self._by_name.values())

    def get(self, name: str) -> BranchLink | None:
        """Return the link of the branch of this name, if any."""
        return self._by_name.get(name)

    def add(self, link: BranchLink) -> None:
        """Add a link."""
        self._by_name[link.name] = link
        self.look(link)

    def remove(self, link: BranchLink) -> None:
        """Remove a link for good."""
        if self._by_name.get(link.name) is link:  # otherwise the next branch of this name has its place
            del self._by_name[link.name]
        self._stand(link, -1)

    def look(self, link: BranchLink) -> None:
        """Move a link to the level of its load. A link that is not usable is in no level."""
        able = link.up and link.has_credential and not link.leaving and self._by_name.get(link.name) is link
        level = (len(link.queue) + len(link.out)) >> self.level_bits if able else -1
        if level != link.level:
            self._stand(link, level)

    def least(self) -> BranchLink | None:
        """Return a link with the least load, in turns; if none is usable, one that may become so.

        None: no branch takes calls.
        """
        levels = self._levels
        if not levels:
            return min((link for link in self if not link.leaving), key=BranchLink.burden, default=None)
        while self._least not in levels:
            self._least += 1
        level = levels[self._least]
        name, link = next(iter(level.items()))
        del level[name]
        level[name] = link
        return link

    def together(self, limits: Limits) -> int:
        """Return how many calls go to one branch in a row.

        Neighbours go together, since a message costs as much as forty calls in it; but at most half of a branch's fair
        share, so that no branch is left without calls.
        """
        return max(1, min(TOGETHER_MAX, limits.concurrency // (2 * max(1, len(self)))))

    def others(self, link: BranchLink) -> bool:
        """Return whether another branch is usable now."""
        return any(other is not link for level in self._levels.values() for other in level.values())

    def to_ask(self, beat: int, most: int) -> list[BranchLink]:
        """Return the links to be asked for a sign of life at this beat: those that have calls, or that are not usable.

        Of those that seem well at most ``most``, in turns: a message a second to each of many branches would cost more
        than the calls. Those that may be dead are asked each time.
        """
        doubtful = [link for link in self if not (link.up and link.has_credential) or (link.leaving and link.out)]
        sure = [link for link in self if link.out and link.up and link.has_credential and not link.leaving]
        if len(sure) > most:
            sure = nsmallest(most, sure, key=attrgetter("beaten"))
        for link in sure:
            link.beaten = beat
        return doubtful + sure

    def to_audit(self, beat: int, most: int) -> list[BranchLink]:
        """Return the links to be audited now: of those with calls at most ``most``, in turns."""
        found = [link for link in self if link.out]
        if len(found) > most:
            found = nsmallest(most, found, key=attrgetter("audited"))
        for link in found:
            link.audited = beat
        return found

    def able(self, count: int) -> tuple[str, ...]:
        """Return the names of up to ``count`` usable branches; none if the job has only one branch."""
        if len(self._by_name) == 1:
            return ()
        return tuple(islice(chain.from_iterable(self._levels.values()), count))

    def _stand(self, link: BranchLink, level: int) -> None:
        old = self._levels.get(link.level)
        if old is not None:
            del old[link.name]
            if not old:
                del self._levels[link.level]
        link.level = level
        if level >= 0:
            self._levels.setdefault(level, {})[link.name] = link
            self._least = min(self._least, level)
