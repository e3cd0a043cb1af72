"""Dispatcher: assigns calls to branches, and detects branches that have died.

A message is taken at most once, and only by the incarnation of the branch that it is addressed to. So a message without
an answer can be sent again, and a call is declared lost only when the process that had it is dead.

The dispatcher keeps nothing on disk: a new channel rebuilds its state by asking the branches for the attempts they
hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from actors.branch.branch import DRAINING
from actors.channel.dispatch.branch_links import BranchLink, BranchLinks, come_back
from actors.channel.dispatch.branch_liveness import BranchLiveness, Lost
from actors.channel.dispatch.piggyback import PiggybackedResults
from actors.common.errors import error_words
from actors.messaging.inbox import InboxEntry
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from cortex.state import commands, events
from cortex.state.state import flight_key
from cortex.values.limits import Limits
from policies.failures.failure import Failure, FailureKind

BEAT_S = 1.0
"""Seconds between two signs of life of a branch that has calls."""
AWAY_S = BEAT_S / 4
"""Seconds until a branch that did not answer is asked again."""
ANSWER_S = 30.0  # seconds for a branch to take a message, which it does at once; a call to a killed actor may never end
SILENT_S = BEAT_S / 2
"""Seconds in which a branch must give a sign of life, before the cluster is asked whether the branch is dead."""
LOOKS = 3
"""Number of times that the cluster is asked, ``AWAY_S`` apart."""
BEAT_LINKS = 100
"""Branches asked for a sign of life at one beat, at most: of a thousand that have calls, each is asked every ten
seconds. A branch that the scheduler has removed from the list is asked at the next beat, and a branch that is given
calls shows by its answer that it is alive."""
AUDIT_BEATS = 10
"""Beats between two audits: calls that are out since the last audit are compared with those that the branch holds."""
NOW_MAX = 16
"""Calls of a message for whose answer no task waits, at most. With more calls, the cost of a task is small beside
theirs."""
PEERS_MAX = 8
"""Branches that are named to a branch without a credential: any of them can give it."""
MEET_S = 5.0
"""Seconds for which a new channel waits for a branch that does not answer: calls that the branch holds are paid
already."""

_log = logging.getLogger("cortex.dispatch")


class Dispatch:
    """Dispatcher of one job's calls.

    ``lost`` takes the events of calls that died with their branch, and ``bring`` the entries that answers bring along.
    """

    def __init__(
        self, job: str, runtime: Runtime, limits: Limits, lost: Lost, bring: Callable[[InboxEntry], None]
    ) -> None:
        self._job = job
        self._runtime = runtime
        self._limits = limits
        self._lost = lost
        self._links = BranchLinks(limits.concurrency)
        self._liveness = BranchLiveness(self._links, lost, self.send)
        self._where = self._liveness.where
        self._piggyback = PiggybackedResults(job, bring)
        self._unassigned: dict[int, commands.Call] = {}
        """Calls for which there is no branch now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._beats = 0
        self._messages = 0
        """Number of the last message, over all branches: a branch that left and came back has a new link, but remembers
        the numbers of its old messages."""
        self._closed = False
        self.epoch = self.acknowledged = 0
        self.outdated = asyncio.Event()
        """Set once a branch knows of an epoch of the job that is not below this channel's, and so takes no calls of it.
        """
        self._met: set[str] = set()
        """Incarnations of branches that this channel has met: they know its epoch from itself."""
        self.unmet = False
        """True if a branch did not say what it holds when it was asked last, or a process of one was not asked."""
        self._strangers: set[str] = set()
        """Incarnations of branches that were replaced before this channel asked what they hold."""
        self.staff: tuple[str, ...] = ()
        """Names of the branches that take calls, as last told."""

    async def meet(self, names: tuple[str, ...], epoch: int) -> tuple[tuple[int, int], ...]:
        """Ask these branches for the attempts of this job that they hold, and return these as (goal, attempt) pairs.

        ``acknowledged`` is then the highest epoch of the job that a branch knew before.
        """
        self.epoch, self.staff, self._piggyback.epoch = epoch, names, epoch
        self.outdated.clear()
        for name in filter(lambda name: self._links.get(name) is None, names):
            self._links.add(BranchLink(name, self._runtime.peer(name)))
        held = await asyncio.gather(*map(self._meet, self._links))
        self.unmet = None in held or bool(self._strangers)
        if self._needs_watch():
            self._watch()
        return tuple(key for keys in held for key in keys or ())

    def staffed(self, names: tuple[str, ...]) -> None:
        """Take the branches that take calls from now on. Calls at other branches end there; unsent ones go to these."""
        self.staff = names
        wanted = set(names)
        for link in list(self._links):
            if link.name not in wanted:
                self._liveness.leave(link)
            elif link.leaving:  # the branch has ended and a new one has its name: contact it again
                link.leaving = False
                self._links.look(link)
        for name in names:
            if self._links.get(name) is None:
                link = BranchLink(name, self._runtime.peer(name))
                self._links.add(link)
                self._start(self._meet_later(link))
        if self._unassigned and names:
            calls, self._unassigned = list(self._unassigned.values()), {}
            self.send(calls)

    def begin_anew(self) -> None:
        """Have the channel begin anew, with an epoch above those that branches know now."""
        self._runtime.peer(f"channel:{self._job}").tell("start")

    def recognise(self, sender: str, incarnation: str, asks: bool) -> None:
        """Begin anew if events come from a process of a branch that this channel has not asked what it holds.

        It was taken for dead and replaced, and its successor holds nothing. Where the journal has lost its end, its
        replies may have the numbers of later calls: the question of each is compared from then on (``State.unmet``).
        ``asks``: the job asks questions still. Raises ``PeerUnavailable``, so that the process sends them again.
        """
        link = self._links.get(sender)
        if link is None or self.unmet or not asks:
            return
        asked = (link.incarnation, *link.past)
        if incarnation in asked or not any(asked):  # or none has answered yet
            return
        if incarnation not in self._strangers:
            self._strangers.add(incarnation)
            self.begin_anew()
        raise PeerUnavailable(f"channel:{self._job}")

    async def _meet_later(self, link: BranchLink) -> None:
        await self._meet(link)
        self._watch()

    async def _meet(self, link: BranchLink) -> list[tuple[int, int]] | None:
        """Ask a branch for the attempts of this job that it holds, and return these; None if it does not answer."""
        for _ in range(int(MEET_S / AWAY_S)):
            asked = link.incarnation
            try:
                async with asyncio.timeout(MEET_S):
                    incarnation, link.has_credential, keys, received = await link.peer.ask(
                        "held", self._job, self.epoch
                    )
            except Exception as error:  # away, gone, too slow, or an error of the cluster
                link.up = False
                self._links.look(link)
                if isinstance(error, TimeoutError):
                    break
                await asyncio.sleep(AWAY_S)
                continue
            self._liveness.renewed(link, asked, incarnation)
            if link.incarnation != incarnation:
                continue  # the calls of an earlier process died with it
            self._knows(link, received)
            for goal, attempt in keys:
                link.out.setdefault(flight_key(goal, attempt), commands.Call(goal, "", attempt, b"", b"", 0, 0, 0.0))
                self._where[flight_key(goal, attempt)] = link
            self._liveness.up(link)
            return list(keys)
        # the branch is asked again at its first sign of life; results that it holds arrive by themselves
        return None

    async def _introduce(self, link: BranchLink) -> None:
        """Ask a branch that was silent when it was to be met what it knows of the job.

        Where the journal has lost its end, or is another one, the branch may know of later epochs. It would take the
        calls of this channel for old ones, or for those of a message that it has had.
        """
        asked = link.incarnation
        incarnation, link.has_credential, _, received = await link.peer.ask("held", self._job, self.epoch)
        self._liveness.renewed(link, asked, incarnation)
        if link.incarnation == incarnation:
            self._knows(link, received)

    def _knows(self, link: BranchLink, epoch: int) -> None:
        """Record the highest epoch of the job that a branch knew when this channel met it, or met it again."""
        link.met, again = True, link.incarnation in self._met
        self._met.add(link.incarnation)
        self.acknowledged = max(self.acknowledged, epoch)
        if epoch > self.epoch or (epoch == self.epoch and not again):
            self.outdated.set()

    def processes(self) -> dict[str, str]:
        """Return the incarnations of the branches by their names; empty where none is known."""
        return {link.name: link.incarnation for link in self._links}

    def without_credential(self) -> list[str]:
        """Return the branches that hold no credential for this job."""
        return [link.name for link in self._links if not link.has_credential]

    def send(self, calls: Iterable[commands.Call]) -> bool:
        """Give calls to branches, neighbours together, each time to the branch with the least load.

        Return True if a message sets out to another process now.
        """
        links, where = self._links, self._where
        together = links.together(self._limits)
        link: BranchLink | None = None
        given: dict[str, BranchLink] = {}
        for place, call in enumerate(calls):
            key = call.goal << 20 | call.attempt  # ``flight_key``
            if place % together == 0:
                if link is not None:
                    links.look(link)
                link = links.least()
                if link is not None:
                    given[link.name] = link
            if link is None:
                self._unassigned[key] = call
                continue
            link.queue[key] = call
            where[key] = link
        if link is not None:
            links.look(link)
        begin = [link for link in given.values() if not link.carrying]
        for link in begin:
            if not self._fast_carry(link):
                link.carrying = True
                self._start(self._carry(link))
        self._watch()
        return not all(link.near for link in begin)

    def abandon(self, keys: list[tuple[int, int]]) -> None:
        """Take abandoned calls back if they are not sent, and tell the branches of the others."""
        by_link: dict[str, list[tuple[int, int]]] = {}
        unsent: list[events.Event] = []
        for goal, attempt in keys:
            key = flight_key(goal, attempt)
            link = self._where.get(key)
            call = self._unassigned.pop(key, None) if link is None else link.queue.pop(key, None)
            if call is None:
                if link is not None:
                    by_link.setdefault(link.name, []).append((goal, attempt))
                continue
            self._where.pop(key, None)
            failure = Failure(FailureKind.CANCELLED, "abandoned before it was sent", sent=False)
            unsent.append(events.AttemptFailed(goal, call.sample, attempt, failure))
        for name, some in by_link.items():
            self._runtime.peer(name).tell("abandon", self._job, self.epoch, tuple(some))
        if unsent:
            self._lost(unsent)

    def settled(self, keys: Iterable[int]) -> None:
        """Remove attempts that have ended, given by ``flight_key``."""
        for link in come_back(keys, self._where, self._piggyback.on_disk):
            if (len(link.queue) + len(link.out)) >> self._links.level_bits != link.level:
                self._liveness.look(link)

    async def close(self, forget: bool) -> None:
        """Stop. ``forget``: the branches drop all that they keep for this job."""
        self._closed = True
        for task in [*self._tasks, *([self._beating] if self._beating else [])]:
            task.cancel()
        self._piggyback.close()
        if forget:
            for link in self._links:
                link.peer.tell("forget", self._job)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fast_carry(self, link: BranchLink) -> bool:
        """Send a small message to a branch of this process without a task that waits for the answer (fast path).

        Returns False, with the queue as it was, if ``_carry`` has to send the message. Both lead to the same journal:
        ``tests/edge/messaging/test_in_process_messages.py``.
        """
        if link.now is None or not link.met or len(link.queue) > NOW_MAX:
            return False
        payload, keys = link.packed(self._limits)
        number = self._messages = self._messages + 1
        reported = link.acknowledged
        on_disk, waits = self._piggyback.sent(link, len(keys))
        tell = partial(self._fast_answered, link, number)
        args = (self._job, self.epoch, link.incarnation, number, payload, on_disk, tell)
        link.carrying, taken = True, False
        try:
            with contextlib.suppress(PeerGone):
                taken = waits and link.now("fast_work", *args)
        finally:
            if not taken:
                link.put_back(keys)
                link.acknowledged, link.carrying = reported, False
        return taken

    def _fast_answered(self, link: BranchLink, number: int, brought: bytes) -> None:
        """Take the answer to a message that ``_fast_carry`` sent."""
        link.carrying = False
        if self._closed:
            return
        try:
            if brought:
                self._piggyback.take_answer(link, number, (link.incarnation, brought))
        finally:  # queued calls continue also if the answer could not be taken
            if not link.up:
                self._liveness.up(link)
            if link.queue:
                link.carrying = True
                self._start(self._carry(link))

    async def _carry(self, link: BranchLink) -> None:
        """Send the queue of a branch, message after message."""
        try:
            while link.queue:
                blob, keys = link.packed(self._limits)
                link.on_the_way = keys
                try:
                    await self._hand_over(link, blob, keys)
                except Exception:  # the queue goes on, and an audit finds the calls that the branch did not take
                    _log.exception("a message of job %s to %s met an error", self._job, link.name)
                    await asyncio.sleep(AWAY_S)
                link.on_the_way = ()
        finally:
            link.on_the_way = ()
            link.carrying = False

    async def _hand_over(self, link: BranchLink, blob: bytes, keys: list[int]) -> None:
        """Send one message until the branch has taken it. A repeated message is known to the branch by its number."""
        self._messages += 1
        meant_for, number, doubtful = link.incarnation, self._messages, False
        while True:
            try:
                if not link.met:
                    await self._waited_for(link, self._introduce(link))
                    if link.incarnation != meant_for:
                        return  # its calls are queued again
                if self.outdated.is_set():
                    link.put_back(keys)
                    await asyncio.sleep(AWAY_S)
                    return
                peers, along = self._links.able(PEERS_MAX), self._piggyback.sent(link, len(keys))
                args = (self._job, self.epoch, meant_for, number, blob, peers, *along)
                if link.near:  # the branch of this process answers or is gone: no timer is needed
                    answer = await link.peer.ask("work", *args)
                else:
                    answer = await self._waited_for(link, link.peer.ask("work", *args))
                text = self._piggyback.take_answer(link, number, answer)
                break
            except PeerGone:
                await self._gone(link, meant_for)
                return
            except (PeerUnavailable, TimeoutError):
                if link.incarnation != meant_for:
                    return  # it has ended, as was found out meanwhile: its successor may be up
                doubtful = bool(meant_for)  # a message for no incarnation is taken by none
                self._liveness.down(link)
                await self._inquire(link)
                await asyncio.sleep(AWAY_S)
                if link.incarnation != meant_for:
                    return  # the branch died and its calls were declared lost, or the next incarnation has answered
        if not link.up:
            self._liveness.up(link)
        if not text:  # it has come to know of a later epoch since
            self.outdated.set()
        if text == meant_for or not text:
            return
        if text == DRAINING or not doubtful:  # the message was not taken
            link.put_back(keys)
        if text == DRAINING:
            self._liveness.leave(link)
        else:
            self._liveness.renewed(link, meant_for, text)

    async def _waited_for(self, link: BranchLink, answer: Awaitable[Any]) -> Any:
        """Wait for an answer of a branch until the process that is asked is known to have ended. The calls behind it
        would wait as well: a call to a killed actor may never end."""
        try:
            async with asyncio.timeout(ANSWER_S) as link.waiting:
                return await answer
        finally:
            link.waiting = None

    # -- signs of life ---------------------------------------------------------------------------------------------

    def _needs_watch(self) -> bool:
        return bool(self._where or self._unassigned) or not all(link.up and link.has_credential for link in self._links)

    def _watch(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        """Ask branches that have calls for signs of life, while any calls are out. Idle branches are not asked."""
        while self._needs_watch():
            await asyncio.sleep(BEAT_S)
            beats = self._beats = self._beats + 1
            await self._each(self._look_at, self._links.to_ask(beats, BEAT_LINKS))
            if beats % AUDIT_BEATS == 0:
                await self._each(self._audit, self._links.to_audit(beats, BEAT_LINKS))
            if self._unassigned:
                await self._ask_for_staff()

    async def _each(self, look: Callable[[BranchLink], Awaitable[None]], links: Iterable[BranchLink]) -> None:
        """Look at each of these branches. An error of one look ends neither the others nor the next beats: without
        beats, a branch that dies would be waited for without end.
        """
        for error in await asyncio.gather(*map(look, links), return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("a look of job %s at a branch met an error", self._job, exc_info=error)

    async def _look_at(self, link: BranchLink) -> None:
        incarnation = link.incarnation
        try:
            async with asyncio.timeout(SILENT_S):
                peers = () if link.has_credential else self._links.able(PEERS_MAX)
                beat = await link.peer.ask("beat", self._job, peers)
                if not link.met:
                    await self._introduce(link)
        except PeerGone:
            await self._gone(link, incarnation)
            return
        except Exception as error:  # away, silent, or an error of the cluster
            if not isinstance(error, TimeoutError):
                self._liveness.down(link)
            for _ in range(LOOKS):  # a cluster takes a second or two to notice a death
                await self._inquire(link)
                if not link.incarnation:
                    return
                await asyncio.sleep(AWAY_S)
            if link.leaving:  # the cortex does not count on it any more, and perhaps does not know that it is there
                self._runtime.peer("cortex").tell("missed", link.name)
            return
        link.has_credential = beat["armed"]
        self._liveness.up(link)
        self._liveness.renewed(link, incarnation, beat["incarnation"])

    async def _inquire(self, link: BranchLink) -> None:
        """Ask the cluster whether the process of a silent branch has ended: silence proves nothing, and neither does a
        cluster that cannot tell.
        """
        incarnation = link.incarnation
        try:
            dead = bool(incarnation) and await self._runtime.is_dead(link.name, incarnation)
        except Exception as error:  # any error of Ray while its head is unavailable
            _log.debug("the cluster does not say whether %s lives: %s", link.name, type(error).__name__)
            return
        if dead and incarnation == link.incarnation:
            self._liveness.renewed(link, incarnation, "")
            self._liveness.down(link)

    async def _audit(self, link: BranchLink) -> None:
        """Declare calls lost that have been out since the last audit and that the branch does not hold any more.

        A branch forgets a call when its end is on the channel's disk, so a result that is merely late is not missed.
        """
        on_the_way = frozenset(link.on_the_way)
        old = [key for key in link.seen if key in link.out and key not in on_the_way]
        link.seen = set(link.out)
        if not old:
            return
        incarnation = link.incarnation
        try:
            async with asyncio.timeout(SILENT_S):  # all beats wait for the slowest answer
                answer, _, keys, _ = await link.peer.ask("held", self._job, self.epoch)
        except Exception:  # late, away, gone, or an error of the cluster: nothing is known
            return
        if answer == incarnation == link.incarnation:
            held = {flight_key(goal, attempt) for goal, attempt in keys}
            missing = [key for key in old if key not in held and key in link.out]
            self._liveness.declare_lost(link, missing, "its branch knows nothing of it any more")

    async def _gone(self, link: BranchLink, incarnation: str) -> None:
        """Handle the death of this incarnation. The next one takes later messages."""
        if incarnation != link.incarnation:
            return  # the next incarnation has answered meanwhile
        if incarnation:
            self._liveness.renewed(link, incarnation, "")
        else:
            self._liveness.take_back(link)
        self._liveness.down(link)
        if link.leaving:
            self._liveness.look(link)
            return
        self._runtime.peer("cortex").tell("missed", link.name)
        await asyncio.sleep(AWAY_S)

    async def _ask_for_staff(self) -> None:
        try:
            async with asyncio.timeout(MEET_S):  # the beats of other branches wait; the scheduler also tells by itself
                branches, _ = await self._runtime.peer("cortex").ask("staff", False)
        except Exception as error:  # away, or unable to start any: it is asked again at the next beat
            _log.debug("the cortex names no branch to job %s: %s", self._job, error_words(error))
            return
        self.staffed(tuple(branches))
