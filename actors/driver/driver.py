"""Driver of a job: connects the job's channel with its user: source, sink, credential, progress.

Only the driver accesses the user's files. It may die and be replaced at any moment: the journal records which rows were
fed and which results were written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from actors.channel.backpressure import PAUSE_S, ROOM_S, narrower_by, thresholds
from actors.common.errors import UserError
from actors.common.harmless import harmless
from actors.common.process_owner import Owner
from actors.common.units import clock
from actors.driver import control_note
from actors.driver.credential_sender import CredentialSender
from actors.driver.live_status import StatusPublisher
from actors.driver.sharding import DriverHooks, ShardRouter
from actors.driver.stop_order import ANSWER_S, AWAY_PATIENCE_S, StopOrder
from actors.jobs.opening import Opening
from actors.journal.journal import StateFolder, StoreError
from actors.journal.retrying import unblocked
from actors.journal.state_folder import advised
from actors.limits import forgotten, overrides
from actors.limits.shared_accounts import PLACE
from actors.messaging.inbox import ProgramLog
from actors.messaging.servers_changed import ServersChanged
from actors.monitoring.call_durations import CallDurations
from actors.monitoring.deadline_monitor import DeadlineMonitor
from actors.monitoring.stall_detector import SilenceClock, StallDetector, unsaved_words
from actors.monitoring.throughput import ThroughputEstimator, forecast, of_job
from actors.ports.rows import Sink, Source
from actors.ports.runtime import ClusterLost, Peer, PeerGone, PeerUnavailable, Runtime
from actors.routing.key_rotation import KeyRotation
from actors.routing.model_factory import ConnectionSpec, encode
from actors.routing.server_change import JobServers
from actors.routing.server_discovery import NameWatch
from cortex.programs.shards import Shards
from cortex.state.events import Row
from cortex.state.program import Program

T = TypeVar("T")

FLUSH_S = 0.5
"""Seconds that a result may wait before it is on disk in the results file."""
FLUSH_ROWS = 5_000
"""Results after which the results file is flushed."""
REST_S = 5.0
"""Seconds of a request for results while none is unwritten; a channel that has results, or has ended, answers at
once."""
GATHER_S, GATHER_MANY_S = 0.04, 0.1
"""Seconds in which results are collected into one request (``GATHER_MANY_S`` with ``MANY`` or more): each request costs
both sides a message."""
MANY, GATHER_ROWS = 100, 1_000
"""Results from which the longer time applies; after ``GATHER_ROWS`` results the next request follows without a
pause."""
LOOK_S = 0.5
"""Seconds between two requests for the job's status."""
NEWS_S = 10.0
"""Seconds that a channel may take to answer before ``status`` says that there is no news from it: it answers within
milliseconds, and a busy machine takes some seconds."""
KEY_READ = "the key was read again"
SETTLE_S = 60.0
"""Seconds that a failed driver waits for the calls in flight."""
SILENT_S = 20.0
"""Seconds beyond the expected wait after which a silent channel is asked again: a call to a killed actor may never
end."""


class RowWindow(Protocol):
    """Rows of a source, and the position at which reading continues."""

    rows: tuple[Row, ...]
    position: int
    ended: bool


class ChannelLost(UserError):
    """The job's channel has ended. The job can be resumed."""


class JournalUnwritable(StoreError):
    """The job's journal cannot be written any more: full disk, or another run has taken over. The job can be
    resumed.
    """


class Driver:
    """Driver that runs one job from its start, or its current state, to its end.

    ``run_of``: owner of the run that an attached driver goes on with; requests of other processes name it. None: the
    driver's own.
    """

    def __init__(
        self, runtime: Runtime, folder: str, opening: Opening, connection: ConnectionSpec, *,
        source: Source | None = None, sink: Sink | None = None,
        progress: Callable[[dict[str, Any]], None] = lambda facts: None, attach: bool = False, own: bool = False,
        narrow: Mapping[str, int] | None = None, rotation: KeyRotation | None = None,
        servers: JobServers | None = None, names: NameWatch | None = None,
        log: Callable[[str], None] = lambda line: None, program: Program | None = None, run_of: Owner | None = None,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._folder = folder
        self._opening = opening
        self._run_of = run_of or opening.owner
        self._credentials = CredentialSender(opening.terms.job, runtime, encode(connection))
        self._source = source
        self._sink = sink
        self._progress = harmless(progress, "progress")
        self._attach = attach
        self._own = own
        self._control = StateFolder(folder)
        self._narrow = narrow
        self._caps = overrides.OverrideWatch(self._control, opening.terms, narrow)
        self._dropped = forgotten.ForgottenWatch(self._control, opening.terms, runtime.now_s())
        self._rotation = rotation
        self._servers = servers
        self._names = names
        self._log = harmless(log, "the log of the job")
        self._program_log = ProgramLog()
        self._dealing: ShardRouter | None = None
        self._edition: int | None = None
        """Number of retries before the list of results that is being written."""
        if isinstance(program, Shards):
            narrower = lambda rows: narrower_by(rows, opening.terms.limits.window_rows)  # noqa: E731
            count, ordered, thins = program.shards, program.of.ordered, not opening.terms.keeps_text
            reported = lambda *written: self._ask("written", *written, self._edition, self._checksum())  # noqa: E731
            steering = DriverHooks(self._over, self.refresh, reported)
            self._dealing = ShardRouter(runtime, folder, count, ordered, steering, narrower, thins)
        self._deadline_monitor, self._still = DeadlineMonitor(), StallDetector()
        self._silence, self._durations = SilenceClock(), CallDurations()
        self._stop_order = StopOrder(lambda: self._channel)
        self._kept: deque[control_note.ControlRequest] = deque()
        """Orders of other processes, besides those to end the job, that the channel does not have yet."""
        self._begun = False
        self._facts: dict[str, Any] = {}
        self.job = opening.terms.job
        self._speed = ThroughputEstimator()
        self._live = StatusPublisher(self._control, self.job, opening.owner)
        self._channel: Peer = runtime.peer(f"channel:{self.job}")

    async def run(self) -> dict[str, Any]:
        """Run the job and return its last status. Raises errors of source, sink or store, after the job was stopped."""
        await self._begin()
        try:
            if self._dealing is not None:
                await self._dealing.begin()
            index = self._open_sink()
            if self._source is not None and self._dealing is None:
                self._source.seek(self._facts["position"])
        except Exception:
            await self._give_up()
            raise
        deals = self._dealing
        drain = self._drain(index) if deals is None else self._gather(deals)
        work = [asyncio.create_task(drain), asyncio.create_task(self._look())]
        if self._source is not None:
            work.append(asyncio.create_task(self._feed() if deals is None else deals.feed(self._source)))
        try:
            await self._first_failure(work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self._stop_order.close()
            await self._credentials.close()
            if self._names is not None:
                await self._names.close()
            await self._noted(self._live.close)
        if self._facts["broken"]:
            raise JournalUnwritable(self._facts["broken"])
        return self._facts

    async def _first_failure(self, work: list[asyncio.Task[None]]) -> None:
        """Wait until all results are written. A failure of any part stops the job, resumable, and is raised."""
        drain = work[0]
        while not drain.done():
            running = [task for task in work if not task.done()]
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            failed = [error for task in done if (error := task.exception()) is not None]
            if not failed:
                continue
            await self._give_up()
            raise failed[0]
        drain.result()

    async def _give_up(self) -> None:
        """Stop sending, and wait until the calls in flight, which are paid for, are in the journal."""
        await self.stop("drain", "its driver, which failed")
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SETTLE_S):
                while not self._over(await self.refresh()):
                    await self._stop_order.give(LOOK_S)
                    await asyncio.sleep(LOOK_S)

    async def stop(self, how: str, who: str) -> None:
        """Ask the job to end: ``drain`` or ``cancel``. The request is remembered before the job's start, and repeated
        while its channel is unavailable. A job that has ended or is broken stays as it is.
        """
        self._stop_order.want(how, who)
        if self._begun:
            await self._stop_order.give(ANSWER_S)

    async def answer(self) -> Any:
        """Return the program's answer."""
        return msgspec.json.decode(await self._ask("answer"))

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        if shared := self._opening.terms.places.get(PLACE):
            await self._patiently(self._runtime.peer("cortex"), "share", shared)
        await self._send_overrides()
        await self._arm_all()
        if not self._attach:
            self._channel = await self._runtime.start_actor("channel", f"channel:{self.job}", self.job, self._folder)
            await self._ask("start", msgspec.msgpack.encode(self._opening))
        self._begun = True
        while not await self._stop_order.give(ANSWER_S):  # before any row is read
            await asyncio.sleep(LOOK_S)
            await self.refresh()
        await self.refresh()

    async def _arm_all(self) -> None:
        branches, _ = await self._patiently(self._runtime.peer("cortex"), "staff", False)
        await self._credentials.send(branches)

    @property
    def begun(self) -> bool:
        """Return whether the channel has begun: from then on calls may have been sent."""
        return self._begun

    def _open_sink(self) -> int:
        """Open the sink and return the index of the next result to write. Without a sink, results are not read."""
        if self._sink is None:
            return int(self._facts["results"])
        number, self._edition = int(self._facts["results_written"]), int(self._facts["reopened"])
        if hasattr(self._sink, "checksum"):
            self._sink.checksum = int(self._facts.get("checksum_written", -1))
        if hasattr(self._sink, "only_copy"):
            self._sink.only_copy = not self._opening.terms.keeps_text
        rows = self._sink.open(number, self._facts["bytes_written"], self._own)
        if self._dealing is None or self._dealing.start_at(rows, number, getattr(self._sink, "has", rows)) == rows:
            return rows
        return self._sink.open(0, 0, self._own)

    def _checksum(self) -> int:
        """Return the CRC-32 of what the sink has on disk; -1 for a sink that keeps none."""
        return int(getattr(self._sink, "checksum", -1))

    async def _feed(self) -> None:
        """Read ahead of the channel, a window at a time."""
        source = self._source
        assert source is not None
        wanted = int(self._facts["rows_wanted"])
        position = int(self._facts["position"])
        ended = bool(self._facts["source_ended"])
        window_rows, narrower = self._opening.terms.limits.window_rows, 0
        while not ended and not self._over():
            enough, least = thresholds(window_rows, narrower)
            if wanted < enough:
                wanted = await self._await("room", enough, least, ROOM_S)
                if least <= wanted < enough:  # each window is a commit: a small one waits a moment to grow
                    await asyncio.sleep(PAUSE_S)
                    wanted = await self._ask("room", 0, 0, 0.0)
            if wanted < least:
                if not self._over(await self.refresh()):
                    await asyncio.sleep(PAUSE_S)
                continue
            wanted -= narrower
            window = await asyncio.to_thread(source.read, wanted)
            narrower = narrower_by(window.rows, window_rows)
            blob = msgspec.msgpack.encode(window.rows)
            try:
                wanted = await self._ask("feed", blob, position, window.position, window.ended)
            except StoreError:
                return  # a broken journal is reported when the results are drained
            position, ended = window.position, window.ended

    async def _drain(self, index: int) -> None:
        """Write results as they come, and flush them soon after."""
        loop, sealed = asyncio.get_running_loop(), False
        unwritten, flushed_s = 0, loop.time() - FLUSH_S  # the first results are flushed at once
        while True:
            some = msgspec.msgpack.decode(await self._await("results", index, FLUSH_S if unwritten else REST_S))
            some = await self._unwritten(some)
            if some and self._sink is not None:
                self._sink.write([value for _, value in some])
                unwritten += len(some)
            index += len(some)
            if 0 < len(some) < GATHER_ROWS:
                await asyncio.sleep(GATHER_S if len(some) < MANY else GATHER_MANY_S)
            over = not some and self._over(await self.refresh())
            results = int(self._facts["results"])
            if over and not self._facts["broken"]:  # a broken channel counts results that it could not commit
                over = index >= self._results(sealed)
                if sealed and not over:
                    sealed = await self._seal(results)  # the channel was restarted meanwhile
            if unwritten and (over or unwritten >= FLUSH_ROWS or loop.time() - flushed_s >= FLUSH_S):
                assert self._sink is not None
                rows, size_bytes = await asyncio.to_thread(self._sink.flush)
                with contextlib.suppress(StoreError):  # a broken journal is reported by the status; the file is whole
                    await self._ask("written", rows, size_bytes, (), self._edition, self._checksum())
                unwritten, flushed_s = 0, loop.time()
            if over and (sealed or await self._seal(results)):
                await self.refresh()
                if sealed or self._facts["broken"] or index >= self._results(sealed=True):
                    return
                sealed = True  # its restored results come now

    async def _seal(self, results: int) -> bool:
        """Let the channel of a job that has ended with this number of results take in nothing more. Return False if it
        has got others meanwhile, which are to be read, or has broken. A channel that is known to be broken is sealed.
        """
        return bool(self._facts["broken"]) or bool(await self._ask("seal", results))

    def _results(self, sealed: bool) -> int:
        """Return the number of results of the job that the sink is to hold: in the end (``sealed``), or before. A sink
        that cannot be cut back holds the earlier results of rows that are asked again already."""
        count = int(self._facts["results"])
        if sealed and getattr(self._sink, "cuts_back", True):
            return count
        return count - int(self._facts["results_restored"])

    async def _unwritten(self, some: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Return the results without those that a sink which cannot be cut back holds already."""
        if not (some and self._facts["reopened"]) or getattr(self._sink, "cuts_back", True):
            return some
        await self.refresh()
        return [(index, value) for index, value in some if index < self._results(sealed=True)]

    async def _look(self) -> None:
        """Report progress, obey requests of other processes, send credentials to branches that lack them."""
        reported: dict[str, Any] = {}
        while True:
            facts = await self._refreshed(reported)
            at_s = self._runtime.monotonic_s()
            reported = facts | of_job(self._speed, facts, at_s)
            reported |= forecast(self._speed, facts, at_s, self._runtime.now_s())
            silent, slow = self._silence.words(facts, at_s), self._durations.words(facts, at_s)
            if unsaved := unsaved_words(facts):
                silent = ""
            reported["waits"] = "; ".join(filter(None, (unsaved or silent or slow, facts["waits"])))
            stalls = self._still.news(reported, self._runtime.now_s(), silent)
            for line in filter(None, (self._deadline_monitor.news(reported), *stalls)):
                self._log(line)
            self._progress(reported)
            await self._live.look(reported, self._runtime.peer("cortex"))
            await self._see_orders()
            await self._stop_order.give(LOOK_S)
            if self._names is not None:
                await self._follow(self._names)
            await self._send_overrides()
            self._credentials.look(facts["unarmed"])
            if facts["unauthorised"] or (self._dealing is not None and await self._dealing.refused()):
                await self._renew()
            await asyncio.sleep(LOOK_S)

    async def _refreshed(self, reported: dict[str, Any]) -> dict[str, Any]:
        """Return the job's current figures. While its channel is silent, as on a node that hangs, publish the last ones
        with since when: ``status`` would go on showing them as if nothing had happened. Raises ``ChannelLost``."""
        since = clock(self._runtime.now_s())
        asked = asyncio.ensure_future(self.refresh())
        try:
            while not (await asyncio.wait({asked}, timeout=NEWS_S))[0]:
                if reported:
                    waits = f"no news from the job's channel since {since}: its node may hang or be gone"
                    await self._live.look(reported | {"waits": waits}, self._runtime.peer("cortex"))
                await self._keep_order()
            return asked.result()
        finally:
            asked.cancel()

    async def _noted(self, ask: Callable[..., T], *args: Any) -> T:
        """Return the result of a request to the state folder (``actors.journal.retrying.unblocked``)."""
        return await unblocked(self._control, ask, *args)

    async def _keep_order(self) -> None:
        """Keep the order of another process, if there is one, until the channel has it. The note says that it is kept:
        its author waits for a minute, a channel that is being restarted may be away for longer."""
        wanted = await self._noted(control_note.read, self._control, self.job, self._run_of)
        if wanted is None or wanted.taken or not await self._noted(control_note.take, self._control, self.job, wanted):
            return
        if wanted.how in ("drain", "cancel"):
            self._stop_order.want(wanted.how, wanted.who)
        else:
            self._kept.append(wanted)

    async def _see_orders(self) -> None:
        """Carry out the orders that are kept, whose authors may be gone, and one that waits."""
        while self._kept:
            await self._obey(self._kept[0])
            await self._noted(control_note.obeyed, self._control, self.job, self._kept.popleft())
        wanted = await self._noted(control_note.read, self._control, self.job, self._run_of)
        if wanted is not None and await self._obey(wanted):
            await self._noted(control_note.obeyed, self._control, self.job, wanted)

    async def _renew(self) -> None:
        """Read the key file again after the provider has refused the key; go on if the key is new, or if a branch has
        got the present one only now."""
        rotation = self._rotation
        if rotation is None:
            return
        if await asyncio.to_thread(rotation.read):
            self._credentials.change(encode(rotation.connection))
            self._caps = overrides.OverrideWatch(self._control, rotation.terms, self._narrow)
            self._dropped = forgotten.ForgottenWatch(self._control, rotation.terms, self._runtime.now_s())
            await self._send_overrides()
            await self._arm_all()
        elif not self._credentials.came_late():
            return
        credentials = tuple(route.credential for route in rotation.terms.routes)
        with contextlib.suppress(StoreError):  # a broken journal is reported by the status
            await self._ask("unblock", KEY_READ, credentials)
        if self._dealing is not None:
            await self._dealing.unblock(KEY_READ, credentials)

    async def _send_overrides(self) -> None:
        """Send the caps set by operators, and their orders to drop what was learned, for the jobs of this state folder.
        A cluster for several state folders has its own.
        """
        if self._opening.owner.cluster not in ("inline", "local"):
            return
        cortex = self._runtime.peer("cortex")
        for pool, each in (await self._noted(self._caps.news)).items():
            parts = (each.who, pool, overrides.encode(each))
            if not self._begun:  # no call is sent before the cortex knows the caps
                await self._patiently(cortex, "cap", *parts)
                continue
            try:
                await cortex.ask("cap", *parts)
            except (PeerUnavailable, PeerGone):
                self._caps.missed(pool)
        for pool, order in (await self._noted(self._dropped.news)).items():
            try:
                await cortex.ask("forget", order.who, pool)
            except (PeerUnavailable, PeerGone):
                self._dropped.missed(pool, order)
            except ValueError:
                pass  # the job has claimed nothing there yet, so nothing was learned

    async def _obey(self, wanted: control_note.ControlRequest) -> bool:
        """Carry out a request of another process. Return False if the channel does not know of it yet: it is read
        again."""
        if wanted.how in ("drain", "cancel"):
            self._stop_order.want(wanted.how, wanted.who)
            if not await self._stop_order.give(LOOK_S):
                await self._keep_order()
                return False
            return True
        change = asyncio.ensure_future(self._change(wanted))
        try:
            if not (await asyncio.wait({change}, timeout=LOOK_S))[0] and not wanted.taken:
                await self._noted(control_note.take, self._control, self.job, wanted)  # it goes on without its author
            await change
        finally:
            change.cancel()
        return True

    async def _change(self, wanted: control_note.ControlRequest) -> None:
        """Give the channel new limits, answers or servers, as soon as it answers."""
        if wanted.how == "set":
            with contextlib.suppress(StoreError, ValueError):  # the author checks whether the change is in the journal
                await self._ask("set_limits", wanted.who, msgspec.json.encode(wanted.limits))
        elif wanted.how == "servers":
            with contextlib.suppress(StoreError, UserError):  # the author checks this too
                await self._change_servers(wanted.who, wanted.servers)
        elif wanted.how == "answer":
            with contextlib.suppress(StoreError):
                await self._ask("give_answers", wanted.who, msgspec.json.encode(wanted.answers))

    async def _change_servers(self, who: str, addresses: tuple[str, ...]) -> None:
        """Let other servers share the job's work. The branches hear of them before the job does: a call for a server
        that its branch does not know would block the server's route.
        """
        servers = self._servers
        if servers is None:
            return
        wish = await servers.change(addresses)
        terms = servers.terms
        self._credentials.change(encode(servers.connection))
        if self._rotation is not None:
            self._rotation.terms, self._rotation.connection = terms, servers.connection
        self._caps = overrides.OverrideWatch(self._control, terms, self._narrow)
        await self._send_overrides()
        await self._arm_all()
        await self._credentials.settle()
        changed = ServersChanged(terms.fallbacks, terms.closed, wish)
        await self._ask("set_servers", who, msgspec.msgpack.encode(changed))

    async def _follow(self, names: NameWatch) -> None:
        """Let the servers that are found under the job's name now share its work."""
        line, addresses = names.news(self._runtime.monotonic_s())
        if addresses and not self._over():
            try:
                await self._change_servers(names.who, tuple(addresses))
            except StoreError:
                return  # a broken journal is reported by the status
            except UserError as error:
                line = names.refused(str(error))
        if line:
            self._log(line)

    async def _gather(self, deals: ShardRouter) -> None:
        """Write the results of all shards."""
        over = False
        while not over:
            await deals.drain(self._sink, FLUSH_S, FLUSH_ROWS)
            facts = await self.refresh()
            over = await self._seal(int(facts["results"]))
        await self.refresh()
        if self._facts["outcome"] == "complete" and (text := await deals.missing()):
            raise UserError(
                f"rows are missing: {text}. To ask these rows again: {advised(self._folder, 'resume', self.job)}"
            )

    # -- asking ----------------------------------------------------------------------------------------------------

    def _over(self, facts: dict[str, Any] | None = None) -> bool:
        facts = facts or self._facts
        return facts["outcome"] != "running" or bool(facts["broken"])

    async def refresh(self) -> dict[str, Any]:
        """Return the job's current figures. Raises ``ChannelLost``."""
        facts: dict[str, Any] = msgspec.json.decode(await self._ask("status", self._program_log.count))
        self._facts = facts
        for line in self._program_log.news(facts):
            self._log(line)
        return facts

    async def _ask(self, method: str, *args: Any) -> Any:
        return await self._patiently(self._channel, method, *args)

    async def _await(self, method: str, *args: Any) -> Any:
        """Ask the channel for something it may wait for, as many seconds as the last argument says."""
        return await self._patiently(self._channel, method, *args, within_s=args[-1] + SILENT_S)

    async def _patiently(self, peer: Peer, method: str, *args: Any, within_s: float | None = None) -> Any:
        """Ask the channel or the cortex; wait while it is unreachable, since on a cluster it is restarted. Raises
        ``ChannelLost`` after pauses of ``AWAY_PATIENCE_S`` in all.
        """
        who = f"the channel of {self.job}" if peer is self._channel else "the cortex"
        waited_s = 0.0
        while True:
            try:
                async with asyncio.timeout(within_s):
                    return await peer.ask(method, *args)
            except ClusterLost as cut:
                raise ChannelLost(f"{cut}: {advised(self._folder, 'resume', self.job)}") from None
            except PeerGone:
                raise ChannelLost(f"{who} is gone: {advised(self._folder, 'resume', self.job)}") from None
            except (PeerUnavailable, TimeoutError):
                if waited_s >= AWAY_PATIENCE_S:
                    raise ChannelLost(f"{who} does not answer: {advised(self._folder, 'resume', self.job)}") from None
                await asyncio.sleep(LOOK_S)
                waited_s += LOOK_S
