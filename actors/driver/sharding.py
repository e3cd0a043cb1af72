"""A driver's rows and results where a job has shards: rows are dealt to them, and their results come together in one
sink.

The parent's journal alone knows how much of each shard stands in the sink. A shard that is away is waited for: its
parent starts it again, and it goes on where its own journal ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from actors.journal.journal import StoreError
from actors.ports.runtime import ChannelNotStarted, Peer, PeerGone, PeerUnavailable, Runtime
from cortex.goals.shards import dealt, lacking
from cortex.state.events import Row

PAUSE_S = 0.04
PAUSE_MAX_S = 0.16
LOOK_S = 0.5
ENOUGH = 64
"""Rounds that are dealt without a pause."""
HELD_MAX = 20_000
"""Results of one shard that wait for their turn, where input order was asked for."""


class DriverHooks(NamedTuple):
    """What the driver of the whole knows and does."""

    over: Callable[[], bool]
    """Whether the whole job has come to an end, for now."""
    figures: Callable[[], Awaitable[dict[str, Any]]]
    """The parent's latest figures."""
    written: Callable[[int, int, tuple[int, ...]], Awaitable[None]]
    """So many rows and bytes are on disk, made of so many results of each shard."""


class ShardProgress:
    """One of them: where its rows and results stand."""

    def __init__(self, name: str, written: int, peer: Peer, rests: bool) -> None:
        self.name, self.peer = name, peer
        self.rests = rests
        """Its parent will not start it again."""
        self.index = written
        """Results that were taken of it."""
        self.written = written
        self.first = 0
        """So many are in the sink already, which wants to see them first all the same."""
        self.position = self.wanted = self.results = 0
        self.source_ended = self.over = False
        self.broken = ""
        self.lost = False
        """It has no journal, and so no results."""
        self.without_credential: tuple[str, ...] = ()
        self.unauthorised = False
        self.held: deque[Any] = deque()
        """Results that are to be written in their turn."""

    def take(self, facts: dict[str, Any]) -> None:
        """Its latest figures."""
        self.position, self.source_ended = facts["position"], facts["source_ended"]
        self.wanted, self.results, self.broken = facts["rows_wanted"], facts["results"], facts["broken"]
        self.over = facts["outcome"] != "running" or bool(self.broken)
        self.without_credential, self.unauthorised = tuple(facts["unarmed"]), facts["unauthorised"]


class RoundWindows:
    """Windows of a source that hold whole rounds, wherever reading goes on."""

    def __init__(self, source: Any, shards: int) -> None:
        self._source, self._shards = source, shards
        self.position = 0
        self.ended = False

    def read(self, rounds: int) -> tuple[Row, ...]:
        """The next rows, of so many rounds or, where rows are long, fewer; the last one may lack some."""
        rows: list[Row] = []
        wanted = rounds * self._shards
        while wanted and not self.ended:
            window = self._source.read(wanted)
            rows += window.rows
            self.position, self.ended = window.position, window.ended
            wanted = lacking(len(rows), self._shards) if rows else wanted
        return tuple(rows)


class ShardRouter:
    """``count`` shards; ``ordered``: their results are written in the order of the input."""

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
        """Whose result is next, where they are ordered."""

    # -- beginning -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the parent has begun all shards, or has ended before it did."""
        while not self.shards:
            facts, over = await self._steering.figures(), self._steering.over()
            made = [ShardProgress(name, written, self._peer(name), rests) for name, written, rests in facts["shards"]]
            if len(made) == self._count and all([await self._seen(each) for each in made]):
                self.shards = made
                self._there.set()
            elif over and len(made) < self._count:
                return
            else:
                await asyncio.sleep(PAUSE_S)

    async def _seen(self, each: ShardProgress) -> bool:
        if each.rests and not await self._see(each):
            with contextlib.suppress(PeerUnavailable, PeerGone):
                await self._revive(each, PeerGone(each.name))
        return each.lost or await self._see(each)

    def start_at(self, rows: int, told: int, has: int) -> int:
        """The sink takes up after ``rows`` results, and has ``has`` on disk; as the journal says there are ``told``.
        How many may stay: 0 where nobody knows which these are."""
        if rows == told:
            self._turn = rows % self._count
            return rows
        for each in self.shards:
            each.first = each.written if has == told else 0
            each.index = each.written = 0
        return 0

    def _peer(self, name: str) -> Peer:
        return self._runtime.peer(f"channel:{name}")

    async def _see(self, each: ShardProgress) -> bool:
        """Ask a shard for its figures; False where it does not answer now."""
        with contextlib.suppress(PeerUnavailable, PeerGone):
            each.take(msgspec.json.decode(await each.peer.ask("status")))
            return True
        return False

    async def look(self) -> None:
        """See how all of them stand."""
        await asyncio.gather(*map(self._see, self.shards))

    async def refused(self) -> bool:
        """Whether the provider refuses the key of one of them."""
        await self.look()
        return any(each.unauthorised for each in self.shards)

    async def unblock(self, who: str, credentials: tuple[str, ...]) -> None:
        """The key is another now."""
        for each in self.shards:
            with contextlib.suppress(PeerUnavailable, PeerGone, StoreError):
                await each.peer.ask("unblock", who, credentials)

    async def _ask(self, each: ShardProgress, method: str, *args: Any) -> Any:
        """Ask a shard; one that is away is waited for as long as the whole goes on."""
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
        """Nobody starts a shard of a job that has come to rest: it is started as it is, for its results alone."""
        if not isinstance(error, PeerGone | ChannelNotStarted):
            return
        each.peer = await self._runtime.start_actor("channel", f"channel:{each.name}", each.name, self._folder)
        try:
            await each.peer.ask("start", b"")
        except StoreError:  # it never began
            each.lost = each.source_ended = True
            await self._runtime.end_actor(each.peer.name)

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
            wanted = self._wanted() - narrower
            if wanted < ENOUGH and not behind:  # each window is a commit of its own: a small one waits a moment to grow
                await asyncio.sleep(pause_s)
                await self.look()
                wanted = self._wanted() - narrower
                pause_s = PAUSE_S if wanted > 0 else min(2 * pause_s, PAUSE_MAX_S)
            if wanted <= 0 and not behind:
                continue
            rows = await asyncio.to_thread(rounds.read, 1 if behind else wanted)
            narrower = self._narrower_by(rows)
            parts = dealt(rows, self._count)
            fed = [self._give(each, part, rounds) for each, part in zip(self.shards, parts, strict=True)]
            await asyncio.gather(*fed)

    def _wanted(self) -> int:
        """Rounds for which each shard has room. Reading waits for the slowest."""
        return min((each.wanted for each in self.shards if not each.source_ended), default=0)

    async def _give(self, each: ShardProgress, rows: Any, rounds: RoundWindows) -> None:
        """One shard's part of a window, unless it has that: windows end where rounds do, whoever reads them."""
        has_it = each.position >= rounds.position
        if each.source_ended or (has_it and not rounds.ended):
            return
        window = (msgspec.msgpack.encode(() if has_it else tuple(rows)), each.position, rounds.position, rounds.ended)
        with contextlib.suppress(StoreError):  # a broken journal is told by the parent
            each.wanted = await self._ask(each, "feed", *window)
        each.position, each.source_ended = rounds.position, rounds.ended

    # -- results ---------------------------------------------------------------------------------------------------

    async def drain(self, sink: Any, flush_s: float, flush_rows: int) -> None:
        """Take results as they come, and have them on disk soon after."""
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
        with contextlib.suppress(StoreError):
            await self._steering.written(rows, size_bytes, parts)
        if self._thins:
            for each in self.shards:
                with contextlib.suppress(StoreError):
                    await self._ask(each, "written", each.written, 0)

    def _next(self) -> list[Any]:
        """Results that may be written now."""
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
        """All results of one shard, until the whole job is over."""
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
            if over and (each.index >= each.results or each.broken):
                self._news.set()
                return
            if each.over:
                await asyncio.sleep(PAUSE_S)  # an ended one answers at once
