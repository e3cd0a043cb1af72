"""Actor of the cluster's scheduler (the cortex): admits jobs, leases shares of pools, starts and ends branches and
workers.

Its decisions are made by ``cortex.scheduler.step.step``. It receives no prompt and no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec

from actors.limits.budgets import NoteBudgets
from actors.limits.shared_accounts import ADDRESS, AccountSharing
from actors.ports.runtime import PeerGone, Runtime
from actors.scheduler.status_view import SchedulerStatus
from actors.scheduler.supervisor import Supervisor
from cortex.scheduler import autoscaling, job_families, protocol, step
from cortex.scheduler.budgets import BudgetRequest
from cortex.scheduler.lost_nodes import LOST_S
from cortex.scheduler.reports import Claims, Grant, ProgressReport, staff_digest
from cortex.scheduler.state import NEVER, SchedulerSettings, SchedulerState
from policies.limits.limit import PoolCaps
from policies.limits.slices import Budget

_log = logging.getLogger("cortex.actor")
NODES_S = 5.0
"""Seconds between two requests for the live nodes, while there is a job; also the limit of one request."""
TICK_LEAST_S = 0.001
CAP = "cap/"
"""Prefix of a pool's name: key of the note with the caps that an operator set on the pool."""
FINDING_S = 10.0
"""Seconds that a new job waits until a restarted cortex has found the live branches."""

_claims_decoder = msgspec.msgpack.Decoder(Claims)
_report_decoder = msgspec.msgpack.Decoder(ProgressReport)
_asked_decoder = msgspec.msgpack.Decoder(BudgetRequest)
_caps_decoder = msgspec.msgpack.Decoder(PoolCaps)
_encoder = msgspec.msgpack.Encoder()


class Cortex:
    """Scheduler of a cluster namespace; there is one per namespace.

    ``branches``: branches while there is a job. ``branches_max``: branches at most, if the job has much to do.
    ``workers``: workers at most, while there are tools to run. A runtime that reports cores bounds them by the cores.
    """

    def __init__(
        self, runtime: Runtime, branches: int = 1, branches_max: int = 0, workers: int = 1,
        settings: SchedulerSettings | None = None,
    ) -> None:  # fmt: skip
        self.incarnation = runtime.incarnation("cortex")
        self._runtime = runtime
        self._state = SchedulerState(
            settings
            or SchedulerSettings(branches_min=branches, branches_max=max(branches, branches_max), workers_max=workers)
        )
        self._overview = SchedulerStatus(self.incarnation, self._state)
        self._observer = runtime.telemetry.observe_cluster(self._state)
        self._supervisor = Supervisor(runtime, self._post)
        self._sharing = AccountSharing(runtime, self._state, self._step)
        self._books = NoteBudgets(runtime.notes, lambda: runtime.now_s())
        self._sent_staff: dict[str, tuple[tuple[str, ...], tuple[str, ...]] | None] = {}
        """Branches and workers last sent to each job's channel; None: the channel has an outdated list."""
        self._condemned: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._nodes: tuple[tuple[str, ...], int] = ((), 0)
        self._again = False
        """True if an earlier incarnation may have known nodes that were lost, or have gone with one, and the cluster
        has not yet said which."""
        self._room: tuple[int, int] | None = None
        """Cores that the cluster was asked for, for branches and for workers; None: not known, as while a request is
        under way, or was never answered."""
        self._asking_for_room: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._found = False
        """True once the members that an earlier incarnation started have told whose calls they have."""
        self._awaited: set[str] = set()
        """Jobs that may hold a share, and have not reported since the restart."""
        self._step(protocol.SchedulerStarted(runtime.monotonic_s(), self.incarnation))
        for name, blob in runtime.notes.found(CAP).items():  # set by an operator, during an earlier incarnation
            caps = _caps_decoder.decode(blob)
            self._step(protocol.PoolCapped(runtime.monotonic_s(), caps.who, name.removeprefix(CAP), caps))

    async def begin(self, again: bool) -> None:
        """Start. ``again``: an earlier incarnation may have granted shares that this one does not know."""
        found = await self._runtime.names("") if again else ()  # may fail and be called again: nothing has begun yet
        for address in self._runtime.notes.found(ADDRESS).values():
            self._sharing.adopt(address.decode())
        self._again = again
        if not again:
            return
        self._step(protocol.SchedulerStarted(self._runtime.monotonic_s(), self.incarnation, True))
        self._awaited = {name.partition(":")[2] for name in found if name.startswith("channel:")}
        members = tuple(name for name in found if name.startswith(("branch:", "worker:")))
        self._finding = asyncio.create_task(self._supervisor.adopt(members))
        self._adopting = asyncio.create_task(self._adopt(self._finding))

    async def _adopt(self, finding: asyncio.Task[None]) -> None:
        """Find the live members, and ask every channel to join again. Once all have joined, no unknown share can be
        held. The channel of a job may have ended while branches have calls of it: that job is waited for as well, until
        its next channel joins, or its lease has run out.
        """
        channels = [self._call_back(job) for job in sorted(self._awaited)]
        await asyncio.gather(self._count_in(finding), *channels)
        self._all_rejoined()
        self._ask_for_room()  # the request of the earlier incarnation stands, though its jobs may have ended since

    async def _count_in(self, finding: asyncio.Task[None]) -> None:
        try:
            await finding
        except Exception:  # of the cluster: shares that nobody told of are free once their lease has run out
            _log.exception("an earlier scheduler had members of which not all were found")
            return
        self._awaited |= self._supervisor.found_jobs - self._state.jobs.keys()
        self._found = True

    async def newest_epoch(self, job: str) -> int:
        """Return the highest epoch of a job of this name that has claimed anything; 0 if none is known."""
        known = self._state.jobs.get(job)
        return max(known.epoch if known is not None else 0, self._state.left.get(job, 0))

    async def _call_back(self, job: str) -> None:
        try:
            if not await self._runtime.peer(f"channel:{job}").ask("rejoin"):
                self._awaited.discard(job)
        except PeerGone:
            self._awaited.discard(job)
        except Exception:  # unavailable, or unable to start: its shares are free once its lease has run out
            return
        self._all_rejoined()

    def _all_rejoined(self) -> None:
        if not self._awaited and self._found and self._state.silent_until_s > self._state.at_s:
            self._step(protocol.AllRejoined(self._runtime.monotonic_s()))

    # -- messages -----------------------------------------------------------------------------------------------------

    async def staff(self, workers: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the branches and of the workers. The first of them are started if none is alive, for a
        new job.

        Raises ``ClusterError`` if none can be started.
        """
        wanted = [("branch", f"branch:{slot}") for slot in range(self._state.settings.branches_min)]
        if workers and self._state.settings.workers_max and not self._state.workers:
            wanted.append(("worker", "worker:0"))
        # a channel does not wait here: one that is being restarted itself waits for this answer
        if self._finding is not None:
            with contextlib.suppress(Exception):  # too slow, or an error of the cluster: what it found counts
                async with asyncio.timeout(FINDING_S):
                    await asyncio.shield(self._finding)
        missing = [(role, name) for role, name in wanted if not (role == "branch" and self._state.branches)]
        await asyncio.gather(*(self._supervisor.begun(role, name) for role, name in missing))
        return self._state.branches, self._state.workers

    async def missed(self, name: str) -> None:
        """Check a branch or worker that a channel cannot reach. One that is not known here may hang with the channel's
        calls: it is found, and ended like any other that does not answer.
        """
        if name in self._state.members:
            self._supervisor.carry_out(protocol.PingMember(name))
        else:
            self._supervisor.find(name)

    async def join(self, blob: bytes) -> bytes:
        """Take a channel's claims. Return its grants: the use of each route for one lease time. Raises ``ValueError``,
        one line.
        """
        claims = _claims_decoder.decode(blob)
        job = claims.job
        out = self._step(protocol.ChannelJoined(self._runtime.monotonic_s(), claims), job)
        for role in claims.others:
            out += self._step(protocol.ChannelJoined(self._runtime.monotonic_s(), role), role.job)
        self._awaited.discard(job)
        self._all_rejoined()
        self._check_staff(job, claims.staff)
        if job in self._condemned:
            self._runtime.peer(f"channel:{job}").tell("condemn", self._condemned[job])
        self._look_at_nodes()
        return _encoder.encode(out)

    async def leave(self, job: str, epoch: int) -> None:
        """Record that a job has ended in this epoch."""
        self._step(protocol.JobLeft(self._runtime.monotonic_s(), job, epoch))
        if job not in self._state.jobs:
            self._sent_staff.pop(job, None)
            self._condemned.pop(job, None)
        if not self._state.jobs and self._watch_task is not None:
            self._watch_task.cancel()
            self._ask_for_room()

    async def ended(self, blob: bytes) -> None:
        """Keep the end of a job for the metrics: its channel is about to go."""
        self._runtime.telemetry.keep_end(blob)

    async def report(self, blob: bytes) -> bytes:
        """Take a progress report of a branch or worker. Return a ``ReportAnswer``."""
        report = _report_decoder.decode(blob)
        at_s = self._runtime.monotonic_s()
        self._step(protocol.MemberReported(at_s, report))
        one = self._state.members.get(report.subject)
        if one is not None and one.incarnation:  # a late report of an earlier process must not hide the present one
            self._supervisor.known[report.subject] = one.incarnation
        if report.phase == "draining" and one is not None and one.state == "up":
            self._step(protocol.DrainMember(at_s, "its node", report.subject))
        return _encoder.encode(step.report_answer(self._state, report))

    async def admit(self, job: str, tool: str) -> tuple[bool, float, int]:
        """Return whether a run of this tool may begin, else after how many seconds to ask again, and the breaker's
        generation.
        """
        asked = protocol.ToolRunRequested(self._runtime.monotonic_s(), job, tool)
        out = step.step(self._state, asked)
        self._observer.step(asked, out)
        self._carry_out([order for order in out if not isinstance(order, protocol.AdmitToolRun)])
        (run,) = [order for order in out if isinstance(order, protocol.AdmitToolRun)]
        return run.go, run.wait_s, run.generation

    async def returned(self, tool: str, generation: int) -> None:
        """Take back an admission of this generation: the run has not begun."""
        self._step(protocol.ToolRunReturned(self._runtime.monotonic_s(), tool, generation))

    async def cap(self, who: str, pool: str, caps: bytes) -> None:
        """Set an operator's caps on a pool, given by its name or a route's. Raises ``ValueError``, one line.

        The caps are also stored as a note, so that a later cortex knows them even if no job has received them.
        """
        self._step(protocol.PoolCapped(self._runtime.monotonic_s(), who, pool, _caps_decoder.decode(caps)))
        route = self._state.routes.get(pool)
        name = route.pool if route is not None else pool
        self._runtime.notes.put(f"{CAP}{name}", _encoder.encode(self._state.pools[name].caps))

    async def forget(self, who: str, pool: str) -> None:
        """Drop what was learned about a pool, given by its name or a route's. Raises ``ValueError``, one line."""
        self._step(protocol.PoolForgotten(self._runtime.monotonic_s(), who, pool))

    async def share(self, address: str) -> None:
        """Share the accounts with other clusters, through the store at this address. Raises ``StoreError``."""
        await self._sharing.begin(address)

    async def lend(self, blob: bytes) -> bytes:
        """Return the amounts that the budgets of a job's labels let the job commit."""
        return _encoder.encode(self._books.ask(_asked_decoder.decode(blob)))

    async def budgets(self) -> bytes:
        """Return the budgets of this cluster, by name."""
        return _encoder.encode(self._books.read())

    async def set_budget(self, blob: bytes) -> None:
        """Add or replace a budget."""
        self._books.put(msgspec.msgpack.decode(blob, type=Budget))

    async def remove_budget(self, name: str) -> None:
        """Remove a budget."""
        self._books.remove(name)

    async def drain(self, who: str, subject: str) -> None:
        """Let a node, branch or worker finish its work, and assign no more to it. Raises ``ValueError``, one line."""
        self._step(protocol.DrainMember(self._runtime.monotonic_s(), who, subject))

    async def status(self, about: str = "") -> dict[str, Any]:
        """Return the state of pools, breakers, jobs, branches, workers and nodes (``actors.scheduler.status_view``).

        ``about``: name of the only job to include, for an observer that polls; empty: all jobs.
        """
        # no other task checks the nodes then, and the observer may be asking about a lost node
        if not self._state.jobs:
            await self._see_nodes()
        at_s = self._runtime.monotonic_s()
        return self._overview.about(about, at_s) if about else self._overview.whole(at_s)

    async def close(self) -> None:
        """Stop all tasks."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._watch_task, self._adopting, self._finding, self._asking_for_room):
            if task is not None:
                task.cancel()
        await self._sharing.close()
        await self._supervisor.close()

    # -- decisions and effects ----------------------------------------------------------------------------------------

    def _post(self, event: protocol.Event) -> None:
        self._step(event)

    def _step(self, event: protocol.Event, asker: str = "") -> list[Grant]:
        """Step the scheduler with an event and carry out its commands. Return the grants that answer the asker."""
        out = step.step(self._state, event)
        self._observer.step(event, out)
        answer = [order for order in out if isinstance(order, Grant) and order.job == asker and order.for_s > 0]
        self._carry_out([order for order in out if order not in answer] if answer else out)
        return answer

    def _carry_out(self, out: list[protocol.Command]) -> None:
        pushes: dict[str, list[Grant]] = {}
        for order in out:
            if isinstance(order, Grant):
                pushes.setdefault(job_families.spoken_for(order.job), []).append(order)
            elif isinstance(
                order, protocol.StartMember | protocol.PingMember | protocol.KillMember | protocol.RetireMember
            ):
                self._supervisor.carry_out(order)
            elif isinstance(order, protocol.MembersChanged):
                for job in list(self._sent_staff):
                    self._send_staff(job)
            elif isinstance(order, protocol.StopJob):
                job = job_families.spoken_for(order.job)
                self._condemned[job] = order.story
                self._runtime.peer(f"channel:{job}").tell("condemn", order.story)
        for job, grants in pushes.items():
            self._runtime.peer(f"channel:{job}").tell("granted", _encoder.encode(grants))
        self._sharing.look()
        self._tick_on()

    def _check_staff(self, job: str, known: int) -> None:
        """Compare the staff known to a job's channel, and send the list again if it differs: an earlier message may be
        lost, or overtaken by an older one.
        """
        staff = (self._state.branches, self._state.workers)
        self._sent_staff[job] = staff if known == staff_digest(*staff) else None
        self._send_staff(job)

    def _send_staff(self, job: str) -> None:
        staff = (self._state.branches, self._state.workers)
        if self._sent_staff.get(job) != staff:
            self._sent_staff[job] = staff
            self._runtime.peer(f"channel:{job}").tell("staffed", *staff)

    def _tick_on(self) -> None:
        """Set the timer for the next time-driven change; without a job there is none."""
        due_s = self._state.due_s
        if self._timer is not None:
            if due_s >= self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s != NEVER:
            wait_s = max(TICK_LEAST_S, due_s - self._runtime.monotonic_s())
            self._timer_s = due_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._step(protocol.TimePassed(self._runtime.monotonic_s()))

    def _look_at_nodes(self) -> None:
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.get_running_loop().create_task(self._watch_nodes())

    async def _watch_nodes(self) -> None:
        while self._state.jobs:
            await self._see_nodes()
            self._ask_for_room()
            await asyncio.sleep(NODES_S)
        self._ask_for_room()  # the last job did not say that it left

    async def _see_nodes(self) -> None:
        try:
            async with asyncio.timeout(NODES_S):
                found = await self._runtime.nodes(), await self._runtime.cores()
        except Exception as error:  # any error of Ray while its head is unavailable: the last known nodes are kept
            _log.debug("the cluster does not say which nodes live: %s", type(error).__name__)
            return
        hosts = self._overview.hosts = self._runtime.hosts()
        lost = await self._lost() if self._again else {}
        self._again = lost is None
        if found != self._nodes or lost:
            ended = await self._ended(set(self._nodes[0]) - set(found[0]))
            self._nodes = found
            at_s, now_s = self._runtime.monotonic_s(), self._runtime.now_s()
            self._step(protocol.NodesChanged(at_s, *found, hosts, ended, now_s, lost or {}))

    async def _ended(self, gone: set[str]) -> tuple[str, ...]:
        """Return those of the nodes that were ended on purpose; none if that is not known."""
        try:
            async with asyncio.timeout(NODES_S):
                return await self._runtime.ended_nodes(gone) if gone else ()
        except Exception as error:  # any error of Ray while its head is unavailable
            _log.debug("the cluster does not say how nodes ended: %s", type(error).__name__)
            return ()

    async def _lost(self) -> dict[str, tuple[str, float]] | None:
        """Return the nodes that were lost lately, which the earlier incarnation can tell no more; None if that is not
        known."""
        try:
            async with asyncio.timeout(NODES_S):
                return await self._runtime.lost_nodes(self._runtime.now_s() - LOST_S)
        except Exception as error:  # any error of Ray while its head is unavailable
            _log.debug("the cluster does not say which nodes were lost: %s", type(error).__name__)
            return None

    def _ask_for_room(self) -> None:
        """Request cores for the members that would have work: the cores there are bound how many are started."""
        running = self._asking_for_room is not None and not self._asking_for_room.done()
        if not running and self._room != autoscaling.room(self._state):
            self._asking_for_room = asyncio.get_running_loop().create_task(self._make_room())

    async def _make_room(self) -> None:
        """Make one request after the other until the newest one is acknowledged, also when no job is left.

        A request runs in a thread, which a cancellation does not stop: of two at once the older one could come last. A
        request "is persistent until another call to request_resources() is made to override" (Ray 2.60,
        ``ray.autoscaler.sdk.request_resources``).
        """
        while (room := autoscaling.room(self._state)) != self._room:
            self._room = None
            try:
                await self._runtime.make_room(*room)
            except Exception as error:  # any error of Ray while its head is unavailable
                _log.debug("the cluster does not take the request for cores: %s", type(error).__name__)
                await asyncio.sleep(NODES_S)
            else:
                self._room = room
