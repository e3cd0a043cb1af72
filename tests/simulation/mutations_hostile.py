"""Faults planted in what meets hostile providers and disks: bills above their bound, replies of any depth and size."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.branch import branch
from actors.channel import fencing, job_clock
from actors.journal import journal, reply_index
from actors.providers.chat_completions import response as chat_response
from actors.providers.messages import flawed_response
from cortex.calls import lost_turns
from cortex.journal import seals
from cortex.state import events, route_share
from cortex.values import ledger
from cortex.values.reply import Reply, Usage
from policies.estimates import bill_excess
from tests.simulation import mini_driver
from tests.simulation.mutations import Patch, planted, troubled
from tests.simulation.scenario import Plan


def _over(made: Plan) -> bool:
    return made.provider.bills > 1 and made.provider.billing > 0 and any(job.cap_share for job in made.jobs)


def _odd(made: Plan) -> bool:
    return made.provider.odd_usage > 0


def _shaped(made: Plan) -> bool:
    return made.provider.shapes > 0 and any(job.program == "batch" for job in made.jobs)


@planted("a bit that flips in a journal is noticed where it is read", 208, likely=troubled("bit_flips"))
def seals_not_checked(patch: Patch) -> None:
    def opened(number: int, record: bytes) -> tuple[bytes, int, int]:
        before, own = seals._SEAL.unpack_from(record, len(record) - seals.SEAL_BYTES)
        return record[: -seals.SEAL_BYTES], before, own

    patch.setattr(seals, "opened", opened)


@planted("a journal that was removed while its job runs is noticed", 1, likely=troubled("unlinked"))
def removed_journal_not_noticed(patch: Patch) -> None:
    patch.setattr(journal.Journal, "see_stands", lambda self: None)


@planted("a results file is cut back to what a journal records that has lost its end", 293, likely=troubled("power_lost"))
def sink_longer_than_its_journal(patch: Patch) -> None:
    patch.setattr(mini_driver.SimDriver, "_cut_back", lambda self, written, checksum: None)


@planted("an epoch that a journal has lost is not taken again while branches know it", 2476, likely=troubled("power_lost"))
def lost_epoch_taken_again(patch: Patch) -> None:
    patch.setattr(fencing, "_above", lambda source, number: None)


@planted("numbers that branches hold of turns that are lost are not given again", 69000163, likely=troubled("power_lost"))
def lost_numbers_given_again(patch: Patch) -> None:
    patch.setattr(lost_turns, "leave_out", lambda k, numbers: None)


@planted("what the index of replies names is believed only if it answers the question", 47357, likely=troubled("power_lost"))
def index_believed_without_look(patch: Patch) -> None:
    def read(self: Any, job: str, seq: int, position: int, hash_: bytes, own: Any) -> Any:
        try:
            event = (own if job == self._job else self._journal(job)).event(seq, position)
        except journal.StoreError:
            return None
        return event.reply if isinstance(event, events.Answered) else None

    patch.setattr(reply_index.ReplyCache, "_read", read)


@planted("a job's clock goes on after its machine was started again", 182, likely=troubled("power_lost"))
def start_of_machine_not_noticed(patch: Patch) -> None:
    base_at = job_clock.base_at
    patch.setattr(job_clock, "base_at", lambda kept, *rest: kept.base_s if kept is not None else base_at(kept, *rest))


@planted("a bill above its bound is noted", 35, likely=_over)
def excess_not_noted(patch: Patch) -> None:
    patch.setattr(ledger, "after_bill", lambda *facts: None)


@planted("after a bill above its bound one call goes out at a time, until enough stayed within it", 671, likely=_over)
def calls_at_once_in_spite_of_bills(patch: Patch) -> None:
    patch.setattr(route_share, "calls_at_once", lambda excess, windows: 1_000)


@planted("what a call may cost follows the bills", 35, likely=_over)
def reservations_not_raised(patch: Patch) -> None:
    patch.setattr(ledger, "raised", lambda excess, bound: bill_excess.raised(bill_excess.BillExcess(), bound))


@planted("a reply without readable usage is charged in full", 62, likely=lambda made: not made.provider.bills)
def unknown_usage_is_free(patch: Patch) -> None:
    settle = ledger.Ledger.settle

    def free(self: Any, charge: Any, usage: Any, *more: Any) -> Any:
        return settle(self, charge, msgspec.structs.replace(usage, unknown=False), *more)

    patch.setattr(ledger.Ledger, "settle", free)


@planted("no reply is in K that some reader of K cannot read", 84, likely=_shaped)
def deep_replies_taken(patch: Patch) -> None:
    patch.setattr(branch, "shallow", lambda reply: reply)


@planted("a large reply is kept whole", 84, likely=_shaped)
def large_replies_cut(patch: Patch) -> None:
    ended = branch.Branch._ended

    def cut(self: Any, under: Any, result: Any) -> None:
        if isinstance(result, Reply) and len(result.body) > 20_000:
            result = msgspec.structs.replace(result, body=result.body.replace(b" " * 1_000, b""))
        ended(self, under, result)

    patch.setattr(branch.Branch, "_ended", cut)


@planted("a count beyond its bound is not believed", likely=_odd)
def any_count_is_believed(patch: Patch) -> None:
    count_of = flawed_response.count_of
    patch.setattr(flawed_response, "count_of", lambda value: value if type(value) is int else count_of(value))


@planted("usage that cannot be read is unknown, and not nothing", likely=_odd)
def unreadable_usage_counts_as_nothing(patch: Patch) -> None:
    patch.setattr(flawed_response, "UNKNOWN_USAGE", Usage())
    patch.setattr(chat_response, "UNKNOWN_USAGE", Usage())


@planted("a count that is written as a float or as text is read", likely=_odd)
def counts_in_other_types_not_read(patch: Patch) -> None:
    count_of = flawed_response.count_of
    for each in (flawed_response, chat_response):
        patch.setattr(each, "count_of", lambda value: count_of(value) if type(value) is int else None)


@planted("what is charged for unreadable usage stays charged in full", likely=_odd)
def unreadable_usage_charged_in_part(patch: Patch) -> None:
    assume = ledger.Ledger.assume

    def part(self: Any, charge: Any) -> None:
        assume(self, charge)
        self.assumed_nusd -= charge.nusd // 50

    patch.setattr(ledger.Ledger, "assume", part)
