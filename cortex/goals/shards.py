"""Shards: parts of one job's rows, each processed by a child job with its own channel and journal.

A shard reports its counts to its parent, while it runs and when it ends; the parent's ledger and tally are those of the
whole. If the job has a cap, a shard commits only what it was lent before: a slice of what is left
(``policies.limits.slices``), so that the total never exceeds the cap, whichever process dies. A larger slice is in the
parent's journal before the shard receives it, and a smaller one in the shard's journal before the parent receives it.

Rows are assigned by their position in the input, in rounds: each shard gets one row of every round. A window of the
source holds whole rounds only, so wherever reading continues, the next row belongs to the first shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from cortex.admission.budget_slices import open_nusd, open_tokens
from cortex.goals.lifecycle import offer
from cortex.state.budget_slice import JOB, TOKENS, BudgetSlice
from cortex.state.goals import Goal, Status
from cortex.state.shard_record import Pair, ShardRecord, ShardReport
from cortex.values.counters import JobCounters
from cortex.values.ledger import Charge, Ledger
from cortex.values.limits import Limits
from policies.limits.slices import Budget, Holding, SliceRequest, lend

if TYPE_CHECKING:
    from cortex.state.state import ExternalRun, State

T = TypeVar("T")
SHARDS_MAX = 256
"""Largest number of shards of a job."""
CAP, CAP_TOKENS = "the job's cap", "the job's cap of tokens"
"""Budget name of a slice of the job's cap in tokens."""
SPENT = "the next call could pass the cap"
"""Reason given to a shard whose lacking amount is not available anywhere."""
_SPENT = (
    "known_nusd", "assumed_nusd", "known_tokens", "assumed_tokens", "input_tokens", "output_tokens",
    "cache_read_tokens", "cache_creation_tokens", "attempts", "paid_calls", "reused_calls", "paid_again",
)  # fmt: skip
"""Ledger fields that are totals, not the state of a moment or a day."""
_AMOUNTS = (("known_nusd", "assumed_nusd", "reserved_nusd"), ("known_tokens", "assumed_tokens", "reserved_tokens"))
_OF_PAID = ("paid_calls", "input_tokens", "output_tokens", "cache_read_tokens", "cache_creation_tokens", "paid_again")
"""Those of them that grow by each paid reply."""


# -- rows ------------------------------------------------------------------------------------------------------------


def checked(shards: int, rows: bool = True) -> int:
    """Return a valid number of shards. Raises ``ValueError``.

    ``rows``: whether the job reads rows; a job without rows has 1 shard.
    """
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise ValueError(f"shards must be a number from 1 to {SHARDS_MAX}, not {shards!r}")
    if shards > 1 and not rows:
        raise ValueError("shards are for a batch of rows: this job reads none")
    return shards


def dealt(rows: Sequence[T], shards: int) -> list[Sequence[T]]:
    """Return the rows of one window by shard: row ``n`` belongs to shard ``n`` modulo the number of shards."""
    return [rows[shard::shards] for shard in range(shards)]


def lacking(rows: int, shards: int) -> int:
    """Return how many more rows a window needs until its rounds are whole."""
    return -rows % shards


def limits_of(limits: Limits) -> Limits:
    """Return the limits of one shard: the parent applies the caps, and the rules that end a job with many failures."""
    return msgspec.structs.replace(limits, max_cost_nusd=None, max_job_tokens=None, max_failed=None, alike_first=0)


def begin_again(k: State, goals: Sequence[int]) -> bool:
    """Open these shards again, of those that have ended well. Return whether there is any.

    No status leads back from the end of a goal: each is another goal with the id, and so the child job, of the old.
    """
    met = [goal for number in goals if number in k.shards and (goal := k.goals[number]).status == Status.RESOLVED]
    for goal in met:
        k.goals[goal.id] = again = Goal(goal.kind, goal.value, id=goal.id, tries=goal.tries)
        k.shards[goal.id].again = True
        k.live += 1
        offer(k, again, 0.0)
    return bool(met)


def epoch_of(k: State, goal: int) -> int:
    """Return the epoch of a shard's newest report; 0 if there is none. Reports of an earlier epoch say nothing."""
    shard = k.shards.get(goal)
    return shard.reported[0] if shard is not None else 0


# -- counts ----------------------------------------------------------------------------------------------------------


def take(k: State, goal: int, report: ShardReport) -> None:
    """Take in a shard's report and update its slices."""
    shard = k.shards.get(goal)
    if shard is None or (report.epoch, report.serial) <= shard.reported:
        return
    shard.reported = (report.epoch, report.serial)
    _count(k.ledger, report.ledger, _still_known(report.ledger, shard.ledger) if shard.again else shard.ledger)
    shard.again = False
    shard.ledger = report.ledger
    if report.tally is not None:
        _tally(k.tally, report.tally, shard.tally)
        shard.tally, shard.results, shard.excess = report.tally, report.results, report.excess
    task = _task(k, goal)
    _lend(k, goal, shard, report, over=report.over or task is None)
    if task is not None and task.charge is not None:
        k.ledger.release(task.charge)
        task.charge = reserved(shard)
        k.ledger.set_aside(task.charge)


def _task(k: State, goal: int) -> ExternalRun | None:
    return next((task for task in k.errands.values() if task.goal == goal), None)


def _count(whole: Ledger, now: Ledger, before: Ledger) -> None:
    for name in _SPENT:
        setattr(whole, name, getattr(whole, name) + getattr(now, name) - getattr(before, name))


def _still_known(now: Ledger, before: Ledger) -> Ledger:
    """Return the totals of ``before`` without what a shard's journal has lost with its end: that was paid, and a cap
    counts it. ``now``: the totals of the shard's next channel, which may not yet have given up its calls in flight:
    their charges are assumed then, so they stand for the replies to them that are lost.
    """
    asked, paid = before.attempts - now.attempts, before.paid_calls - now.paid_calls
    if asked <= 0:
        return before
    kept: dict[str, int] = {}
    for known, assumed, reserved in _AMOUNTS:
        there = getattr(now, known) + getattr(now, assumed) + getattr(now, reserved)
        lost = getattr(before, known) + getattr(before, assumed) - there
        if lost > 0:
            kept[known] = getattr(before, known) - lost
    if not kept:
        return before
    kept["attempts"] = now.attempts
    if paid > 0:  # replies to attempts that are lost do not come again; the others do, and are counted then
        for name in _OF_PAID:
            more = max(0, getattr(before, name) - getattr(now, name))
            kept[name] = getattr(before, name) - more * min(asked, paid) // paid
    return msgspec.structs.replace(before, **kept)


def _tally(whole: JobCounters, now: JobCounters, before: JobCounters) -> None:
    if (now.failed_said, now.failed_row) != (before.failed_said, before.failed_row):
        whole.failed_said, whole.failed_row = now.failed_said, now.failed_row
    for name in whole.__struct_fields__:
        value = getattr(now, name)
        if isinstance(value, int):
            setattr(whole, name, getattr(whole, name) + value - getattr(before, name))
        elif isinstance(value, dict):
            _kinds(getattr(whole, name), value, getattr(before, name))


def _kinds(whole: dict[str, int], now: dict[str, int], before: dict[str, int]) -> None:
    for kind in sorted({*now, *before}):
        count = whole.get(kind, 0) + now.get(kind, 0) - before.get(kind, 0)
        if count:
            whole[kind] = count
        else:
            whole.pop(kind, None)


def results(k: State) -> int:
    """Return the number of results over all shards."""
    return sum(shard.results for shard in k.shards.values())


def written(k: State, parts: tuple[int, ...]) -> None:
    """Note how many results of each shard, in the order of their goals, are in the sink."""
    for goal, part in zip(sorted(k.shards), parts, strict=False):
        k.shards[goal].written = part


# -- reports and answers ----------------------------------------------------------------------------------------------


def report(k: State, serial: int) -> ShardReport:
    """Return the report of the shard whose state is `k`."""
    purse, ledger = k.purse, k.ledger
    held = {each.period: each.upto_nusd for each in purse.slices} if purse is not None else {}
    holds = (held.get(JOB, ledger.committed_nusd), held.get(TOKENS, ledger.committed_tokens))
    lacks = (purse.lacks_nusd, purse.lacks_tokens) if purse is not None else (0, 0)
    return ShardReport(
        k.epoch, serial, ledger, k.tally, k.emitted, holds if held else None, lacks, (open_nusd(k), open_tokens(k)),
        bool(k.outcome), tuple(share.excess for share in k.shares if share.excess is not None),
    )  # fmt: skip


def answer(k: State, goal: int) -> tuple[tuple[BudgetSlice, ...], str]:
    """Return the slices of a shard, and the reason why no more can be lent, if so."""
    shard = k.shards.get(goal)
    if shard is None:
        return (), ""
    named = ((CAP, JOB, shard.lent[0]), (CAP_TOKENS, TOKENS, shard.lent[1]))
    slices = tuple(BudgetSlice(name, period, 0, upto) for name, period, upto in named if upto is not None)
    return slices, SPENT if shard.out else ""


# -- money -----------------------------------------------------------------------------------------------------------


def reserved(shard: ShardRecord) -> Charge:
    """Return the charge reserved for a shard: the most that it may have committed by now, beyond what it has spent."""
    spent = shard.ledger
    nusd = shard.money.counted_nusd - spent.known_nusd - spent.assumed_nusd
    tokens = shard.tokens.counted_nusd - spent.known_tokens - spent.assumed_tokens
    return Charge(max(0, nusd), max(0, tokens))


def _lend(k: State, goal: int, shard: ShardRecord, report: ShardReport, over: bool) -> None:
    limits, ledger, found = k.terms.limits, report.ledger, report
    committed = (ledger.committed_nusd, ledger.committed_tokens)
    caps = (limits.max_cost_nusd, limits.max_job_tokens)
    spent = (k.ledger.known_nusd + k.ledger.assumed_nusd, k.ledger.known_tokens + k.ledger.assumed_tokens)
    by_shards = [
        sum(each.ledger.known_nusd + each.ledger.assumed_nusd for each in k.shards.values()),
        sum(each.ledger.known_tokens + each.ledger.assumed_tokens for each in k.shards.values()),
    ]
    lent: list[int | None] = []
    shard.out = False
    for place, cap in enumerate(caps):
        held = {str(number): _holding(each, place) for number, each in k.shards.items()}
        if cap is None:
            own = held[str(goal)]
            own.used_nusd = own.held_nusd = committed[place]
            own.over, own.heard_s, own.lacks_nusd = over, k.at_s, 0
            lent.append(None)
            continue
        left = max(0, cap - spent[place] + by_shards[place])  # left of the cap for all shards, since they began
        budget = Budget("", "", "", left, holdings=held)
        holds = max(committed[place], found.holds[place] if found.holds is not None else 0)
        request = SliceRequest(str(goal), 0, committed[place], holds, found.lacks[place], found.open[place], over)
        answer = lend(budget, request, k.at_s)
        shard.out |= answer.out
        lent.append(answer.upto_nusd)
    shard.lent = (lent[0], lent[1])


def counted(k: State, goal: int) -> Pair:
    """Return the most that a shard may have committed by now, in money and tokens."""
    shard = k.shards.get(goal, ShardRecord())
    return shard.money.counted_nusd, shard.tokens.counted_nusd


def stirred(k: State, goal: int, before: Pair) -> list[int]:
    """Return the shards that should be informed at once after another's report.

    If it lacks an amount: the shards that could return some. If it returned an amount: the shards that lack some.
    ``before``: the amount that counted for the shard before its report.
    """
    shard = k.shards[goal]
    others = [number for number in k.shards if number != goal]
    if _lacks(shard):
        return [number for number in others if not _lacks(k.shards[number]) and _slack(k.shards[number])]
    if any(now < then for now, then in zip(counted(k, goal), before, strict=True)):
        return [number for number in others if _lacks(k.shards[number])]
    return []


def _lacks(shard: ShardRecord) -> bool:
    return bool(shard.money.lacks_nusd or shard.tokens.lacks_nusd)


def _slack(shard: ShardRecord) -> bool:
    return any(each.held_nusd > each.used_nusd for each in (shard.money, shard.tokens))


def _holding(shard: ShardRecord, place: int) -> Holding:
    return shard.tokens if place else shard.money
