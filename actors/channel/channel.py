"""Channel: actor that owns one job, with its state K, its ledger and its journal.

    inbox -> step -> commit -> commands

Each turn is one commit: the events, the result of the step, and only after that the commands of the step. Events that
arrive while a turn is written wait together for the next turn, so a busy channel commits in groups and an idle one at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

import msgspec

from actors.channel.batches.submissions import PERMITS, SubmissionTracker
from actors.channel.dispatch.dispatcher import Dispatch
from actors.channel.feeding import RowIntake
from actors.channel.fencing import met, reported_of, watch
from actors.channel.job_clock import LOOK_FAR_S, JobClock, clock_of
from actors.channel.journal_maintenance import JournalMaintenance
from actors.channel.leases.lease import Lease
from actors.channel.reply_cache import without_recalled
from actors.channel.shard_protocol import ShardLink, reopened
from actors.channel.tool_runs import ToolRuns
from actors.channel.webhooks import WebhookNotifier
from actors.common.background import watched
from actors.common.errors import error_words
from actors.common.process_owner import owner_record
from actors.common.timers import RearmableTimer, WakeEvent
from actors.history.catalog import differs, note_latest, replayed
from actors.history.result_history import opens_again
from actors.history.results import PastResults, ResultBuffer, listed
from actors.jobs.opening import Opening, rekeyed_batch, resuming_batch
from actors.jobs.summary import summary
from actors.journal.journal import Fenced, JobEnded, Journal, NoSuchJob, StoreError
from actors.journal.reply_index import ReplyCache
from actors.journal.retrying import patiently
from actors.journal.state_folder import advised
from actors.limits.forgotten import times
from actors.messaging.inbox import DurableTurn, InboxEntry, PendingGoalRecords, entry, settle, split
from actors.messaging.payload import batch_in
from actors.messaging.servers_changed import ServersChanged
from actors.observability.base.step_timer import StepTimer
from actors.observability.logs.formatting import log_arguments
from actors.observability.metrics import job_ends
from actors.ports.runtime import ChannelNotStarted, PeerUnavailable, Runtime
from cortex.goals.result_list import chained
from cortex.journal import codec
from cortex.scheduler.reports import staff_digest
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import State

_log = logging.getLogger("cortex.channel")
NAMES_S = 1.0
"""Seconds between two looks at the name of the journal."""
FAULT, DEAD = "a turn could not be taken", "the lease can be held no more"
_MADE_AT_START = frozenset({"_k", "_shards"})
_OF_SUBMISSIONS = (
    commands.SubmitBatch, commands.FindSubmission, commands.CollectResults, commands.CancelSubmission,
    commands.DiscardFiles,
)  # fmt: skip


class Channel:
    """Channel of one job.

    ``folder`` is the state folder. Everything else that a channel needs is in its journal or in the ``Opening``.
    """

    def __init__(self, job: str, folder: str, runtime: Runtime) -> None:
        self.job = job
        self._folder = folder
        self._store = runtime.store(folder)
        self._runtime = runtime
        self._k: State
        self._program: Program
        self._journal: Journal
        self._memory: ReplyCache
        self._result_buffer: ResultBuffer
        self._past = PastResults(lambda: self._store.journal(job), runtime)
        self._dispatch: Dispatch
        self._lease: Lease
        self._clock: JobClock
        self._look_s = 0.0
        """The job's time from which a turn looks whether the journal is still under its name."""
        self._tool_runs: ToolRuns
        self._submissions: SubmissionTracker
        self._shards: ShardLink
        self._inbox: list[InboxEntry] = []
        self._traces = PendingGoalRecords(job)
        self._watch = runtime.telemetry.watch(job, folder)
        self._step_timer = StepTimer(runtime.monotonic_s)
        self._watch.timed_by(self._step_timer.unsaved_s)
        self._bell, self._news, self._over = WakeEvent(), asyncio.Event(), asyncio.Event()
        self._ordering = asyncio.Lock()
        """Held by an order from its look at K until K has it: an order that is made of K takes no other back."""
        self._alarm = RearmableTimer(self._bell.ring)
        self._intake = RowIntake(self._put, lambda: self._k, lambda: self.over)
        self._tasks: list[asyncio.Task[None]] = []
        self._account, self._emitted = b"", 0  # the account and the number of results, as of the last turn on disk
        self._whole = True
        """True if all of K is on disk: no turn is being written."""
        self._looks_up = self._batched = self._sealed = self._closed = False
        self.broken = ""
        """Reason why this channel cannot go on: its journal is fenced, or its disk is full. Empty: no reason."""

    def __getattr__(self, name: str) -> Any:
        """Raise ``ChannelNotStarted`` for the parts that ``start`` makes: a message has come before it."""
        if name in _MADE_AT_START:
            raise ChannelNotStarted(f"channel:{self.job} has not begun")
        raise AttributeError(name)

    # -- start and end -----------------------------------------------------------------------------------------------

    def newest_epoch(self) -> int:
        """Return the newest epoch of the job's journal, whichever channel has taken it; 0 if there is none."""
        try:
            found = self._store.journal(self.job)
        except NoSuchJob:
            return 0
        try:
            return found.newest_epoch()
        finally:
            found.close()

    async def start(self, opening_blob: bytes = b"") -> None:
        """Take the job's epoch, replay its journal, ask the branches for the attempts that they hold, and continue.

        ``opening_blob`` holds the terms of a new run. Without it the channel was restarted, and continues under the
        terms of the journal. Raises ``StoreError``.
        """
        opening = msgspec.msgpack.decode(opening_blob, type=Opening) if opening_blob else None
        self._store.prepare()
        self._journal = journal = self._store.journal(self.job, create=opening is not None)
        idle_s, reported = self._journal.idle_s(), await reported_of(journal, self._runtime, opening)
        self._journal.take_epoch(owner_record(opening.owner if opening else self._journal.meta("owner") or b""))
        note_latest(self._journal, opening.terms if opening else None)
        runtime, load = self._runtime, self._runtime.load_program
        k = replayed(self._journal, lambda terms: load(terms.program, terms.params_json), watch=self._watch)
        terms = opening.terms if opening else k.terms if k else None
        if terms is None:
            raise StoreError(f"the journal of {self.job} is empty: run it again")
        self._dispatch = Dispatch(self.job, self._runtime, terms.limits, self._put_events, self._enter)
        self._clock = clock_of(runtime, journal, (k.at_s, k.ahead_s) if k is not None else journal.last_times(), idle_s)
        self._tool_runs = ToolRuns(
            self.job, self._folder, self._runtime, self._put_events, self._traces.add_line, self._watch,
            self._put_durably, self._clock.now_s,
        )  # fmt: skip
        self._program = load(terms.program, terms.params_json)
        branches, workers = await runtime.peer("cortex").ask("staff", bool(self._program.tools))
        held = await met(self._dispatch, tuple(branches), self._journal, runtime, reported)
        self._tool_runs.staffed(tuple(workers))
        self._lease = Lease(
            self.job, self._runtime, lambda: self._k, self._put_events, self._tool_runs.waiting,
            lambda: staff_digest(self._dispatch.staff, self._tool_runs.workers), self._folder,
            (self._journal.meta("limits") or b"").decode(), times(self._folder),
        )  # fmt: skip
        self._shards = ShardLink(self._put, lambda: self._k, self._tool_runs, self._lease)
        account, unmet, now_s = journal.account(journal.seq), self._dispatch.unmet, self._clock.now_s()
        batch, anew = resuming_batch(k, opening, journal.epoch, held, account, unmet, now_s)
        if k is not None and not anew and (text := differs(k, self._program)):
            raise StoreError(
                f"job {self.job}: {text}. Revert the change, or start a new job with another --job: "
                "answers already paid for are reused"
            )
        batch += [events.PermitsGranted(PERMITS, place) for place, route in enumerate(terms.routes) if route.batched]
        batch += await self._lease.allowance.first(terms, self._journal, self._clock.now_s)
        batch += await reopened(journal, self._store, None if anew else k, opening is not None)
        self._memory = self._store.memory(self.job)
        if terms.keeps_text:
            self._memory.catch_up(self._journal, anew)
        if anew or k is None:
            self._journal.set_meta("opened_at", str(self._journal.seq).encode())
            k = codec.open_job(next((each.terms for each in batch if isinstance(each, events.Opened)), terms))
        self._k = k
        self._looks_up = not k.terms.fresh and (bool(k.cancelled or k.submissions) or not self._memory.empty())
        changes = opens_again(self._journal, batch) or k.restored is not None  # the list is another after this turn
        self._result_buffer = ResultBuffer(0 if changes else k.emitted)
        self._batched = any(route.batched for route in terms.routes)
        self._submissions = SubmissionTracker(
            self.job, runtime, lambda: self._k, self._put_events, self._dispatch.processes, self._clock.now_s
        )
        self._upkeep = JournalMaintenance(self._journal, k, self._watch.kept, self._program, self._result_buffer)
        await self._turn([entry(batch)])
        # at rest again: the parent of a shard may have its last report, and counts nothing after that
        self._sealed = opening is None and terms.shard and bool(k.outcome)
        allowance, url = self._lease.allowance, opening.notify if opening else ""
        herald = WebhookNotifier(url, self._journal, self._runtime, lambda: self._k, allowance, lambda: self._outcome)
        guard = watch(self._journal, self._dispatch, lambda: self.over, lambda: self._put_events([events.Ticked()]))
        self._tasks = [watched(work, self.job, self._died) for work in (self._run(), self._hold_lease())]
        self._tasks += [watched(work, self.job) for work in (herald.run(), guard)]

    async def close(self) -> None:
        """Stop without ending the job: attempts in flight are in the journal as asked."""
        self._closed = True
        self._alarm.close()
        self._intake.backpressure.close()
        self._news.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # senders keep their events for the next channel of the job
        settle(self._inbox, PeerUnavailable(f"channel:{self.job}"))
        await self._watch.close()
        if not self._tasks:  # the channel never began, but may have made some parts
            if hasattr(self, "_dispatch"):
                await self._dispatch.close(forget=False)
            for part in {"_memory", "_journal"} & vars(self).keys():
                vars(self)[part].close()
            return
        if self._outcome:
            await self._lease.leave()
        await self._submissions.close()
        await self._dispatch.close(forget=bool(self._outcome))
        await self._tool_runs.close()
        self._past.close()
        self._memory.close()
        self._journal.close()

    @property
    def _outcome(self) -> str:
        """Outcome of the job as far as it is on disk, and so once the channel is sealed; empty while the job runs.

        A channel that dies must not have announced more.
        """
        return self._k.outcome if self._whole or self._sealed else ""

    @property
    def over(self) -> bool:
        """True if no turn will be taken any more: not started, closed, ended, or broken."""
        return all(task.done() for task in self._tasks) or bool(self._outcome or self.broken)

    @property
    def busy(self) -> bool:
        """True if attempts, tool runs or child jobs are in flight."""
        return not self.over and bool(self._k.flights or self._k.errands)

    # -- messages from the driver, and from other channels of the job ----------------------------------------------

    async def feed(self, rows: bytes, start: int, position: int, ended: bool) -> int:
        """Take a window of source rows. Return, once the window is on disk, how many more rows are wanted now."""
        return await self._intake.feed(rows, start, position, ended)

    async def room(self, enough: int, least: int, wait_s: float) -> int:
        """Wait for room, and return how many more rows are wanted (see ``actors.channel.backpressure``)."""
        return await self._intake.room(enough, least, wait_s)

    async def written(
        self, rows: int, size_bytes: int, parts: tuple[int, ...] = (), edition: int | None = None, checksum: int = -1
    ) -> None:  # fmt: skip
        """Record that the sink holds this many results of this edition on disk (``RowIntake.written``)."""
        await self._intake.written(rows, size_bytes, parts, edition, checksum)

    async def shard(self, goal: int, report: bytes) -> bytes:
        """Take the report of a shard, and return what it may commit (``ShardLink.shard``)."""
        return await self._shards.shard(goal, report)

    async def check_budget(self) -> None:
        """Look at the budget again: another shard lacks money, or gave some back."""
        self._shards.check_budget()

    async def report(self) -> bytes:
        """Return what this job, a shard, has spent and done, as msgpack."""
        return self._shards.report()

    # -- messages from the cortex, the branches and the user --------------------------------------------------------

    async def deliver(self, sender: str, incarnation: str, blob: bytes) -> None:
        """Take events of a branch or worker. Return once they are on disk: only then may the sender forget them."""
        self._dispatch.recognise(sender, incarnation, asks=not self.over)
        await self._put(blob, 1 + len(blob) // 1_000, batch_in(blob))

    async def collected(self, number: int, blob: bytes) -> None:
        """Take results of a message-batch submission. Return once they are on disk."""
        if found := self._submissions.results(number, blob):
            await self._put(codec.encode_batch(found), len(found))

    async def granted(self, blob: bytes) -> None:
        """Take a changed lease from the scheduler."""
        if not self.over:
            self._lease.granted(blob)

    async def condemn(self, story: str) -> None:
        """Stop the job because its channel keeps dying, until a user resumes it."""
        async with self._ordering:
            if not self.over:
                await self._put(codec.encode_batch([events.Stopped("the cortex", "condemn", story)]), 1)

    async def staffed(self, branches: tuple[str, ...], workers: tuple[str, ...]) -> None:
        """Take the branches that take calls and the workers that run tools from now on."""
        self._dispatch.staffed(tuple(branches))
        self._tool_runs.staffed(tuple(workers))

    async def rejoin(self) -> bool:
        """Claim the held permits again from a restarted scheduler. Return False if none will be: the job has ended.

        A channel that has not started yet, or is broken, takes no turn; but branches may have calls of it in flight,
        which count until its next claim, or for as long as its lease may have lasted.
        """
        if not self.over:
            self._lease.again()
        return not (self._tasks and self._outcome)

    async def seal(self, results: int = -1) -> bool:
        """Take in nothing more, so that the results and figures of an ended job are final. Return False, and go on, if
        it has not ended, or has not this number of results (negative: any number).

        A reply may come after the end, for example to an attempt that was given up as lost. It is absorbed until the
        job's driver, or its parent, has read the last result. What is refused stays with its sender, as at ``close``;
        an order of a person is refused by ``JobEnded``.
        """
        with contextlib.suppress(StoreError):
            while (self._inbox or not self._whole) and not (self._sealed or self.broken):
                await self._put_durably([events.Ticked()])  # with or after what is under way
        if self.broken or not self._outcome or 0 <= results != summary(self._k)["results"]:
            return False
        self._sealed = True
        return True

    async def stop(self, how: str, who: str) -> None:
        """Stop the job: ``drain`` (resumable) or ``cancel`` (for good). ``who`` is recorded."""
        async with self._ordering:
            await self._put_order(events.Stopped(who, how))

    async def set_limits(self, who: str, changed: bytes) -> None:
        """Change limits of the job, given as JSON of their fields.

        Raises ``ValueError`` for limits that are not valid.
        """
        async with self._ordering:
            limits = msgspec.structs.replace(self._k.terms.limits, **msgspec.json.decode(changed))
            await self._put_order(events.LimitsSet(who, limits))
        self._lease.again()
        self._lease.allowance.check_budget()

    async def set_servers(self, who: str, given: bytes) -> None:
        """Take other servers of the job's model, as an encoded ``ServersChanged``. The branches have their addresses
        already.
        """
        changed = msgspec.msgpack.decode(given, type=ServersChanged)
        fallbacks, peers = changed.fallbacks, len(changed.fallbacks)
        async with self._ordering:
            limits = self._k.terms.limits
            await self._put_order(events.LimitsSet(who, limits, None, fallbacks, peers=peers, closed=changed.closed))
            self._journal.set_meta("wish", changed.wish.encode())
        self._lease.again()

    async def give_answers(self, who: str, answers: bytes) -> None:
        """Take answers that the job waits for, given as JSON of values by name."""
        named = msgspec.json.decode(answers, type=dict[str, Any])
        await self._put_order(*(events.AnswerGiven(who, name, value) for name, value in named.items()))

    async def unblock(self, who: str, credentials: tuple[str, ...]) -> None:
        """Take fingerprints of new credentials, by route. One call then tests whether a route's credential works."""
        async with self._ordering:
            if not (self.over or self._k.stopping):
                await self._put(codec.encode_batch(rekeyed_batch(self._k.terms, who, credentials)), 2)
                self._lease.again()

    async def results(self, index: int, wait_s: float) -> bytes:
        """Return results from an index on, as soon as there are any; an empty list after ``wait_s`` seconds without.
        Restored ones are among them once the channel is sealed: until then a late reply would take their places.
        """
        self._news.clear()
        some = await self._read(index)
        if not some and wait_s > 0 and not self._outcome and not self.broken:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()
            some = await self._read(index)
        return msgspec.msgpack.encode(some)

    async def status(self, number: int = 0) -> bytes:
        """Return as JSON the job's summary, what its driver needs to know, and the program's lines after a number."""
        k, facts = self._k, summary(self._k) | ({} if self._whole or self._sealed else {"outcome": "running"})
        parts = self._dispatch, self._tool_runs, self._submissions
        facts["unarmed"] = sorted({branch for part in parts for branch in part.without_credential()})
        facts["waits"] = "; ".join([*filter(None, [facts["waits"]]), *self._submissions.words()])
        facts |= {"rows_wanted": k.rows_wanted(), "broken": self.broken, "unsaved_s": self._step_timer.unsaved_s()}
        facts |= {"held_until_s": k.hold_until_s, "stopping": k.stopping, "shards": self._tool_runs.shards(k)}
        told = {"state": self._folder, "epoch": k.epoch, "lines": self._traces.lines(number)}
        return msgspec.json.encode(facts | told)

    async def answer(self) -> bytes:
        """Return the program's answer as JSON; ``null`` if there is none yet."""
        if self._outcome not in ("complete", "partial"):
            return b"null"
        return msgspec.json.encode(self._program.answer(self._k))

    async def _read(self, index: int) -> list[tuple[int, Any]]:
        k = self._k
        end = self._emitted if not self._whole else k.emitted if self._sealed else chained(k)
        return await listed(self._journal, self._result_buffer, self._past, index, end)

    # -- turns -----------------------------------------------------------------------------------------------------

    async def _put(self, blob: bytes, size: int, batch: tuple[events.Event, ...] | None = None) -> None:
        """Give events to the next turn, and return once that turn is on disk.

        Raises ``StoreError`` if the channel is broken, ``PeerUnavailable`` if it is closed.
        """
        if self.broken:
            raise StoreError(self.broken)
        if self._closed:  # an order may have waited for its predecessor until now
            raise PeerUnavailable(f"channel:{self.job}")
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enter(InboxEntry(blob, size, durable, batch))
        await durable

    async def _put_durably(self, batch: list[events.Event]) -> None:
        await self._put(codec.encode_batch(batch), len(batch), tuple(batch))

    async def _put_order(self, *order: events.Event) -> None:
        """Give an order of a person to the next turn (``_put``). Raises ``JobEnded`` if this channel is sealed:
        ``PeerUnavailable`` would have the sender ask again. A parent does so, as its shard may be restarted.
        """
        if self._sealed and not self._k.terms.shard:
            raise JobEnded(f"job {self.job} has ended: look at `{advised(self._folder, 'status', self.job)}`")
        await self._put(codec.encode_batch(list(order)), 1)

    def _put_events(self, batch: list[events.Event]) -> None:
        self._enter(entry(batch))

    def _enter(self, each: InboxEntry) -> None:
        self._step_timer.arrived()
        self._inbox.append(each)
        self._bell.ring()

    async def _run(self) -> None:
        """Take turn after turn, until the journal is fenced or cannot be written."""
        while True:
            await self._something()
            if self._sealed and not self._admitted():
                continue
            taken, self._inbox = split(self._inbox)
            run_out = self._lease.run_out()
            try:
                await self._turn([*taken, entry(run_out)] if run_out else taken or [entry([events.Ticked()])])
            except asyncio.CancelledError:  # on disk or not: `close` tells the senders that this is not known
                self._inbox[:0] = taken
                raise
            except StoreError as error:
                self.broken = str(error)
                level = logging.WARNING if isinstance(error, Fenced) else logging.ERROR
                fields = {"event": "job.broken", "job": self.job, "error": self.broken}
                _log.log(level, **log_arguments("the job stops: its journal cannot be written", **fields))
            # an error in this project's code: no sender may wait for a turn that never comes
            except Exception as error:
                self.broken = f"{FAULT}: {error_words(error)}"
                _log.exception("channel:%s has stopped: an error in its own code", self.job)
            if self.broken:
                settle([*taken, *self._inbox], StoreError(self.broken))
                break
            settle(taken)
            if self._inbox:
                await asyncio.sleep(0)  # senders that were answered may put more events before the next turn
        self._halted()

    def _died(self, error: BaseException) -> None:
        """Stop the channel, for a vital task that has died: nobody may wait for turns or permits that never come."""
        halted = self._tasks[0].done()
        if halted or not self._outcome:
            self.broken = self.broken or f"{FAULT if halted else DEAD}: {error_words(error)}"
        if halted:
            settle(self._inbox, StoreError(self.broken))
            self._halted()
        elif self.broken:
            self._put_events([events.Ticked()])  # after this turn `_run` ends

    def _halted(self) -> None:
        self._intake.backpressure.close()
        self._news.set()
        self._over.set()

    def _admitted(self) -> bool:
        """Refuse what waits in the inbox of a sealed channel. Return True if something is left for a turn: what its
        driver has written, and rows for a shard, whose parent may go on."""
        kinds = (events.ResultsWritten, events.RowsRead) if self._k.terms.shard else (events.ResultsWritten,)
        told, self._inbox = self._inbox, []
        for each in told:
            if each.batch and isinstance(each.batch[0], kinds):
                self._inbox.append(each)
            else:
                settle([each], PeerUnavailable(f"channel:{self.job} has ended its job"))
        return bool(self._inbox)

    async def _something(self) -> None:
        """Wait for an event, or for the time at which K changes without one."""
        woken = False
        while not self._inbox:
            due_at_s = None if self._k.outcome else self._k.due_at_s()
            if due_at_s is not None:
                wait_s, dated = due_at_s - self._clock.now_s(), self._k.terms.limits.deadline_at_s is not None
                if dated and woken and self._clock.was_set():
                    return
                if not self._alarm.set(min(wait_s, LOOK_FAR_S) if dated else wait_s) and woken:
                    return
            await self._bell.wait()
            woken = True

    async def _turn(self, taken: list[InboxEntry]) -> None:
        """Take one turn: decode, step, commit, and only then carry out the commands."""
        k, source, taken = self._k, self._journal, self._traces.before(taken)
        at_s = max(k.at_s, self._clock.now_s())
        if at_s >= self._look_s:
            self._look_s = at_s + NAMES_S
            source.see_stands()
        ahead_s = self._clock.ahead_s(at_s)
        batches = tuple([each.batch or codec.decode_batch(each.blob) for each in taken])
        turn = events.Turn(at_s, batches, b"", ahead_s)
        self._whole, self._emitted = False, chained(k)
        out = self._step_timer.step(k, self._program, turn, bool(self._inbox))
        self._account, before = codec.encode_account(k), self._account
        blobs = [codec.encode_turn(at_s, [each.blob for each in taken], self._account, before, ahead_s)]
        apart = source.remote or self._runtime.apart(source)
        seq = await patiently(source, partial(source.append, blobs), apart) if apart else source.append(blobs)
        self._whole = True
        seen = self._step_timer.over(turn), seq, turn, out, k
        self._watch.before(*seen)
        self._settle(seq, turn)
        await self._carry_out(out)
        self._watch.after(*seen)
        self._submissions.look()
        self._lease.look()
        self._upkeep.look(k, seq)
        self._intake.backpressure.look()
        if k.outcome:
            source.see_stands()
            if end := job_ends.encoded(k):  # now: the driver closes the channel once it knows
                self._runtime.peer("cortex").tell("ended", end)
            self._news.set()
            self._over.set()

    def _settle(self, seq: int, turn: events.Turn) -> None:
        """Settle the attempts that have ended in a turn now on disk, and add its replies to the index of replies."""
        landed = DurableTurn(seq, turn)
        for granted in landed.granted:
            self._lease.taken(granted)
        self._dispatch.settled(landed.settled(self._k))
        if landed.paid and self._k.terms.keeps_text:
            self._memory.note(seq, landed.paid)
        self._upkeep.record_turn(landed.count, turn, self._k.outcome)

    async def _carry_out(self, out: list[commands.Command]) -> None:
        calls: list[commands.Call] = []
        results: list[commands.EmitResult] = []
        abandoned: list[tuple[int, int]] = []
        call, result = commands.Call, commands.EmitResult
        for command in out:
            kind = type(command)
            if kind is call:
                calls.append(command)  # type: ignore[arg-type]
            elif kind is result:
                results.append(command)  # type: ignore[arg-type]
            elif type(command) is commands.AbandonAttempt:
                abandoned.append((command.goal, command.attempt))
                self._tool_runs.abandon(command.goal, command.attempt)
            elif type(command) is commands.FinishJob:
                self._news.set()
            elif isinstance(command, (commands.RecordGoal, commands.LogLine)):
                self._traces.take(command)
            elif isinstance(command, (commands.StartToolRun, commands.LaunchChildJob, commands.SuspendChildJob)):
                self._tool_runs.begin(command, self._k)
            elif isinstance(command, _OF_SUBMISSIONS):
                self._submissions.carry_out(command)
        if results:
            self._result_buffer.add(results)
            self._news.set()
        if calls and (self._looks_up or not (self._program.asks_once or self._k.terms.fresh)):
            calls = await self._without_recalled(calls)
        if self._batched:
            calls, abandoned = self._submissions.take(calls), self._submissions.abandon(abandoned)
        if abandoned:
            self._dispatch.abandon(abandoned)
        if calls and self._dispatch.send(self._watch.marked(calls)):
            await asyncio.sleep(0)  # messages are on their way during the rest of the turn

    async def _without_recalled(self, calls: list[commands.Call]) -> list[commands.Call]:
        """Return the calls that no job has paid for yet. Stored replies answer the others in the next turn."""
        look_up = partial(without_recalled, self.job, calls, self._memory, self._journal)
        calls, recalled = await patiently(self._journal, look_up)
        if recalled is not None:
            self._enter(recalled)
        return calls

    async def _hold_lease(self) -> None:
        """Hold a lease for as long as the job runs, then release the branches."""
        await self._lease.hold()
        await self._over.wait()  # on disk as well: until then a restarted channel may ask the branches what they hold
        if not self.broken:
            await self._lease.leave()
            await self._submissions.settle()
            await self._dispatch.close(forget=True)
        self._memory.flush()
