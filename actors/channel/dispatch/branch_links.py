"""The branches of a job as its channel sees them, and which of them has the least to do."""

from __future__ import annotations

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
"""Branches whose burdens differ by fewer than eight calls, or by less than an eighth of all that a job makes at once,
are as good as each other: they take turns. With few calls each one counts: else a branch that has fallen silent had all
of them before long."""
TOGETHER_MAX = 256
"""Calls given to one branch in a row: as many as a message takes, which costs as much as forty of them."""

CALL_BYTES = 160
"""Of a call beside its body, about."""

_encoder = msgspec.msgpack.Encoder()


class BranchLink:
    """One branch."""

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
    )  # fmt: skip

    def __init__(self, name: str, peer: Peer) -> None:
        self.name = name
        self.peer = peer
        self.near = is_near(peer)
        self.now: Callable[..., Any] | None = getattr(peer, "now", None) if self.near else None
        """Calls a method of it, where that can be done without a wait."""
        self.incarnation = ""
        self.past: set[str] = set()
        """Incarnations known to be dead: word from them comes late."""
        self.has_credential = True
        self.up = True
        self.leaving = False
        """It takes no more calls."""
        self.queue: dict[int, commands.Call] = {}
        """Calls not yet sent."""
        self.out: dict[int, commands.Call] = {}
        """Calls that are there, or on their way."""
        self.on_the_way: Sequence[int] = ()
        """Calls of the message that is being sent: nobody knows yet whether it was heard."""
        self.seen: set[int] = set()
        """What was out at the last audit."""
        self.brought = (0, 0)
        """Number of the last message whose answer brought something, and the last call of that."""
        self.on_disk = self.acknowledged = self.unacknowledged = 0
        """Up to this message all that came with answers is on disk; what it was told of that, and what it had not heard
        when that was last looked at."""
        self.carrying = False
        self.level = -1
        self.beaten = self.audited = 0
        """The beat at which it was last asked for a sign of life, and for what it has."""

    def burden(self) -> int:
        """Calls given to it."""
        return len(self.queue) + len(self.out)

    def packed(self, limits: Limits) -> tuple[Payload, list[int]]:
        """The next message, whose calls are on their way from now on, and their keys; the queue is not empty."""
        queue, calls_max, bytes_max = self.queue, limits.message_calls_max, limits.message_bytes_max
        if self.near:
            calls_max, bytes_max = max(NEAR_MAX, calls_max), max(NEAR_BYTES_MAX, bytes_max)
        some = queue if len(queue) <= calls_max else dict(islice(queue.items(), calls_max))
        calls, blob = list(some.values()), b""
        fits = sum([len(call.body) for call in calls]) + CALL_BYTES * len(calls) <= bytes_max
        if fits and not self.near:  # within one process nobody reads the bytes
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

    def put_back(self, keys: list[int]) -> None:
        """This message was not taken: what is still out of it is to be sent, before anything else."""
        back = {key: self.out.pop(key) for key in keys if key in self.out}
        self.queue = back | self.queue


def _cut(calls: list[commands.Call], bytes_max: int) -> tuple[bytes, int]:
    """A message of the first of these, as many as fit, and how many they are."""
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
    """The branches that these attempts, which have come back, leave. ``brought`` hears of one whose last message came
    back whole."""
    link: BranchLink | None = None
    last = 0
    touched: list[BranchLink] = []
    for key in keys:
        if (at := where.pop(key, None)) is None:
            continue
        if at is not link:  # what comes together is mostly one branch's
            link, out, last = at, at.out, at.brought[1]
            touched.append(at)
        if out.pop(key, None) is None:
            at.queue.pop(key, None)
        if key == last:
            brought(at)
    return touched


class BranchLinks:
    """All of them. Those that can work stand on levels by their burden, so that choosing one costs the same for any
    number of branches; ``look`` puts one where it belongs now."""

    def __init__(self, concurrency: int = 100) -> None:
        """``concurrency``: calls at once of the job."""
        self.level_bits = max(0, min(LEVEL_BITS_MAX, (concurrency // 8).bit_length() - 1))
        self._by_name: dict[str, BranchLink] = {}
        self._levels: dict[int, dict[str, BranchLink]] = {}
        self._least = 0
        """No level below this has anybody."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[BranchLink]:
        return iter(self._by_name.values())

    def get(self, name: str) -> BranchLink | None:
        """The branch of that name."""
        return self._by_name.get(name)

    def add(self, link: BranchLink) -> None:
        """One more."""
        self._by_name[link.name] = link
        self.look(link)

    def remove(self, link: BranchLink) -> None:
        """It has gone for good."""
        if self._by_name.get(link.name) is link:  # else another has its name already
            del self._by_name[link.name]
        self._stand(link, -1)

    def look(self, link: BranchLink) -> None:
        """Something about it has changed. One that cannot work stands nowhere."""
        able = link.up and link.has_credential and not link.leaving and self._by_name.get(link.name) is link
        level = (len(link.queue) + len(link.out)) >> self.level_bits if able else -1
        if level != link.level:
            self._stand(link, level)

    def least(self) -> BranchLink | None:
        """One with least to do, each in its turn; where none can work now, one that will. None: nobody takes calls."""
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
        """How many calls go to one branch in a row: a message costs as much as forty calls in it, so neighbours travel
        together; half of a branch's fair share at the most, so that none is left without."""
        return max(1, min(TOGETHER_MAX, limits.concurrency // (2 * max(1, len(self)))))

    def others(self, link: BranchLink) -> bool:
        """Whether somebody else can work now."""
        return any(other is not link for level in self._levels.values() for other in level.values())

    def to_ask(self, beat: int, most: int) -> list[BranchLink]:
        """Those that have calls or cannot work, to be asked for a sign of life at this beat. Of many, so many in turn:
        else a message a second to each would cost more than the calls. Those that may be gone are asked each time."""
        doubtful = [link for link in self if not (link.up and link.has_credential) or (link.leaving and link.out)]
        sure = [link for link in self if link.out and link.up and link.has_credential and not link.leaving]
        if len(sure) > most:
            sure = nsmallest(most, sure, key=attrgetter("beaten"))
        for link in sure:
            link.beaten = beat
        return doubtful + sure

    def to_audit(self, beat: int, most: int) -> list[BranchLink]:
        """Those that are to say now what they have: of many, so many in turn."""
        found = [link for link in self if link.out]
        if len(found) > most:
            found = nsmallest(most, found, key=attrgetter("audited"))
        for link in found:
            link.audited = beat
        return found

    def able(self, count: int) -> tuple[str, ...]:
        """Names of some that can work. One alone is nobody's help."""
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
