"""Stores of budgets: the amount that all jobs of a label may commit in a day or a month, and the share of each job.

For jobs in processes of their own, budgets are stored in the state folder and changed by one process at a time. The
scheduler of a cluster keeps its budgets among its notes. The decisions are in ``cortex.scheduler.budgets``.
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
from policies.limits.slices import (
    DAY_S,
    MONTH,
    REMOVED,
    Budget,
    Holding,
    add_removed,
    keep_holdings,
    set_aside,
    turn_to,
    window_in,
)

NOTE = "budget/"
"""Prefix of a budget's note at a cluster's scheduler."""
KIND = "budgets"
_IDENTITY = "identity"

_Changed: TypeAlias = dict[str, bytes | None]
_decoder = msgspec.msgpack.Decoder(Budget)


class FolderBudgets:
    """Budgets of a state folder."""

    def __init__(
        self, folder: StateFolder, clock: Callable[[], float] = time.time, register: KeyValues | None = None
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._register = register or folder.register(KIND)

    def read(self) -> dict[str, Budget]:
        """Return all budgets, by name. Raises ``StoreError``."""
        return _read(self._register.read())

    def put(self, budget: Budget) -> None:
        """Store a budget with its cap and author. Holdings of an existing budget are kept.

        A new budget comes with holdings of the amounts that jobs have used already. Raises ``StoreError``.
        """

        def put(there: dict[str, bytes]) -> tuple[_Changed, None]:
            before = _read(there).get(budget.name)
            if before is not None:
                keep_holdings(budget, before)
            return _written(budget), None

        self._register.change(put)

    def remove(self, name: str) -> None:
        """Remove a budget. Raises ``StoreError``."""
        self._register.change(lambda there: ({name: None}, None))

    def part(self, jobs: Sequence[str]) -> None:
        """Settle the holdings of jobs that are about to be removed: the used amounts stay used, even if new jobs take
        the names.

        No process may run the jobs. Raises ``StoreError``.
        """

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
        """Return the amounts that a job may commit, stored before the return. Raises ``StoreError``."""
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
        """Release amounts lent to jobs whose process has ended; the used amounts are read from their journals.

        A resumed job asks anew before it commits anything, and waits for this change.
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
        held = budget.holdings.get(job)
        window = budget.window if held is None else window_in(budget, held)
        return spent_nusd(self._folder, job, budget.period, window)

    def _dead(self, job: str) -> bool:
        """Return True if all work on a job ended with its process: it ran inline, and its lock is free."""
        root = job.partition("~")[0]
        if self._folder.is_held(root):
            return False
        with contextlib.suppress(StoreError):
            owner = last_owner(self._folder, root)
            return owner is not None and owner.cluster == "inline"
        return False


class SharedBudgets(FolderBudgets):
    """Budgets in a database, shared by jobs of several state folders.

    A job is identified by state folder and name. An amount lent to a dead job counts as used, until a job of the same
    state folder reads its journal or the window ends: no other job can read the journal.
    """

    def __init__(self, shared: StateFolder, folder: StateFolder) -> None:
        register = shared.register(KIND)
        super().__init__(folder, register.now_s, register)
        self._own = ""

    def ask(self, asked: BudgetRequest) -> BudgetAnswer:
        """See ``FolderBudgets.ask``."""
        if not self._register.read():
            return BudgetAnswer()
        asked = msgspec.structs.replace(asked, job=self._known(asked.job))
        return self._register.change(lambda there: self._asked(there, asked)) if asked.new else super().ask(asked)

    def put(self, budget: Budget) -> None:
        """See ``FolderBudgets.put``."""
        holdings = budget.holdings.items()
        budget.holdings = {job if job == REMOVED else self._known(job): held for job, held in holdings}
        super().put(budget)

    def _known(self, job: str) -> str:
        self._own = self._own or f"{identity(self._folder)}:"
        return f"{self._own}{job}"

    def _asked(self, there: Mapping[str, bytes], asked: BudgetRequest) -> tuple[_Changed, BudgetAnswer]:
        if asked.new:  # the job of this name was removed before
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
    """Return the budgets of a state folder, or the shared ones at ``shared``. Raises ``StoreError``."""
    return SharedBudgets(StateFolder(shared), folder) if shared else FolderBudgets(folder, clock)


def identity(folder: StateFolder) -> str:
    """Return the unique id of a state folder, created at first use. Raises ``StoreError``."""
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
    """Budgets of a cluster, kept by its scheduler, which is their only writer and handles one request at a time."""

    def __init__(self, notes: object, clock: Callable[[], float]) -> None:
        self._notes = notes
        self._clock = clock

    def read(self) -> dict[str, Budget]:
        """Return all budgets, by name."""
        found = self._notes.found(NOTE)  # type: ignore[attr-defined]
        return {name.removeprefix(NOTE): _decoder.decode(blob) for name, blob in found.items() if blob}

    def put(self, budget: Budget) -> None:
        """See ``FolderBudgets.put``."""
        before = self.read().get(budget.name)
        if before is not None:
            keep_holdings(budget, before)
        self._write(budget)

    def remove(self, name: str) -> None:
        """Remove a budget."""
        self._notes.put(f"{NOTE}{name}", b"")  # type: ignore[attr-defined]

    def ask(self, asked: BudgetRequest) -> BudgetAnswer:
        """Return the amounts that a job may commit, noted before the return."""
        before, now = (budgets.covering(self.read().values(), asked.labels) for _ in range(2))
        if asked.new:  # the removal of the former job may not have reached this cluster
            for each in now:
                set_aside(each, asked.job)
        answer = budgets.ask(now, asked, self._clock())
        for then, each in zip(before, now, strict=True):
            if budgets.differs(then, each, asked.job):
                self._write(each)
        return answer

    def _write(self, budget: Budget) -> None:
        self._notes.put(f"{NOTE}{budget.name}", msgspec.msgpack.encode(budget))  # type: ignore[attr-defined]


# -- amounts from journals ------------------------------------------------------------------------------------------


def spent_nusd(folder: StateFolder, job: str, period: str, window: int) -> int | None:
    """Return the nano-USD that a job has committed in a window of its own time.

    None if its journal cannot be read, or counts in a later window already. No process may run the job.
    """
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
    now, used_nusd = (ledger.month, ledger.month_nusd) if period == MONTH else (ledger.day, ledger.day_nusd)
    if now > window:
        return None
    return used_nusd if now == window else 0


def opened(
    folder: StateFolder, budget: Budget, labels_of: Callable[[str], dict[str, str] | None], at_s: float
) -> Budget:
    """Return a new budget in the middle of its window, with holdings of the amounts that jobs have used already."""
    turn_to(budget, at_s)
    for job in folder.jobs():
        if (labels_of(job) or {}).get(budget.label) != budget.value:
            continue
        if used_nusd := spent_nusd(folder, job, budget.period, budget.window):
            budget.holdings[job] = Holding(used_nusd, used_nusd, over=True, heard_s=at_s)
    for bill in costs.bills(folder, float(DAY_S * budget.window))[0]:
        if bill.gone and bill.job not in budget.holdings and bill.labels.get(budget.label) == budget.value:
            add_removed(budget, bill.spent.known_nusd + bill.spent.assumed_nusd)
    return budget
