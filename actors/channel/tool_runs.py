"""Tool runs on workers, and child jobs in channels of their own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from actors.channel.tool_places import ToolPlaces
from actors.common.errors import error_words
from actors.common.process_owner import this_owner
from actors.jobs.opening import CHILD, Opening
from actors.journal.journal import StoreError
from actors.messaging.inbox import ProgramLog
from actors.messaging.long_questions import ask_process
from actors.ports.runtime import ChannelNotStarted, ClusterError, Peer, PeerGone, PeerUnavailable, Runtime
from actors.ports.telemetry import TRACEPARENT, JobObservers
from cortex.goals import shards
from cortex.state import commands, events, shard_record
from cortex.state.state import ENDED, State
from cortex.values.ledger import ChildJobBill
from cortex.values.limits import JobTerms, Limits
from policies.failures.failure import Failure, FailureKind

NOT_ADMITTED = -1
"""Generation of a breaker that admits no run now."""
AWAY_S = 0.5
"""Seconds until a scheduler that does not answer is asked again."""
CHILD_LOOK_S = 0.5
"""Seconds for which one look at a child job waits for news."""
FAULTS_MAX = 3
"""Unexpected errors after which a child job counts as failed: the first may be a passing trouble of the cluster."""

_log = logging.getLogger("cortex.tools")


def child_name(job: str, goal: int) -> str:
    """Return the name of the child job that answers a goal. A name that a user gives cannot hold ``~``."""
    return f"{job}~{goal}"


class ToolRuns:
    """Tool runs and child jobs of one channel; their results are put into its inbox."""

    def __init__(
        self, job: str, folder: str, runtime: Runtime, put: Callable[[list[events.Event]], None],
        say: Callable[[str], None], watch: JobObservers, put_durably: Callable[[list[events.Event]], Awaitable[None]],
        now_s: Callable[[], float],
    ) -> None:  # fmt: skip
        """``now_s`` returns the job's time."""
        self._now_s = now_s
        self._log, self._watch = say, watch
        self._put_durably = put_durably
        self._job = job
        self._folder = folder
        self._runtime = runtime
        self._put = put
        self._tasks: dict[tuple[int, int], asyncio.Task[None]] = {}
        """Tasks by goal and attempt."""
        self._children: dict[tuple[int, int], str] = {}
        self._stops: dict[tuple[int, int], str] = {}
        """``drain`` or ``cancel`` for child jobs to be stopped once they have started, by goal and attempt."""
        self._k: State
        self._limits: dict[str, Limits] = {}
        """Limits that each shard was told last, by the name of its channel."""
        self._kept: set[str] = set()
        """Shards that have ended and whose results may still be asked for."""
        self._without_credential: dict[str, tuple[str, ...]] = {}
        self._bills: dict[str, dict[str, Any]] = {}
        """Status of each child job as last told, by its name."""
        self._running = 0
        self._places = ToolPlaces()

    @property
    def workers(self) -> tuple[str, ...]:
        """Names of the workers that run tools, as last told."""
        return self._places.workers

    def staffed(self, workers: tuple[str, ...]) -> None:
        """Take the workers that run tools from now on."""
        self._places.staffed(workers)

    def shards(self, k: State) -> list[tuple[str, int, bool, bool]]:
        """Return the shards that have begun, with the number of results in the sink, whether each has ended for good,
        and whether it notes that number in its own journal.
        """
        named = [
            (
                child_name(self._job, goal), each.written, bool(k.outcome) or k.goals[goal].status in ENDED,
                k.terms.notes_written,
            )
            for goal, each in sorted(k.shards.items())
        ]  # fmt: skip
        return [each for each in named if each[2] or f"channel:{each[0]}" in self._limits]

    def request_reports(self, goals: Iterable[int]) -> None:
        """Ask these shards to report their held and lacking amounts at once."""
        for goal in goals:
            self._runtime.peer(f"channel:{child_name(self._job, goal)}").tell("check_budget")

    def without_credential(self) -> set[str]:
        """Return the branches that have no credential for a child job: its credential comes from its parent's driver.
        """
        return {branch for branches in self._without_credential.values() for branch in branches}

    def begin(
        self, command: commands.StartToolRun | commands.LaunchChildJob | commands.SuspendChildJob, k: State
    ) -> None:
        """Begin a tool run or a child job, or suspend a child job. Its event follows."""
        key = (command.goal, command.attempt)
        self._k = k
        if isinstance(command, commands.SuspendChildJob):
            self._stop(key, "drain")
            return
        if isinstance(command, commands.StartToolRun):
            self._running += 1
            work = self._tool(command, k.terms)
        else:
            self._children[key] = child_name(self._job, command.goal)
            work = self._child(command, k.terms)
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._ended(key, isinstance(command, commands.StartToolRun)))

    def _ended(self, key: tuple[int, int], tool: bool) -> None:
        self._running -= tool
        self._tasks.pop(key, None)
        self._children.pop(key, None)
        self._stops.pop(key, None)

    def _stop(self, key: tuple[int, int], how: str) -> None:
        self._stops[key] = how
        child = self._children.get(key)
        if child is not None:
            self._runtime.peer(f"channel:{child}").tell("stop", how, f"job {self._job}")

    def abandon(self, goal: int, attempt: int) -> None:
        """Give up a run: a tool run that has not begun is cancelled; a child job is stopped, and reports its cost."""
        key = (goal, attempt)
        if key in self._children:
            self._stop(key, "cancel")
        elif key in self._tasks:
            self._tasks[key].cancel()

    def waiting(self) -> int:
        """Return the number of tool runs that wait for a worker, or run."""
        return self._running

    async def close(self) -> None:
        """Stop waiting. A child job has its own journal, and is joined again by its name."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tool(self, command: commands.StartToolRun, terms: JobTerms) -> None:
        """Have a tool run on a worker. A run that no worker has begun goes to the next one, whatever happens."""
        event: events.Observed | None = None
        tool = f"{terms.program}/{command.tool}"
        while event is None:
            name = await self._places.take(command.tool, command.at_once)
            full, wait_s, admitted, asked = False, 0.0, NOT_ADMITTED, False
            try:
                wait_s, admitted = await self._admitted(tool)
                if admitted != NOT_ADMITTED:
                    ticket = await self._held(name, command, terms)
                    full = not ticket
                    if ticket:
                        await self._on_disk(name, command)
                        asked = True
                        event = await self._ran(name, ticket, command, terms, admitted)
                        full = event is None
                        asked = event is not None and (event.failure is None or event.failure.sent)
            except (StoreError, PeerUnavailable):
                return  # the channel is broken or closed: the next one begins what never began
            except Exception as error:  # of the worker, of the scheduler, or of this code: the goal must not wait on
                event = self._tool_fault(command, error, asked)
            finally:
                self._places.give_back(name, command.tool, full)
                if admitted != NOT_ADMITTED and not asked:
                    self._return(tool, admitted)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        self._put([event])

    def _tool_fault(self, command: commands.StartToolRun, error: Exception, begun: bool) -> events.Observed:
        """Return the event of a tool run that an unexpected error has ended. ``begun``: a worker may have begun it."""
        _log.error("job %s: the run of %s has ended by an error", self._job, command.tool, exc_info=error)
        text = f"the run of {command.tool} cannot go on: {error_words(error)}"
        failure = Failure(FailureKind.FAULTY, text, sent=begun)
        return events.Observed(command.goal, command.attempt, None, self._now_s(), failure)

    def _return(self, tool: str, generation: int) -> None:
        """Give back the admission of a run that has not begun: it may have been the one probe of a half-open breaker.
        """
        self._runtime.peer("cortex").tell("returned", tool, generation)

    async def _admitted(self, tool: str) -> tuple[float, int]:
        """Ask whether the tool's breaker admits a run. Return the seconds until the next request if it does not, and
        the breaker's generation, ``NOT_ADMITTED`` then. An admission that comes after nobody waits for it any more is
        given back.
        """
        asking = asyncio.ensure_future(self._runtime.peer("cortex").ask("admit", self._job, tool))
        try:
            go, wait_s, generation = await asyncio.shield(asking)
        except (PeerUnavailable, PeerGone):
            return AWAY_S, NOT_ADMITTED
        except asyncio.CancelledError:
            asking.add_done_callback(partial(self._admitted_late, tool))
            raise
        return (0.0, int(generation)) if go else (max(0.001, wait_s), NOT_ADMITTED)

    def _admitted_late(self, tool: str, asking: asyncio.Future[tuple[bool, float, int]]) -> None:
        if not asking.cancelled() and asking.exception() is None and asking.result()[0]:
            self._return(tool, int(asking.result()[2]))

    async def _held(self, name: str, command: commands.StartToolRun, terms: JobTerms) -> str:
        """Ask a worker for room. Return its ticket; empty if it has none, or does not answer: it begins nothing yet."""
        try:
            return str(
                await self._runtime.peer(name).ask(
                    "hold", terms.program, terms.params_json, command.tool, command.key, command.attempt
                )
            )
        except (PeerUnavailable, PeerGone):
            self._runtime.peer("cortex").tell("missed", name)
            return ""

    async def _on_disk(self, name: str, command: commands.StartToolRun) -> None:
        """Have it on disk that a tool begins which must not run twice, before it does. Raises ``StoreError``."""
        if command.told:
            await self._put_durably([events.ToolRunBegun(command.goal, command.attempt, name)])

    async def _ran(
        self, name: str, ticket: str, command: commands.StartToolRun, terms: JobTerms, generation: int
    ) -> events.Observed | None:  # fmt: skip
        """Let a worker that has room begin, and wait for the outcome; None if it takes no more runs after all."""
        arguments, asked_s = msgspec.msgpack.encode(command.arguments), self._runtime.monotonic_s()
        try:
            blob = await ask_process(
                self._runtime, name, ticket.partition("/")[0], "run", terms.program, terms.params_json, command.tool,
                arguments, command.key, command.timeout_s, generation, ticket,
            )  # fmt: skip
            if not blob:
                return None
            value, _, failure = msgspec.msgpack.decode(blob, type=tuple[Any, float, Failure | None])
        except (PeerUnavailable, PeerGone):
            failure = Failure(FailureKind.LOST, f"effect unknown: the worker that ran {command.tool} died")
            value = None
            self._runtime.peer("cortex").tell("missed", name)
        elapsed_s = self._runtime.monotonic_s() - asked_s
        read_at_s = self._now_s() - elapsed_s  # never by the clock of the worker's machine
        return events.Observed(command.goal, command.attempt, value, read_at_s, failure, elapsed_s, name)

    async def _child(self, command: commands.LaunchChildJob, parent: JobTerms) -> None:
        name = child_name(self._job, command.goal)
        event: events.ChildJobEnded | None = None
        faults = 0
        while event is None:
            try:
                await self._open_child(name, command, parent)
                # the stop came before the child had started
                if how := self._stops.get((command.goal, command.attempt)):
                    self._stop((command.goal, command.attempt), how)
                event = await self._returned(name, command)
            # an actor that the child needs is being restarted: the child is joined by its name
            except (PeerUnavailable, PeerGone):
                await asyncio.sleep(CHILD_LOOK_S)
            except (StoreError, ClusterError, ValueError) as error:
                failure = Failure(FailureKind.FAULTY, str(error))
                event = self._child_ended(command, None, failure, command.shards > 0)
            except Exception as error:  # of the child's channel, of the cluster, or of this code
                faults += 1
                _log.error("job %s: the child job %s meets an error", self._job, name, exc_info=error)
                if faults < FAULTS_MAX:
                    await asyncio.sleep(CHILD_LOOK_S)
                else:
                    event = await self._child_fault(name, command, error)
        self._without_credential.pop(name, None)
        self._put([event])

    async def _child_fault(
        self, name: str, command: commands.LaunchChildJob, error: Exception
    ) -> events.ChildJobEnded:  # fmt: skip
        """End a child job whose end nobody could report, so that it spends no more, and return the event of its end.

        A shard is drained and counts as stopped: its rows are resumed with the job.
        """
        failure = Failure(FailureKind.FAULTY, f"child job {name} cannot go on: {error_words(error)}")
        if command.shards:
            self._runtime.peer(f"channel:{name}").tell("stop", "drain", f"job {self._job}")
            return self._child_ended(command, None, failure, True)
        with contextlib.suppress(Exception):
            await self._runtime.end_actor(f"channel:{name}")
        return self._child_ended(command, None, failure, False)

    def _child_ended(
        self, command: commands.LaunchChildJob, answer: Any, failure: Failure | None, partial: bool
    ) -> events.ChildJobEnded:
        """Return the event of a child's end, with its bill as last told, by the child or by an earlier end of it."""
        facts = self._bills.pop(child_name(self._job, command.goal), None)
        if command.shards:  # its report is its bill
            bill = ChildJobBill()
        elif facts is None:
            bill = self._k.billed.get(command.goal, ChildJobBill())
        else:
            tokens = facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"]
            bill = ChildJobBill(
                facts["known_nusd"], facts["assumed_nusd"], tokens, facts["output_tokens"], facts["assumed_tokens"]
            )
        return events.ChildJobEnded(
            command.goal, command.attempt, answer, bill.known_nusd, bill.assumed_nusd, bill.input_tokens,
            bill.output_tokens, failure, bill.assumed_tokens, partial,
        )  # fmt: skip

    async def _open_child(self, name: str, command: commands.LaunchChildJob, parent: JobTerms) -> None:
        limits = msgspec.structs.replace(
            parent.limits, max_cost_nusd=command.max_cost_nusd, max_job_tokens=command.max_job_tokens
        )
        if command.shards:
            limits = shards.limits_of(self._k.terms.limits)
        if name in self._kept:
            self._kept.discard(name)
            await self._runtime.end_actor(f"channel:{name}")
        terms = msgspec.structs.replace(
            parent, job=name, program=command.program, params_json=command.params_json, limits=limits,
            streams=command.shards > 0, shard=command.shards > 0,
            fingerprint=self._runtime.fingerprint(command.program, command.params_json),
            places={TRACEPARENT: trace} if (trace := self._watch.child_of(command.goal, command.attempt)) else {},
            origin=child_name(parent.origin, command.goal) if parent.origin else "",
        )  # fmt: skip
        self._runtime.share_program(command.program, command.params_json)
        peer = await self._runtime.start_actor("channel", f"channel:{name}", name, self._folder)
        opening = Opening(terms=terms, owner=this_owner(CHILD), who=f"job {self._job}")
        await peer.ask("start", msgspec.msgpack.encode(opening))
        self._limits[peer.name] = limits

    async def _returned(self, name: str, command: commands.LaunchChildJob) -> events.ChildJobEnded:
        """Wait for the child's end, over any number of restarts of its channel. Raises ``PeerGone``."""
        peer = self._runtime.peer(f"channel:{name}")
        log = ProgramLog()
        while True:
            try:
                await peer.ask("results", 1 << 60, CHILD_LOOK_S)
                facts = await self._status(peer, name, log)
                if facts["outcome"] == "running" and not facts["broken"]:
                    with contextlib.suppress(StoreError):  # it broke since: the next look tells
                        await self._tend(peer, command, facts["stopping"])
                    continue
                if not facts["broken"]:  # its bill is final: what comes after it would be in no account
                    if not await peer.ask("seal"):
                        continue
                    facts = await self._status(peer, name, log)
                if command.shards:
                    return await self._shard_returned(name, peer, command, facts)
                answer, unread = await _answer_of(peer)
                break
            except ChannelNotStarted:
                raise  # a late message of this channel's predecessor has closed it: it is started again
            except PeerUnavailable:
                await asyncio.sleep(CHILD_LOOK_S)
        failure = None
        if facts["outcome"] != "complete":
            why = facts["why"] or facts["broken"]
            failure = Failure(_kind(why), f"child job {name} ended {facts['outcome']}: {why}")
        elif unread:
            failure = Failure(FailureKind.FAULTY, f"child job {name} has no answer: {unread}")
        await self._runtime.end_actor(f"channel:{name}")
        return self._child_ended(command, answer, failure, facts["outcome"] == "partial")

    async def _status(self, peer: Peer, name: str, log: ProgramLog) -> dict[str, Any]:
        """Return the status of a child job, and log its new lines."""
        facts: dict[str, Any] = msgspec.json.decode(await peer.ask("status", log.count))
        for line in log.news(facts):
            self._log(f"{name}: {line}")
        self._without_credential[name] = tuple(facts["unarmed"])
        self._bills[name] = facts
        return facts

    async def _tend(self, peer: Peer, command: commands.LaunchChildJob, stopping: str) -> None:
        """Pass on to a child job what it may have missed while its channel was restarted: a stop, and to a shard the
        changed limits of the whole job. ``stopping``: the order that the child follows.
        """
        how = self._stops.get((command.goal, command.attempt), "")
        if how not in ("", stopping) and stopping != "cancel":  # nothing comes after a cancellation
            await peer.ask("stop", how, f"job {self._job}")
        if not command.shards:
            return
        terms = self._k.terms
        limits = shards.limits_of(terms.limits)
        before = self._limits.get(peer.name)
        if before is not None and limits != before:
            names = [name for name in limits.__struct_fields__ if getattr(limits, name) != getattr(before, name)]
            changed = {name: getattr(limits, name) for name in names}
            await peer.ask("set_limits", terms.limits_by or f"job {self._job}", msgspec.json.encode(changed))
        self._limits[peer.name] = limits

    async def _shard_returned(
        self, name: str, peer: Peer, command: commands.LaunchChildJob, facts: dict[str, Any]
    ) -> events.ChildJobEnded:  # fmt: skip
        """Return the event of a shard's end.

        Its channel stays, for a driver that has not yet taken all of its results.
        """
        report = msgspec.msgpack.decode(await peer.ask("report"), type=shard_record.ShardReport)
        self._kept.add(name)
        outcome, why = facts["outcome"], facts["broken"] or facts["why"]
        failure = None
        if outcome != "complete":
            kind = _kind(why)
            words = why.partition(": ")[2] if kind == why.partition(":")[0] else why
            failure = Failure(kind, words if outcome == "partial" else f"shard {name} ended {outcome}: {why}")
        partial = outcome == "partial" or bool(facts["broken"])
        return events.ChildJobEnded(
            command.goal, command.attempt, None, failure=failure, partial=partial, report=report
        )  # fmt: skip


async def _answer_of(peer: Peer) -> tuple[Any, str]:
    """Return the answer of a child job that has ended, and why it has none; empty: it has one. Raises
    ``PeerUnavailable`` or ``PeerGone``."""
    try:
        return msgspec.json.decode(await peer.ask("answer")), ""
    except (PeerUnavailable, PeerGone):
        raise
    except Exception as error:  # an author's code may raise any error, above all on partial data
        return None, error_words(error)


_STOPPED = {"drain": FailureKind.CANCELLED, "deadline": FailureKind.TIMED_OUT}


def _kind(why: str) -> FailureKind:
    """Return the reason of a child job's incomplete end as a failure kind: that of the failure that paused it, if it is
    paused.
    """
    word = why.partition(":")[0]
    return _STOPPED.get(word) or next((kind for kind in FailureKind if kind == word), FailureKind.FAULTY)
