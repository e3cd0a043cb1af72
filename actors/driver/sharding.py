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
from actors.journal.journal import StoreError
from actors.ports.runtime import ChannelNotStarted, Peer, PeerGone, PeerUnavailable, Runtime
from cortex.goals.shards import dealt, lacking
from cortex.state.events import Row

PAUSE_S = 0.04
"""Seconds of a pause between two windows, at first."""
PAUSE_MAX_S = 0.16
LOOK_S = 0.5
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


class ShardProgress:
    """Progress of one shard: its rows and results."""

    def __init__(self, name: str, written: int, peer: Peer, rests: bool) -> None:
        self.name, self.peer = name, peer
        self.rests = rests
        """True if its parent will not restart it."""
        self.noted = 0
        """Number of its results in the sink by its own journal: the first of its results are still these."""
        self.index = written
        """Results taken from the shard."""
        self.written = written
        self.first = 0
        """Results already in the sink, which must be passed to it again first."""
        self.position = self.wanted = self.results = 0
        self.source_ended = self.over = False
        self.broken = ""
        self.lost = False
        """True if the shard has no journal, and thus no results."""
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
        self.results, self.noted, self.broken = facts["results"], facts["results_written"], facts["broken"]
        self.over = facts["outcome"] != "running" or bool(self.broken)
        self.without_credential, self.unauthorised = tuple(facts["unarmed"]), facts["unauthorised"]

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

    # -- beginning -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the parent has begun all shards, or has ended before."""
        while not self.shards:
            facts, over = await self._steering.figures(), self._steering.over()
            made = [ShardProgress(name, written, self._peer(name), rests) for name, written, rests in facts["shards"]]
            if len(made) == self._count and all([await self._seen(each) for each in made]):
                await self._compare(made)
                self.shards = made
                self._there.set()
            elif over and len(made) < self._count:
                return
            else:
                await asyncio.sleep(PAUSE_S)

    async def _compare(self, shards: list[ShardProgress]) -> None:
        """Have the sink written anew, if a shard's journal has lost results that are in it: those that come in their
        places are others. Raises ``UserError`` for a job without text, of which the sink has the only copy.
        """
        lost = [each.name for each in shards if (each.results if self._thins else each.noted) < each.written]
        if not lost:
            return
        if self._thins:
            raise UserError(
                f"the journals of {', '.join(lost)} have lost results that are in the results file, as by a power cut, "
                "and the job keeps no text: move the file away, it is the only copy, and begin anew with --fresh"
            )
        await self._steering.written(0, 0, (0,) * len(shards))
        await self._steering.figures()
        for each in shards:
            each.index = each.written = 0

    async def _seen(self, each: ShardProgress) -> bool:
        if each.rests and not await self._see(each):
            with contextlib.suppress(PeerUnavailable, PeerGone):
                await self._revive(each, PeerGone(each.name))
        return each.lost or await self._see(each)

    def start_at(self, rows: int, number: int, has: int) -> int:
        """Return how many results may stay in the sink; 0 if it is unknown which they are.

        The sink continues after ``rows`` results and has ``has`` on disk; the journal records ``number``.
        """
        if rows == number:
            self._turn = rows % self._count
            return rows
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
        raise StoreError(f"{each.name} has no journal")

    async def _revive(self, each: ShardProgress, error: Exception) -> None:
        """Start a shard's channel only to read its results: a job at rest does not restart its shards."""
        if not isinstance(error, PeerGone | ChannelNotStarted):
            return
        each.peer = await self._runtime.start_actor("channel", f"channel:{each.name}", each.name, self._folder)
        try:
            await each.peer.ask("start", b"")
        except StoreError:  # the shard never began
            each.lost = each.source_ended = True
            await self._runtime.end_actor(each.peer.name)

    def unaccounted(self) -> list[str]:
        """Return the shards that have not ended with the whole job, and those without a journal: rows are missing, and
        a complete job has none of these. To be asked after all results were taken.
        """
        return [each.name for each in self.shards if each.lost or not (each.source_ended and each.over)]

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
        unwritten, flushed_s = 0, loop.time() - flush_s
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
                if done and not some:
                    for taker in takers:
                        taker.result()
                    return
                if not some:
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(flush_s):
                            await self._news.wait()
        finally:
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)

    async def _flush(self, sink: Any) -> None:
        parts = tuple(max(each.written, each.first) for each in self.shards)
        rows, size_bytes = await asyncio.to_thread(sink.flush) if sink is not None else (sum(parts), 0)
        if not self._thins:  # what the parent's journal has, each shard's has too, unless that one has lost its end
            await asyncio.gather(*map(self._note, self.shards, parts))
        with contextlib.suppress(StoreError):
            await self._steering.written(rows, size_bytes, parts)
        if self._thins:  # from then on the shard drops these results
            await asyncio.gather(*(self._note(each, each.written) for each in self.shards))

    async def _note(self, each: ShardProgress, part: int) -> None:
        """Let a shard know how many of its results are in the sink."""
        if part > each.noted:
            with contextlib.suppress(StoreError):
                await self._ask(each, "written", part, 0)
                each.noted = part

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
            await self._see(each)
            done = over and (each.index >= each.results or each.broken)
            if done and (each.broken or not each.over or await self._ask(each, "seal", each.results)):
                self._news.set()
                return
            if each.over:
                await asyncio.sleep(PAUSE_S)  # an ended shard answers at once
