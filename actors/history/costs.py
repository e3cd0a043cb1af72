"""Costs of the jobs of a state folder since a moment, read from the journals alone, without replay.

Every turn records the job's totals (``cortex.journal.codec.CarriedAccount``), so that the difference of two turns is
the amount spent between them: a few turns are read of each job, however long it is. Where turns are deleted, the totals
at the end of each day, in UTC, are kept: beside the journal of a job that keeps no text, among the figures of a
forgotten job, and in ``spent.jsonl`` of the state folder for a removed job. A bill does not shrink when a journal is
deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.history.catalog import last_terms
from actors.journal.journal import Journal, StateFolder, StoreError
from cortex.journal.codec import CarriedAccount, decode_account
from cortex.values.limits import JobTerms
from policies.limits.slices import DAY_S, day_of

KEPT = "spent"
"""Key of the journal's metadata: daily totals of deleted turns. Also the name of the folder's file with a line for
each removed job."""
OWN = "own_from"
"""Key of the journal's metadata of a fork: the number of the last turn taken over. The cost of those turns belongs
to the other job."""


class CostTotals(msgspec.Struct):
    """Amounts in 1e-9 USD, and counts."""

    known_nusd: int = 0
    assumed_nusd: int = 0
    rows: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def add(self, other: CostTotals, sign: int = 1) -> None:
        """Add another's totals, multiplied by ``sign``, field by field."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))


class DayTotal(msgspec.Struct):
    """Totals of a job at the last turn of a day."""

    at_s: float
    spent: CostTotals


class JobCost(msgspec.Struct):
    """Cost of one job since a moment."""

    job: str
    labels: dict[str, str]
    model: str
    spent: CostTotals
    priced: bool = True
    """Whether the cost of its calls is known."""
    gone: str = ""
    """``removed`` or ``forgotten``; empty for other jobs."""


class _RemovedJob(msgspec.Struct):
    """Line about a removed job."""

    job: str
    began_at_s: float
    labels: dict[str, str]
    model: str
    priced: bool
    marks: list[DayTotal]


def bills(folder: StateFolder, since_s: float) -> tuple[list[JobCost], list[str]]:
    """Return the costs since a moment of every job of a state folder, removed jobs included, and the names of jobs
    that cannot be read. Child jobs are included in their parents' costs."""
    found, unread, there = [], [], {}
    for job in folder.jobs():
        if "~" in job:
            continue
        try:
            bill, there[job] = _bill(folder, job, since_s)
        except (UserError, ValueError, KeyError, msgspec.MsgspecError):
            unread.append(job)
            continue
        if bill is not None:
            found.append(bill)
    for each in _removed(folder):
        if there.get(each.job) != each.began_at_s:  # else the removal did not happen
            spent = _between(each.marks, since_s)
            found.append(JobCost(each.job, each.labels, each.model, spent, each.priced, "removed"))
    return found, unread


def _bill(folder: StateFolder, job: str, since_s: float) -> tuple[JobCost | None, float]:
    """Return a job's cost and its beginning."""
    source = folder.journal(job, forgotten_too=True)
    try:
        if blob := source.meta("forgotten"):
            facts: dict[str, Any] = msgspec.json.decode(blob)
            marks = msgspec.convert(facts.get("spent") or [_total(facts)], list[DayTotal])
            bill = JobCost(job, facts["labels"], facts["route"].partition(" at ")[0], _between(marks, since_s))
            bill.priced, bill.gone = facts["cost_usd"] is not None, "forgotten"
            return bill, float(facts["began_at_s"])
        began_at_s = source.first_at_s()
        spent = _latest(source)
        spent.add(_by(source, since_s), -1)
    finally:
        source.close()
    terms = last_terms(folder, job)
    if terms is None:
        return None, began_at_s
    spent.rows = max(0, spent.rows)
    return JobCost(job, terms.labels, terms.route.model, spent, priced(terms)), began_at_s


def priced(terms: JobTerms) -> bool:
    """Return whether the cost of calls is known on every route; the simulated provider is free of charge."""
    return all(route.price is not None or route.endpoint.startswith("sim:") for route in terms.routes)


def _total(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the only total of a job that was forgotten by an earlier release."""
    spent = CostTotals(
        facts["known_nusd"], facts["assumed_nusd"], facts["rows_succeeded"] + facts["rows_failed"], facts["paid_calls"],
        facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"], facts["output_tokens"],
    )  # fmt: skip
    return {"at_s": facts["last_turn_at_s"], "spent": msgspec.to_builtins(spent)}


# -- one journal -----------------------------------------------------------------------------------------------------


def _of(account: CarriedAccount) -> CostTotals:
    ledger = account.ledger
    read = ledger.input_tokens + ledger.cache_read_tokens + ledger.cache_creation_tokens
    return CostTotals(
        ledger.known_nusd, ledger.assumed_nusd, account.rows, ledger.paid_calls, read, ledger.output_tokens
    )


def _latest(source: Journal) -> CostTotals:
    """Return the latest totals of a job."""
    if blob := source.account(source.seq):
        return _of(decode_account(blob))
    kept = _kept(source)
    return kept[-1].spent if kept else CostTotals()


def _by(source: Journal, at_s: float) -> CostTotals:
    """Return the totals of a job before a moment; of a fork at least those that it took over."""
    own = int(source.meta(OWN) or 0)
    seq = max(_last_before(source, at_s), own)
    blob = source.account(seq) if seq else b""
    if blob:
        return _of(decode_account(blob))
    return max((mark for mark in _kept(source) if mark.at_s < at_s), key=lambda mark: mark.at_s, default=_NOTHING).spent


def _at_s(source: Journal, seq: int) -> float | None:
    """Return the time of a turn, or of the turn before it; None if there is neither."""
    return next((at_s for at_s, _ in source.heads(seq, count=1)), None)


def _last_before(source: Journal, at_s: float) -> int:
    """Return the number of the last turn before a moment, by binary search, since times never decrease; 0 if none is
    left."""
    gone = source.dropped()
    low, high = gone, source.seq
    while low < high:
        middle = (low + high + 1) // 2
        there_s = _at_s(source, middle)
        low, high = (middle, high) if there_s is not None and there_s < at_s else (low, middle - 1)
    return low if low > gone else 0


_NOTHING = DayTotal(0.0, CostTotals())


def _kept(source: Journal) -> list[DayTotal]:
    blob = source.meta(KEPT)
    return msgspec.json.decode(blob, type=list[DayTotal]) if blob else []


def _between(marks: list[DayTotal], since_s: float) -> CostTotals:
    """Return the amount spent since a moment. A day counts as a whole, at its last turn."""
    spent = CostTotals()
    if marks:
        spent.add(marks[-1].spent)
        before = [mark for mark in marks if mark.at_s < since_s]
        if before:
            spent.add(before[-1].spent, -1)
    return spent


def marks_of(source: Journal, upto: int | None = None) -> list[DayTotal]:
    """Return the totals at the end of each day of a job, from its turns and the totals kept of deleted turns."""
    marks = {day_of(mark.at_s): mark for mark in _kept(source)}
    last = source.seq if upto is None else upto
    at_s = _at_s(source, last)
    own = int(source.meta(OWN) or 0)
    while last and at_s is not None:
        if blob := source.account(last):
            spent = _of(decode_account(blob))
            if own and (base := source.account(own)):
                spent.add(_of(decode_account(base)), -1)
            marks[day_of(at_s)] = DayTotal(at_s, spent)
        last = _last_before(source, float(day_of(at_s) * DAY_S))
        at_s = _at_s(source, last)
    return [marks[day] for day in sorted(marks)]


def keep(source: Journal, upto: int) -> None:
    """Keep the daily totals of turns up to this one, which are about to be deleted."""
    source.set_meta(KEPT, msgspec.json.encode(marks_of(source, upto)))


# -- removed jobs -----------------------------------------------------------------------------------------------------


def marks_in(folder: StateFolder, job: str) -> list[Any]:
    """Return the daily totals of a job, as JSON values."""
    source = folder.journal(job)
    try:
        return list(msgspec.to_builtins(marks_of(source)))
    finally:
        source.close()


def note_removal(folder: StateFolder, job: str) -> None:
    """Record the cost of a job that is about to be removed. A job that cannot be read is skipped.

    Raises ``StoreError``.
    """
    with contextlib.suppress(UserError, ValueError, KeyError, msgspec.MsgspecError):
        bill, began_at_s = _bill(folder, job, 0.0)
        if bill is None or bill.spent == CostTotals():
            return
        source = folder.journal(job, forgotten_too=True)
        try:
            blob = source.meta("forgotten")
            kept = msgspec.json.decode(blob).get("spent", []) if blob else []
            marks = msgspec.convert(kept, list[DayTotal]) if blob else marks_of(source)
        finally:
            source.close()
        line = _RemovedJob(job, began_at_s, bill.labels, bill.model, bill.priced, marks)
        folder.add_line(KEPT, msgspec.json.encode(line))


def _removed(folder: StateFolder) -> Iterator[_RemovedJob]:
    """Yield the removed jobs, each once. Raises ``StoreError`` for an invalid line."""
    found: dict[tuple[str, float], _RemovedJob] = {}
    for place, line in folder.lines(KEPT):
        try:
            each = msgspec.json.decode(line, type=_RemovedJob)
        except (msgspec.MsgspecError, ValueError):
            raise StoreError(f"{place} is damaged: remove that line") from None
        found[each.job, each.began_at_s] = each
    yield from found.values()
