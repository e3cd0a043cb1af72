"""Budgets of labels, as they are kept: what all jobs of a label may commit in a day or a month, and what each has.

For jobs that run in a process of their own they stand in the state folder, beside the jobs, and are changed by one of
them at a time; a cluster's cortex keeps its own among the notes that outlive it. What is decided is
``cortex.scheduler.budgets``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from actors.history import costs
from actors.history.catalog import last_owner
from actors.journal.journal import StateFolder, StoreError
from actors.journal.storage import KeyValues
from cortex.journal.codec import decode_account
from cortex.scheduler import budgets
from cortex.scheduler.budgets import BudgetAnswer, BudgetRequest
from cortex.state.budget_slice import BudgetSlice
from policies.limits.slices import (
    DAY,
    DAY_S,
    MONTH,
    REMOVED,
    Budget,
    Holding,
    add_removed,
    day_of,
    set_aside,
    turn_to,
    window_of,
)

NOTE = "budget/"
"""Before the name of a budget: its note at a cluster's cortex."""
KIND = "budgets"
_IDENTITY = "identity"

_Changed: TypeAlias = dict[str, bytes | None]
_decoder = msgspec.msgpack.Decoder(Budget)


class FolderBudgets:
    """The budgets of a state folder."""

    def __init__(
        self, folder: StateFolder, clock: Callable[[], float] = time.time, register: KeyValues | None = None
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._register = register or folder.register(KIND)

    def read(self) -> dict[str, Budget]:
        """All budgets, by name. Raises ``StoreError``."""
        return _read(self._register.read())

    def put(self, budget: Budget) -> None:
        """Have this budget in force, with its cap and who set it; what jobs hold of one that was there stays.

        Of a new one the jobs hold what they have used already. Raises ``StoreError``.
        """

        def put(there: dict[str, bytes]) -> tuple[_Changed, None]:
            before = _read(there).get(budget.name)
            if before is not None:
                budget.window, budget.holdings = before.window, before.holdings
            return _written(budget), None

        self._register.change(put)

    def remove(self, name: str) -> None:
        """Take a budget away. Raises ``StoreError``."""
        self._register.change(lambda there: ({name: None}, None))

    def part(self, jobs: Sequence[str]) -> None:
        """These jobs, which nobody runs, are about to be removed: what they used stays used, also when others take
        their names. Raises ``StoreError``."""

        def part(there: dict[str, bytes]) -> tuple[_Changed, None]:
            found = _read(there)
            for each in found.values():
                for job in jobs:
                    if (held := each.holdings.get(job)) is not None:
                        used_nusd = self._spent_nusd(job, each)
                        held.held_nusd = held.used_nusd = held.counted_nusd if used_nusd is None else used_nusd
                        set_aside(each, job)
            return _written(*found.values()), None

        if self._register.read():
            self._register.change(part)

    def ask(self, asked: BudgetRequest) -> BudgetAnswer:
        """What the budgets let a job commit; it is durable when this returns. Raises ``StoreError``."""
        there = self._register.read()
        if not there:
            return BudgetAnswer()
        before, now = (budgets.covering(_read(there).values(), asked.labels) for _ in range(2))
        answer = budgets.ask(now, asked, self._clock())
        kept = not any(budgets.differs(*each, asked.job) for each in zip(before, now, strict=True))
        return answer if kept and not answer.reason else self._register.change(lambda there: self._asked(there, asked))

    def _asked(self, there: Mapping[str, bytes], asked: BudgetRequest) -> tuple[_Changed, BudgetAnswer]:
        found = budgets.covering(_read(there).values(), asked.labels)
        answer = budgets.ask(found, asked, self._clock())
        if asked.lacks_nusd and any(self._bury(each, asked.job) for each in found):
            answer = budgets.ask(found, asked, self._clock())
        return _written(*found), answer

    def _bury(self, budget: Budget, asker: str) -> bool:
        """Count what jobs have used, and no more what they were lent, whose process is gone: their journals tell.

        Whoever resumes one asks anew before it commits anything, and waits for this change.
        """
        found = False
        for job, held in budget.holdings.items():
            if job == asker or held.over or held.held_nusd <= held.used_nusd or not self._dead(job):
                continue
            used_nusd = self._spent_nusd(job, budget)
            if used_nusd is not None:
                held.used_nusd = held.held_nusd = used_nusd
                held.over, held.lacks_nusd, found = True, 0, True
        return found

    def _spent_nusd(self, job: str, budget: Budget) -> int | None:
        return spent_nusd(self._folder, job, budget)

    def _dead(self, job: str) -> bool:
        """Whether all that worked on a job ended with its process: so it is where that was the only one."""
        root = job.partition("~")[0]
        if self._folder.is_held(root):
            return False
        with contextlib.suppress(StoreError):
            owner = last_owner(self._folder, root)
            return owner is not None and owner.cluster == "inline"
        return False


class SharedBudgets(FolderBudgets):
    """Budgets that jobs of several state folders share, wherever those are: they stand in a database.

    A job is known there by its state folder and its name. Of a dead one what it was lent counts as used, until a job of
    the same state folder reads its journal, or the window is over: nobody else can.
    """

    def __init__(self, shared: StateFolder, folder: StateFolder) -> None:
        register = shared.register(KIND)
        super().__init__(folder, register.now_s, register)
        self._own = ""

    def ask(self, asked: BudgetRequest) -> BudgetAnswer:
        """As in ``FolderBudgets``; nothing is lent to a job whose day has not come there yet."""
        if not self._register.read():
            return BudgetAnswer()
        asked = msgspec.structs.replace(asked, job=self._known(asked.job))
        if asked.day > day_of(self._clock()):
            return self._register.change(lambda there: self._none(there, asked))
        return self._register.change(lambda there: self._asked(there, asked)) if asked.new else super().ask(asked)

    def put(self, budget: Budget) -> None:
        """As in ``FolderBudgets``."""
        holdings = budget.holdings.items()
        budget.holdings = {job if job == REMOVED else self._known(job): held for job, held in holdings}
        super().put(budget)

    def _known(self, job: str) -> str:
        self._own = self._own or f"{identity(self._folder)}:"
        return f"{self._own}{job}"

    def _none(self, there: Mapping[str, bytes], asked: BudgetRequest) -> tuple[_Changed, BudgetAnswer]:
        """A clock ahead of the server's would begin everybody's new day."""
        used = {MONTH: asked.month_nusd, DAY: asked.day_nusd}
        found = budgets.covering(_read(there).values(), asked.labels)
        slices = (
            BudgetSlice(each.name, each.period, window_of(each.period, asked.day), used[each.period]) for each in found
        )
        return {}, BudgetAnswer(tuple(slices))

    def _asked(self, there: Mapping[str, bytes], asked: BudgetRequest) -> tuple[_Changed, BudgetAnswer]:
        if asked.new:  # the one before was removed
            gone = budgets.covering(_read(there).values(), asked.labels)
            for each in gone:
                set_aside(each, asked.job)
            there = {**there, **{each.name: msgspec.msgpack.encode(each) for each in gone}}
        return super()._asked(there, asked)

    def _dead(self, job: str) -> bool:
        return job.startswith(self._own) and super()._dead(job.removeprefix(self._own))

    def _spent_nusd(self, job: str, budget: Budget) -> int | None:
        return super()._spent_nusd(job.removeprefix(self._own), budget)


def books_of(folder: StateFolder, shared: str, clock: Callable[[], float] = time.time) -> FolderBudgets:
    """The budgets of a state folder, or those that it shares with others. Raises ``StoreError``."""
    return SharedBudgets(StateFolder(shared), folder) if shared else FolderBudgets(folder, clock)


def identity(folder: StateFolder) -> str:
    """A name of a state folder that no other has, wherever it is looked at from. Raises ``StoreError``."""
    while (found := folder.note(_IDENTITY, "")) is None:
        folder.swap_note(_IDENTITY, "", None, os.urandom(8).hex().encode())
    return found.decode()


def _read(there: Mapping[str, bytes]) -> dict[str, Budget]:
    try:
        return {name: _decoder.decode(blob) for name, blob in there.items()}
    except msgspec.MsgspecError as error:
        raise StoreError(f"a budget cannot be read: {error}") from None


def _written(*found: Budget) -> _Changed:
    return {each.name: msgspec.msgpack.encode(each) for each in found}


class NoteBudgets:
    """The budgets of a cluster, as its cortex keeps them: nobody else writes them, and one request is dealt with at a
    time."""

    def __init__(self, notes: object, clock: Callable[[], float]) -> None:
        self._notes = notes
        self._clock = clock

    def read(self) -> dict[str, Budget]:
        """All budgets, by name."""
        found = self._notes.found(NOTE)  # type: ignore[attr-defined]
        return {name.removeprefix(NOTE): _decoder.decode(blob) for name, blob in found.items() if blob}

    def put(self, budget: Budget) -> None:
        """As in ``FolderBudgets``."""
        before = self.read().get(budget.name)
        if before is not None:
            budget.window, budget.holdings = before.window, before.holdings
        self._write(budget)

    def remove(self, name: str) -> None:
        """Take a budget away."""
        self._notes.put(f"{NOTE}{name}", b"")  # type: ignore[attr-defined]

    def ask(self, asked: BudgetRequest) -> BudgetAnswer:
        """What the budgets let a job commit; it is noted when this returns."""
        before, now = (budgets.covering(self.read().values(), asked.labels) for _ in range(2))
        if asked.new:  # whoever removed the one before may not have reached this cluster
            for each in now:
                set_aside(each, asked.job)
        answer = budgets.ask(now, asked, self._clock())
        for then, each in zip(before, now, strict=True):
            if budgets.differs(then, each, asked.job):
                self._write(each)
        return answer

    def _write(self, budget: Budget) -> None:
        self._notes.put(f"{NOTE}{budget.name}", msgspec.msgpack.encode(budget))  # type: ignore[attr-defined]


# -- what journals tell ----------------------------------------------------------------------------------------------


def spent_nusd(folder: StateFolder, job: str, budget: Budget) -> int | None:
    """What a job that nobody runs has committed in a budget's window; None where its journal cannot be read."""
    try:
        source = folder.journal(job)
        try:
            blob = source.account(source.seq)
        finally:
            source.close()
    except (StoreError, ValueError, msgspec.MsgspecError):
        return None
    if not blob:
        return 0
    ledger = decode_account(blob).ledger
    if budget.period == MONTH:
        return ledger.month_nusd if ledger.month == budget.window else 0
    return ledger.day_nusd if ledger.day == budget.window else 0


def opened(
    folder: StateFolder, budget: Budget, labels_of: Callable[[str], dict[str, str] | None], at_s: float
) -> Budget:
    """A budget that begins now, in the middle of its window: jobs hold what they have used of it already."""
    turn_to(budget, window_of(budget.period, day_of(at_s)))
    for job in folder.jobs():
        if (labels_of(job) or {}).get(budget.label) != budget.value:
            continue
        if used_nusd := spent_nusd(folder, job, budget):
            budget.holdings[job] = Holding(used_nusd, used_nusd, over=True, heard_s=at_s)
    for bill in costs.bills(folder, float(DAY_S * budget.window))[0]:
        if bill.gone and bill.job not in budget.holdings and bill.labels.get(budget.label) == budget.value:
            add_removed(budget, bill.spent.known_nusd + bill.spent.assumed_nusd)
    return budget
