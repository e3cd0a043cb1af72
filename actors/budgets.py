"""Budgets of labels, as they are kept: what all jobs of a label may commit in a day or a month, and what each has.

For jobs that run in a process of their own they stand in one small file of the state folder, and its transactions keep
the jobs apart; a cluster's cortex keeps its own among the notes that outlive it. What is decided is ``cortex.budgets``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from actors import costs
from actors.joblock import is_held
from actors.records import last_owner
from actors.store import Folder, Journal, StoreError
from cortex import budgets
from cortex.budgets import Answer, Asked
from cortex.journal import decode_account
from policies.slices import DAY_S, MONTH, Budget, Holding, add_removed, day_of, set_aside, turn_to, window_of

NOTE = "budget/"
"""Before the name of a budget: its note at a cluster's cortex."""
BUSY_S = 10.0

_SCHEMA = "CREATE TABLE IF NOT EXISTS budgets (name TEXT PRIMARY KEY, blob BLOB NOT NULL) WITHOUT ROWID"
_decoder = msgspec.msgpack.Decoder(Budget)


class FolderBooks:
    """The budgets of a state folder."""

    def __init__(self, folder: Folder, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self.path = folder.path / "budgets.sqlite"
        """The file. It is there once somebody has set a budget."""

    def read(self) -> dict[str, Budget]:
        """All budgets, by name. Raises ``StoreError``."""
        if not self.path.exists():
            return {}
        with self._open() as db:
            return _read(db)

    def put(self, budget: Budget) -> None:
        """Have this budget in force, with its cap and who set it; what jobs hold of one that was there stays.

        Of a new one the jobs hold what they have used already. Raises ``StoreError``.
        """
        with self._open() as db, _writing(db):
            before = _read(db).get(budget.name)
            if before is not None:
                budget.window, budget.holdings = before.window, before.holdings
            _write(db, budget)

    def remove(self, name: str) -> None:
        """Take a budget away. Raises ``StoreError``."""
        with self._open() as db, _writing(db):
            db.execute("DELETE FROM budgets WHERE name = ?", (name,))

    def part(self, jobs: Sequence[str]) -> None:
        """These jobs, which nobody runs, are about to be removed: what they used stays used, also when others take
        their names. Raises ``StoreError``."""
        if not self.path.exists():
            return
        with self._open() as db, _writing(db):
            for each in _read(db).values():
                for job in jobs:
                    if (held := each.holdings.get(job)) is not None:
                        used_nusd = spent_nusd(self._folder, job, each)
                        held.held_nusd = held.used_nusd = held.counted_nusd if used_nusd is None else used_nusd
                        set_aside(each, job)
                _write(db, each)

    def ask(self, asked: Asked) -> Answer:
        """What the budgets let a job commit; it is on disk when this returns. Raises ``StoreError``."""
        if not self.path.exists():
            return Answer()
        with self._open() as db:
            before, now = (budgets.covering(_read(db).values(), asked.labels) for _ in range(2))
            answer = budgets.ask(now, asked, self._clock())
            kept = not any(budgets.differs(*each, asked.job) for each in zip(before, now, strict=False))
            if len(before) == len(now) and kept and not answer.said:
                return answer
            with _writing(db):
                found = budgets.covering(_read(db).values(), asked.labels)
                answer = budgets.ask(found, asked, self._clock())
                if asked.lacks_nusd and any(self._bury(each, asked.job) for each in found):
                    answer = budgets.ask(found, asked, self._clock())
                for each in found:
                    _write(db, each)
            return answer

    def _bury(self, budget: Budget, asker: str) -> bool:
        """Count what jobs have used, and no more what they were lent, whose process is gone: their journals tell.

        Whoever resumes one asks anew before it commits anything, and waits for this transaction.
        """
        found = False
        for job, held in budget.holdings.items():
            if job == asker or held.over or held.held_nusd <= held.used_nusd or not self._dead(job):
                continue
            used_nusd = spent_nusd(self._folder, job, budget)
            if used_nusd is not None:
                held.used_nusd = held.held_nusd = used_nusd
                held.over, held.lacks_nusd, found = True, 0, True
        return found

    def _dead(self, job: str) -> bool:
        """Whether all that worked on a job ended with its process: so it is where that was the only one."""
        root = job.partition("~")[0]
        if is_held(self._folder, root):
            return False
        with contextlib.suppress(StoreError):
            owner = last_owner(self._folder, root)
            return owner is not None and owner.cluster == "inline"
        return False

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_S)) as db:
                self.path.chmod(0o600)
                db.execute("PRAGMA journal_mode=WAL")
                db.execute("PRAGMA synchronous=FULL")
                db.execute(_SCHEMA)
                yield db
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"cannot use {self.path}: {error}") from None


def _read(db: sqlite3.Connection) -> dict[str, Budget]:
    return {name: _decoder.decode(blob) for name, blob in db.execute("SELECT name, blob FROM budgets ORDER BY name")}


def _write(db: sqlite3.Connection, budget: Budget) -> None:
    db.execute("INSERT OR REPLACE INTO budgets VALUES (?, ?)", (budget.name, msgspec.msgpack.encode(budget)))


@contextlib.contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


class NoteBooks:
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
        """As in ``FolderBooks``."""
        before = self.read().get(budget.name)
        if before is not None:
            budget.window, budget.holdings = before.window, before.holdings
        self._write(budget)

    def remove(self, name: str) -> None:
        """Take a budget away."""
        self._notes.put(f"{NOTE}{name}", b"")  # type: ignore[attr-defined]

    def ask(self, asked: Asked) -> Answer:
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


def spent_nusd(folder: Folder, job: str, budget: Budget) -> int | None:
    """What a job that nobody runs has committed in a budget's window; None where its journal cannot be read."""
    try:
        source = Journal(folder.journal_path(job))
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


def opened(folder: Folder, budget: Budget, labels_of: Callable[[str], dict[str, str] | None], at_s: float) -> Budget:
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
