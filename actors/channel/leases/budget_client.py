"""Client of the budgets that cover a job: it leases slices of them.

A slice is requested before any call is begun and before the last one is used up, and returned when the job has ended.
It is on disk, or recorded by the scheduler, before the job's K has it; a smaller slice is in K before it is reported.
So the amount that is counted for a job is never less than the amount that the job may commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from actors.channel.leases.parent import ParentClient
from actors.journal.journal import Journal, StateFolder, StoreError
from actors.limits.budgets import books_of
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from cortex.admission.budget_slices import open_nusd, unanswered, used_nusd
from cortex.journal.codec import decode_account
from cortex.scheduler.budgets import BudgetAnswer, BudgetRequest, day_at
from cortex.state import events
from cortex.state.budget_slice import NOTHING_YET, TOKENS, BudgetSlice
from cortex.state.shard_record import ShardReport
from cortex.state.state import State
from cortex.values.ledger import Ledger
from cortex.values.limits import JobTerms
from policies.limits.slices import PERIODS, window_of

LOOK_S = 1.0
"""Seconds between two looks at the budgets of a job with labels: a budget may be set, raised or lowered."""
LOOK_FAR_S = 5.0
"""Seconds between two looks at budgets that a cluster's scheduler keeps, while the job lacks nothing."""
PAUSE_S = 0.1
"""Seconds between two requests, at least."""
AHEAD = 4
"""Divisor of the last slice: more is asked for when less than this part of it is left."""

_log = logging.getLogger("cortex.allowance")
_answer_decoder = msgspec.msgpack.Decoder(BudgetAnswer)


class BudgetClient:
    """Budget client of one job.

    ``state`` returns the job's state as it is now, and ``put`` gives events to the next turn. ``limits`` is the address
    of the budgets if they are shared with other clusters.
    """

    def __init__(
        self, job: str, folder: str, runtime: Runtime, state: Callable[[], State],
        put: Callable[[list[events.Event]], None], limits: str = "",
    ) -> None:  # fmt: skip
        self._job = job
        self._runtime = runtime
        self._state = state
        self._put = put
        here = getattr(runtime, "cluster", "") in ("inline", "local")
        own = StateFolder(folder) if here or limits else None
        self._books = None if own is None else books_of(own, limits, lambda: runtime.now_s())
        self._coming: tuple[BudgetSlice, ...] | None = None
        """Slices that K will have in its next turn; None: none are on their way."""
        self._room: dict[str, int] = {}
        """Amount that each slice had left when it was new, by budget."""
        self.seen: tuple[tuple[str, int, int, int], ...] = ()
        """Budgets that cover the job: name, first day of the window, cap, and what all jobs have used of it, in 1e-9
        USD."""
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._left = False
        self._new = False
        """True if the job has never begun anything, and no budget store has taken its first request yet."""
        self._parent: ParentClient | None = None
        self._now_s: Callable[[], float] = runtime.now_s
        """The job's clock; until it is known, that of the machine."""

    async def first(self, terms: JobTerms, journal: Journal, now_s: Callable[[], float]) -> list[events.Event]:
        """Return the events for the first turn of this incarnation, with the slices that the job may commit.

        ``now_s``: the job's clock, by which K counts its days; the machine's clock may be set. Raises ``StoreError`` if
        a budget covers the job and no price is known.
        """
        self._now_s = now_s
        self._parent = ParentClient(self._job, self._runtime) if terms.shard else None
        if not self._covered(terms):
            return []
        account = journal.account(journal.seq)
        known = decode_account(account) if account else None
        ledger = known.ledger if known is not None else Ledger()
        if self._parent is not None:
            report = ShardReport(journal.epoch, self._parent.next(), ledger)
            try:
                self._parent.lent = await self._parent.ask(report)  # before anything is begun
            except PeerGone:
                if known is None or not known.outcome:  # one that has ended begins nothing more
                    raise
        ledger.turn_to(now_s())
        self._new = not account
        answer = await self._ask(self._asked(terms, ledger, ()))
        # a budget that could not be asked still bounds the job: no call is begun until it was asked
        if answer is None:
            return [events.BudgetLeased((NOTHING_YET,))]
        if terms.labels and answer.slices and (text := unpriced(terms, answer.slices[0].budget)):
            raise StoreError(text)
        return [self._event(answer)] if answer.slices else []

    def look(self) -> None:
        """Check whether more is wanted soon, whether K has the last slices, or whether the job has ended.

        Called after each turn.
        """
        k = self._state()
        if not self._covered(k.terms):
            return
        purse = k.purse
        if self._coming is not None and self._coming == (purse.slices if purse is not None else ()):
            self._coming = None
            self._taken.set()
        if k.outcome or (purse is not None and not purse.reason and (purse.lacks_nusd or self._low(k))):
            self._changed.set()
        elif self._parent is not None and k.tally.failed_for_good != self._parent.failed:
            self._changed.set()  # the parent sees whether it is too many

    def check_budget(self) -> None:
        """Look at the budgets now: the bounds of the job were changed."""
        self._changed.set()

    def serial(self) -> int:
        """Return the serial of a shard's next report to its parent; 0 for a job that is no shard."""
        return self._parent.next() if self._parent is not None else 0

    def _covered(self, terms: JobTerms) -> bool:
        return bool(terms.labels) or self._parent is not None

    def _low(self, k: State) -> bool:
        assert k.purse is not None
        for each in k.purse.slices:
            left_nusd = each.upto_nusd - used_nusd(k, each.period)
            if AHEAD * left_nusd < self._room.get(each.budget, 0):
                return True
        return False

    async def hold(self) -> None:
        """Renew slices until the job ends."""
        k = self._state()
        while self._covered(k.terms) and not k.outcome:
            stirred = self._changed.is_set()
            self._changed.clear()
            await self._renew(stirred)
            await asyncio.sleep(PAUSE_S)
            k = self._state()
            lacks = k.purse is not None and k.purse.lacks_nusd
            near = lacks or self._books is not None or self._parent is not None
            wait_s = LOOK_S if near else LOOK_FAR_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):  # in 3.11 wait_for may swallow a cancellation
                    await self._changed.wait()
            k = self._state()

    async def leave(self) -> None:
        """Return the amounts that the job did not use. Called at its end."""
        k = self._state()
        if not self._left and k.terms.labels:  # a parent asks for the last report itself
            await self._ask(msgspec.structs.replace(self._asked(k.terms, k.ledger, ()), over=True))
            self._left = True  # not before: a channel that closes meanwhile cancels this, and tells it again

    async def _renew(self, stirred: bool) -> None:
        """Ask the budgets, and give changed slices to K. Returns once K has them, so that no request is made twice."""
        k = self._state()
        if self._parent is not None:
            try:
                await self._parent.report(k, self._runtime.monotonic_s(), stirred)
            except (PeerUnavailable, PeerGone, StoreError):
                return  # the parent is being restarted: the shard may use what it holds meanwhile
            except Exception:  # of the parent or of the cluster: as good as no answer
                _log.exception("the parent of %s does not take its report", self._job)
                return
            if self._state().outcome:
                return
        asked = self._asked(k.terms, k.ledger, _slices(k), 0 if unanswered(k) else _lacks(k))
        answer = await self._ask(msgspec.structs.replace(asked, open_nusd=open_nusd(k)))
        k = self._state()
        if answer is None or k.outcome:
            return
        event = self._event(answer)
        if event.slices and (text := unpriced(k.terms, event.slices[0].budget)):
            event = msgspec.structs.replace(event, reason=text)
        purse = k.purse
        lacks = purse is not None and purse.lacks_nusd and not unanswered(k)
        if lacks and not event.reason and not _more(k, event.slices):
            return  # another job may give something back
        if event.slices == _slices(k) and bool(event.reason) == bool(purse is not None and purse.reason):
            return
        held = {each.budget: each.upto_nusd for each in _slices(k)}
        self._coming = event.slices
        self._taken.clear()
        self._put([event])
        await self._taken.wait()
        if self._parent is not None and any(each.upto_nusd < held.get(each.budget, 0) for each in event.slices):
            self._changed.set()  # what another shard waits for is free once this is reported

    def _event(self, answer: BudgetAnswer) -> events.BudgetLeased:
        return events.BudgetLeased(answer.slices, answer.reason, answer.again_s)

    def _asked(
        self, terms: JobTerms, ledger: Ledger, slices: tuple[BudgetSlice, ...], lacks_nusd: int = 0
    ) -> BudgetRequest:
        at_s = self._now_s()
        day = day_at(at_s, ledger.day)
        now = msgspec.structs.replace(ledger)  # a copy: K's own ledger advances with its turns only
        now.turn_to(86_400.0 * day)
        own = [each for each in slices if each.period in PERIODS]
        holds = {each.budget: each.upto_nusd for each in own if each.window == window_of(each.period, day)}
        return BudgetRequest(
            job=self._job, labels=terms.labels, day=day, day_nusd=now.day_nusd, month_nusd=now.month_nusd,
            holds=holds, lacks_nusd=lacks_nusd, new=self._new, at_s=at_s,
        )  # fmt: skip

    async def _ask(self, asked: BudgetRequest) -> BudgetAnswer | None:
        """Return the answer of the budgets and of the parent job; None if they cannot be asked now."""
        answer: BudgetAnswer | None = BudgetAnswer()
        if asked.labels:
            answer = await self._of_budgets(asked)
        if answer is not None and self._parent is not None:
            slices, text = self._parent.lent
            answer = BudgetAnswer((*answer.slices, *slices), answer.reason or text, answer.again_s, answer.spent)
            self._room |= self._parent.room()
        return answer

    async def _of_budgets(self, asked: BudgetRequest) -> BudgetAnswer | None:
        try:
            if self._books is not None:
                answer = await asyncio.to_thread(self._books.ask, asked)
            else:
                blob = await self._runtime.peer("cortex").ask("lend", msgspec.msgpack.encode(asked))
                answer = _answer_decoder.decode(blob)
        except (PeerUnavailable, PeerGone):
            return None
        except StoreError as error:
            _log.error("%s", error)
            return None
        except Exception:  # of the scheduler or of a database: as good as no answer
            _log.exception("the budgets of job %s do not answer", self._job)
            return None
        self._new = False
        self.seen = answer.spent
        used = {"day": asked.day_nusd, "month": asked.month_nusd}
        self._room = {each.budget: each.upto_nusd - used[each.period] for each in answer.slices}
        return answer


def _slices(k: State) -> tuple[BudgetSlice, ...]:
    return k.purse.slices if k.purse is not None else ()


def _lacks(k: State, period: str = "") -> int:
    if k.purse is None:
        return 0
    return k.purse.lacks_tokens if period == TOKENS else k.purse.lacks_nusd


def _more(k: State, slices: tuple[BudgetSlice, ...]) -> bool:
    """Return whether these slices have room for the next call, or leave less than the job holds."""
    held = {each.budget: each.upto_nusd for each in _slices(k)}
    return all(each.upto_nusd >= used_nusd(k, each.period) + _lacks(k, each.period) for each in slices) or any(
        each.upto_nusd < held.get(each.budget, 0) for each in slices
    )


def unpriced(terms: JobTerms, budget: str) -> str:
    """Return why a budget cannot hold for a job of unknown prices; empty: prices are known."""
    for route in terms.routes:
        if route.price is None and not route.endpoint.startswith("sim:"):
            return (
                f"no price known for {route.model!r}, so the budget {budget} cannot hold: "
                "give --price input=3,output=15 (USD per million tokens), or leave the label out"
            )
    return ""


def as_if_paid(terms: JobTerms, budget: str) -> str:
    """Return the note for a rehearsal with prices, which takes its part of real budgets; empty for other jobs."""
    if not any(route.endpoint.startswith("sim:") and route.price is not None for route in terms.routes):
        return ""
    return f"what it would cost is taken from {budget} as if it were paid: leave the label out to rehearse without it"
