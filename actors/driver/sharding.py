"""Rows and results of a job with shards: rows are dealt to the shards, and their results are written to one sink.

Only the parent's journal records how many results of each shard are in the sink. A shard that is unreachable is waited
for: its parent restarts it, and it continues from its own journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from actors.common.errors import UserError
from actors.history.lost_shards import ONLY_COPY, has_ended
from actors.journal.errors import LostEnd
from actors.journal.journal import DatabaseUnreachable, NoSuchJob, StoreError
from actors.ports.runtime import ChannelNotStarted, Peer, PeerGone, PeerUnavailable, Runtime
from cortex.goals.shards import dealt, lacking
from cortex.state.events import Row

PAUSE_S = 0.04
"""Seconds of a pause between two windows, at first."""
PAUSE_MAX_S = 0.16
LOOK_S = 0.5
LOOKS = 3
"""Looks at a shard that has not ended, before it counts as one that has lost its end."""
ENOUGH = 64
"""Rounds that are dealt without a pause."""
HELD_MAX = 20_000
"""Results of one shard that wait for their turn at most, if results are in input order."""


class DriverHooks(NamedTuple):
    """Functions of the parent's driver."""

    over: Callable[[], bool]
    """Return whether the whole job has ended, for now."""
    figures: Callable[[], Awaitable[dict[str, Any]]]
    """Return the parent's latest figures."""
    written: Callable[[int, int, tuple[int, ...]], Awaitable[None]]
    """Note the rows and bytes on disk, and the number of results of each shard among them."""


class Flushed(NamedTuple):
    """State of the sink on disk after a flush."""

    rows: int
    size_bytes: int
    parts: tuple[int, ...]
    """Number of results of each shard among the rows."""


class ShardProgress:
    """Progress of one shard: its rows and results."""

    def __init__(self, name: str, written: int, peer: Peer, rests: bool, notes: bool = True) -> None:
        self.name, self.peer = name, peer
        self.rests = rests
        """True if its parent will not restart it."""
        self.notes = notes
        """True if its journal has always noted what is in the sink: those of earlier releases have not."""
        self.noted = 0
        """Number of its results in the sink by its own journal: the first of its results are still these."""
        self.noting: asyncio.Task[None] | None = None
        """Note that is under way, or the last one."""
        self.to_note = 0
        """Number to note next."""
        self.index = written
        """Results taken from the shard."""
        self.written = written
        self.first = 0
        """Results already in the sink, which must be passed to it again first."""
        self.position = self.wanted = self.results = 0
        self.source_ended = self.over = False
        self.broken = ""
        self.lost = False
        """True if the shard has no journal, or one that cannot be used, and thus no results."""
        self.fault = ""
        """Why its journal cannot be used; empty if it can, or if there is none."""
        self.without_credential: tuple[str, ...] = ()
        self.unauthorised = False
        self.held: deque[Any] = deque()
        """Results waiting to be written."""
        self._asked = self._known = self._fed = 0
        """Numbers of the last question for figures, of that with the newest answer, and of the last one before the
        newest window."""

    async def see(self) -> None:
        """Ask the shard for its figures, and take what is not older than what is known of it."""
        number = self._asked = self._asked + 1
        facts = msgspec.json.decode(await self.peer.ask("status"))
        if number <= self._known:
            return
        self._known = number
        if number > self._fed:
            self.position, self.source_ended = facts["position"], facts["source_ended"]
            self.wanted = facts["rows_wanted"]
        self.results, self.broken = facts["results"], facts["broken"]
        if self.noting is None:  # from then on the answers to the notes tell, which are on disk
            self.noted = facts["results_written"]
        self.over = facts["outcome"] != "running" or bool(self.broken)
        self.without_credential, self.unauthorised = tuple(facts["unarmed"]), facts["unauthorised"]

    @property
    def ended(self) -> bool:
        """True if the shard has ended by its own journal, with all of its rows."""
        return not self.lost and self.source_ended and self.over

    def fed(self, position: int, ended: bool) -> None:
        """Record that the shard has a window: figures that were asked for before may not know of it."""
        self._fed = self._asked
        self.position, self.source_ended = position, ended


class RoundWindows:
    """Windows of a source that hold whole rounds, from any position on."""

    def __init__(self, source: Any, shards: int) -> None:
        self._source, self._shards = source, shards
        self.begun = self.position = 0
        """Positions at which the last window begins and ends."""
        self.ended = False

    def read(self, rounds: int) -> tuple[Row, ...]:
        """Return the rows of the next ``rounds`` rounds, or fewer if rows are long. The last round may be
        incomplete.
        """
        rows: list[Row] = []
        self.begun = self.position
        wanted = rounds * self._shards
        while wanted and not self.ended:
            window = self._source.read(wanted)
            rows += window.rows
            self.position, self.ended = window.position, window.ended
            wanted = lacking(len(rows), self._shards) if rows else wanted
        return tuple(rows)


class ShardRouter:
    """Router between a driver and ``count`` shards. ``ordered``: results are written in input order."""

    def __init__(
        self, runtime: Runtime, folder: str, count: int, ordered: bool, steering: DriverHooks,
        narrower_by: Callable[[tuple[Row, ...]], int], thins: bool,
    ) -> None:  # fmt: skip
        self._runtime, self._folder = runtime, folder
        self._count, self._ordered, self._steering = count, ordered, steering
        self._narrower_by, self._thins = narrower_by, thins
        self.shards: list[ShardProgress] = []
        self._there = asyncio.Event()
        self._news = asyncio.Event()
        self._turn = 0
        """Number of the shard whose result is next, if results are ordered."""
        self._unreported: deque[Flushed] = deque()
        """States of the sink that the parent does not know yet: the oldest and the newest since its last report."""
        self._complete = self._finished = False
        """True if the job was complete before this run; and if the sink has all results too, by the parent's journal.
        """
        self._anew = False
        """True if the sink is written anew, which the parent does not know yet."""

    # -- beginning -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the parent has begun all shards, or has ended before."""
        while not self.shards:
            facts, over = await self._steering.figures(), self._steering.over()
            made = [ShardProgress(name, written, self._peer(name), *how) for name, written, *how in facts["shards"]]
            self._complete = facts.get("outcome") == "complete"
            if len(made) == self._count and all([await self._seen(each) for each in made]):
                self._finished = self._complete and facts["results_written"] >= facts["results"]
                await self._compare(made)
                self.shards = made
                self._there.set()
            elif over and len(made) < self._count:
                return
            else:
                await asyncio.sleep(PAUSE_S)

    async def _compare(self, shards: list[ShardProgress]) -> None:
        """Have the sink written anew, if a shard's journal has lost results that are in it: those that come in their
        places are others. The sink of a job that is complete and has all results there stays as it is.

        Raises ``UserError`` for a shard whose journal cannot be used, and for a job without text, of which the sink has
        the only copy.
        """
        if self._finished:
            return
        self._refuse_faults(shards)
        lost = [each.name for each in shards if self._knows(each) < each.written]
        if not lost:
            return
        if self._thins:
            raise UserError(f"the journals of {', '.join(lost)} {ONLY_COPY}")
        await self._steering.written(0, 0, (0,) * len(shards))
        await self._steering.figures()
        for each in shards:
            each.index = each.written = 0

    def _knows(self, each: ShardProgress) -> int:
        """Return how many of the results of a shard that are in the sink its journal certainly has, at most."""
        return each.noted if each.notes and not self._thins else each.results

    def _refuse_faults(self, shards: list[ShardProgress]) -> None:
        if faults := [f"{each.name}: {each.fault}" for each in shards if each.fault]:
            raise UserError(f"results of shards cannot be read: {'; '.join(faults)}")

    async def _seen(self, each: ShardProgress) -> bool:
        if each.rests:
            try:
                if not await self._see(each):
                    with contextlib.suppress(PeerUnavailable, PeerGone):
                        await self._revive(each, PeerGone(each.name))
            except StoreError as refused:  # it was restarted by itself, and could not go on
                await self._refused(each, refused)
        return each.lost or await self._see(each)

    def start_at(self, rows: int, number: int, has: int) -> int:
        """Return how many results may stay in the sink; 0 if it is unknown which they are.

        The sink continues after ``rows`` results and has ``has`` on disk; the journal records ``number``. Raises
        ``UserError`` if they are to be written again from a journal that cannot be used.
        """
        if rows == number:
            self._turn = rows % self._count
            return rows
        self._refuse_faults(self.shards)
        self._finished, self._anew = False, True
        for each in self.shards:
            each.first = each.written if has == number else 0
            each.index = each.written = 0
        return 0

    def _peer(self, name: str) -> Peer:
        return self._runtime.peer(f"channel:{name}")

    async def _see(self, each: ShardProgress) -> bool:
        """Ask a shard for its figures. Return False if it does not answer now."""
        with contextlib.suppress(PeerUnavailable, PeerGone):
            await each.see()
            return True
        return False

    async def look(self) -> None:
        """Update the figures of all shards."""
        await asyncio.gather(*map(self._see, self.shards))

    async def refused(self) -> bool:
        """Return whether the provider refuses the key of any shard."""
        await self.look()
        return any(each.unauthorised for each in self.shards)

    async def unblock(self, who: str, credentials: tuple[str, ...]) -> None:
        """Tell all shards that the key has changed."""
        for each in self.shards:
            with contextlib.suppress(PeerUnavailable, PeerGone, StoreError):
                await each.peer.ask("unblock", who, credentials)

    async def _ask(self, each: ShardProgress, method: str, *args: Any) -> Any:
        """Ask a shard. A shard that is unreachable is waited for as long as the whole job goes on."""
        while not each.lost:
            try:
                return await each.peer.ask(method, *args)
            except (PeerUnavailable, PeerGone) as error:
                if each.rests or self._steering.over():
                    with contextlib.suppress(PeerUnavailable, PeerGone):
                        await self._revive(each, error)
                await asyncio.sleep(LOOK_S)
        raise StoreError(f"{each.name}: {each.fault or 'it has no journal'}")

    async def _revive(self, each: ShardProgress, error: Exception) -> None:
        """Start a shard's channel only to read its results: a job at rest does not restart its shards. One that has not
        ended with its complete job would go on, and pay: it counts as lost.
        """
        if not isinstance(error, PeerGone | ChannelNotStarted):
            return
        try:
            if self._complete and not await asyncio.to_thread(has_ended, self._runtime.store(self._folder), each.name):
                each.lost = each.source_ended = True
                return
            each.peer = await self._runtime.start_actor("channel", f"channel:{each.name}", each.name, self._folder)
            await each.peer.ask("start", b"")
        except StoreError as refused:
            await self._refused(each, refused)

    async def _refused(self, each: ShardProgress, refused: StoreError) -> None:
        """Take note of why a shard's channel cannot begin. If a database is away, the next question tries again."""
        await self._runtime.end_actor(f"channel:{each.name}")
        if not isinstance(refused, DatabaseUnreachable):
            each.lost = each.source_ended = True
            each.fault = "" if _never_began(refused, each.name) else str(refused)

    async def missing(self) -> str:
        """Return why rows of a complete job are missing, in a clause; empty if none are. To be asked after all results
        were taken: a shard has then ended with the whole job, or its journal has lost its end, or cannot be used.

        A job whose sink had all results from the beginning, and still has them, lacks none.
        """
        if self._finished:
            return ""
        quiet: list[ShardProgress] = []
        for _ in range(LOOKS):
            doubtful = [each for each in self.shards if not (each.ended or each.lost)]
            quiet = [each for each in doubtful if not (await self._see(each) and each.ended)]
            if not quiet:
                break
            await asyncio.sleep(LOOK_S)
        for each in quiet:  # gone, hung, or long at its last turn: its journal decides, and nobody waits for it
            try:
                each.lost = not await asyncio.to_thread(has_ended, self._runtime.store(self._folder), each.name)
            except StoreError as unread:
                each.lost, each.fault = True, str(unread)
        faults = [f"{each.name}: {each.fault}" for each in self.shards if each.fault]
        gone = [each.name for each in self.shards if not each.fault and each.lost]
        cut = [f"the journals of {', '.join(gone)} have lost their end, as by a power cut"] if gone else []
        return "; ".join([*cut, *faults])

    # -- rows ------------------------------------------------------------------------------------------------------

    async def feed(self, source: Any) -> None:
        """Deal out the rows that are not in a shard's journal yet."""
        await self._there.wait()
        open_ = [each for each in self.shards if not each.source_ended]
        if not open_:
            return
        rounds = RoundWindows(source, self._count)
        rounds.position = min(each.position for each in open_)
        await asyncio.to_thread(source.seek, rounds.position)
        narrower, pause_s = 0, PAUSE_S
        while not rounds.ended and not self._steering.over():
            behind = any(each.position > rounds.position for each in self.shards)
            wanted = self._wanted(rounds.position) - narrower
            if wanted < (1 if behind else ENOUGH):  # each window is a commit: a small one waits a moment to grow
                await asyncio.sleep(pause_s)
                await self.look()
                wanted = self._wanted(rounds.position) - narrower
                pause_s = PAUSE_S if wanted > 0 else min(2 * pause_s, PAUSE_MAX_S)
            if wanted <= 0:
                continue
            rows = await asyncio.to_thread(rounds.read, 1 if behind else wanted)
            narrower = self._narrower_by(rows)
            parts = dealt(rows, self._count)
            fed = [self._give(each, part, rounds) for each, part in zip(self.shards, parts, strict=True)]
            await asyncio.gather(*fed)

    def _wanted(self, position: int) -> int:
        """Return the rounds from here on for which each shard that lacks them has room. Reading waits for the slowest.
        """
        lacking = (each.wanted for each in self.shards if each.position <= position and not each.source_ended)
        return min(lacking, default=0)

    async def _give(self, each: ShardProgress, rows: Any, rounds: RoundWindows) -> None:
        """Send a shard its part of a window, unless it has the part: windows always end where rounds end.

        The part says where its window begins, whatever is known of the shard: a shard drops what it has read already.
        """
        has_it = each.position >= rounds.position
        if each.source_ended or (has_it and not rounds.ended):
            return
        part, start = ((), each.position) if has_it else (tuple(rows), rounds.begun)
        window = (msgspec.msgpack.encode(part), start, rounds.position, rounds.ended)
        with contextlib.suppress(StoreError):  # a broken journal is reported by the parent
            each.wanted = await self._ask(each, "feed", *window)
        each.fed(rounds.position, rounds.ended)

    # -- results ---------------------------------------------------------------------------------------------------

    async def drain(self, sink: Any, flush_s: float, flush_rows: int) -> None:
        """Write results as they come, and flush them soon after."""
        loop = asyncio.get_running_loop()
        takers = [asyncio.create_task(self._take(each, flush_s)) for each in self.shards]
        unwritten, flushed_s = int(self._anew), loop.time() - flush_s
        try:
            while True:
                done = all(taker.done() for taker in takers)
                some = self._next()
                if some and sink is not None:
                    sink.write(some)
                unwritten += len(some)
                if unwritten and (done or unwritten >= flush_rows or loop.time() - flushed_s >= flush_s):
                    await self._flush(sink)
                    unwritten, flushed_s = 0, loop.time()
                await self._report()
                if done and not some:
                    await self._settle()
                    for taker in takers:
                        taker.result()
                    return
                if not some:
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(flush_s):
                            await self._news.wait()
        finally:
            work = [*takers, *(each.noting for each in self.shards if each.noting is not None)]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _flush(self, sink: Any) -> None:
        parts = tuple(max(each.written, each.first) for each in self.shards)
        rows, size_bytes = await asyncio.to_thread(sink.flush) if sink is not None else (sum(parts), 0)
        if len(self._unreported) > 1:
            self._unreported.pop()
        self._unreported.append(Flushed(rows, size_bytes, parts))
        if self._thins:  # once its parent knows, the shard drops these results
            await self._report()
            parts = tuple(each.written for each in self.shards)
        for each, part in zip(self.shards, parts, strict=True):
            self._note(each, part)

    async def _report(self) -> None:
        """Report to the parent the newest state of the sink of which each shard has noted its part, if it is news.

        What the parent's journal has, each shard's has too, unless that one has lost its end. So a shard that is away
        keeps back the report, and not the results of others.
        """
        while self._unreported and (self._thins or self._is_noted(self._unreported[-1])):
            await self._told(self._unreported.pop())
            self._unreported.clear()
        if self._unreported and self._is_noted(self._unreported[0]):
            await self._told(self._unreported.popleft())

    def _is_noted(self, flushed: Flushed) -> bool:
        return all(part <= each.noted for each, part in zip(self.shards, flushed.parts, strict=True))

    async def _told(self, flushed: Flushed) -> None:
        with contextlib.suppress(StoreError):
            await self._steering.written(*flushed)
            self._anew = False

    async def _settle(self) -> None:
        """Wait until each shard has noted its part of what is in the sink, or cannot, and report it."""
        await asyncio.gather(*(each.noting for each in self.shards if each.noting is not None))
        await self._report()

    def _note(self, each: ShardProgress, part: int) -> None:
        """Let a shard know, in the background, how many of its results are in the sink."""
        each.to_note = part
        if part > each.noted and (each.noting is None or each.noting.done()):
            each.noting = asyncio.create_task(self._noted(each))

    async def _noted(self, each: ShardProgress) -> None:
        with contextlib.suppress(StoreError):  # the parent is then not told of these
            while (part := each.to_note) > each.noted:
                await self._ask(each, "written", part, 0)
                each.noted = part
                self._news.set()

    def _next(self) -> list[Any]:
        """Return the results that may be written now."""
        some: list[Any] = []
        if not self._ordered:
            again = any(each.written < each.first for each in self.shards)
            for each in self.shards:
                count = min(len(each.held), max(0, each.first - each.written)) if again else len(each.held)
                some += (each.held.popleft() for _ in range(count))
                each.written += count
            return some
        while self.shards and (each := self.shards[self._turn]).held:
            some.append(each.held.popleft())
            each.written += 1
            self._turn = (self._turn + 1) % self._count
        return some

    async def _take(self, each: ShardProgress, wait_s: float) -> None:
        """Take all results of one shard, until the whole job has ended."""
        while not each.lost:
            if len(each.held) >= HELD_MAX:
                await asyncio.sleep(PAUSE_S)
                continue
            over = self._steering.over()
            some = msgspec.msgpack.decode(await self._ask(each, "results", each.index, wait_s))
            each.held.extend(value for _, value in some)
            each.index += len(some)
            if some:
                self._news.set()
                if len(some) < 1_000:
                    await asyncio.sleep(PAUSE_S)
                continue
            if not await self._see(each):  # what is known of it may be from before its end
                await asyncio.sleep(PAUSE_S)
                continue
            done = over and (each.index >= each.results or each.broken)
            if done and (each.broken or not each.over or await self._ask(each, "seal", each.results)):
                self._news.set()
                return
            if each.over:
                await asyncio.sleep(PAUSE_S)  # an ended shard answers at once


def _never_began(error: StoreError, shard: str) -> bool:
    """Return whether this error of a start says that the shard has no journal, or one without a turn or its end."""
    return isinstance(error, (NoSuchJob, LostEnd)) or str(error).startswith(f"the journal of {shard} is empty")
