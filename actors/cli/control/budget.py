"""``budget``: caps on the cost of all jobs of a label together, and a list of the budgets in force."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import msgspec

from actors.cli.control.limit import asked_cortex
from actors.cli.jobs.settings import folder_of, named_folder, shared_at, shared_cluster
from actors.cli.options.errors import COMPLETE, FAILED, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError, UserError
from actors.common.text_table import bounded_line
from actors.common.units import clock
from actors.history.catalog import last_terms
from actors.jobs.limit_options import bounded
from actors.jobs.option_parsing import label
from actors.jobs.spec import who
from actors.journal.journal import StateFolder
from actors.limits import set_budgets
from actors.limits.budgets import books_of, opened
from actors.limits.shared_accounts import PLACE, accounts_at
from actors.ports.runtime import Peer
from cortex.values.limits import Limits
from policies.estimates.price import usd, usd_text
from policies.limits.slices import Budget, turn_to, window_end_s

_budgets_decoder = msgspec.msgpack.Decoder(dict[str, Budget])


def budget(text: str, asked: dict[str, str], remove: bool, options: Options) -> int:
    """Run ``cortex budget`` and return the exit code. ``asked``: amount given for each period."""
    caps = {period: _money(period, message) for period, message in asked.items() if message}
    if (caps or remove) and not text:
        raise CommandError("a budget needs a label: give one, like team=search")
    if caps and remove:
        raise CommandError("--remove removes all budgets of a label: leave the amounts out")
    found = _label(text) if text else None
    cluster = shared_cluster(options)
    if cluster:
        return asyncio.run(_in_cluster(cluster, found, caps, remove, options))
    shared = shared_at(options).get(PLACE, "")
    books = books_of(named_folder(options), shared)
    there = books.read()
    lost = [] if shared else set_budgets.lost(named_folder(options), there)
    if not caps and not remove:
        code = _listed(there, found, options, shared or named_folder(options).address)
        for name in lost:
            print_error(set_budgets.lost_words(named_folder(options), name))
        return FAILED if lost else code
    assert found is not None
    before = _of_label(there, found)
    if remove:
        gone = [name for name in lost if name.rpartition(" a ")[0] == "=".join(found)]
        names = _removed(before, found) if before or not gone else []
        if not shared:  # first: a budget that is there and not noted is no fault
            set_budgets.note(named_folder(options), removed=[*names, *gone])
        for name in names:
            books.remove(name)
        for name in gone:
            print_error(f"{name}: removed, it was gone")
        return COMPLETE
    folder = folder_of(options)
    if shared:
        accounts_at(shared).prepare()
    for period, cap_nusd in caps.items():
        now = _made(folder, found, period, cap_nusd)
        books.put(now)
        if not shared:
            set_budgets.note(folder, added=[now.name])
        whose = f"clusters that share {shared}" if shared else f"jobs of {folder.address}"
        _change_text(before, books.read()[now.name], whose)
    return COMPLETE


def _money(period: str, text: str) -> int:
    try:
        found = bounded(Limits(), {"max_cost": text}, 0.0).max_cost_nusd
    except ValueError as error:
        raise CommandError(str(error).replace("--max-cost", f"--max-cost-per-{period}", 1)) from None
    if found is None:
        raise CommandError(f"--max-cost-per-{period} {text} is no amount: remove a budget with --remove")
    return found


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise CommandError(f"{text!r}: give a label and its value, like team=search")
    try:
        return label(name, value)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _made(folder: StateFolder, found: tuple[str, str], period: str, cap_nusd: int) -> Budget:
    made = Budget(*found, period=period, cap_nusd=cap_nusd, who=who(), at_s=time.time())
    return opened(folder, made, lambda job: _labels_of(folder, job), made.at_s)


def _labels_of(folder: StateFolder, job: str) -> dict[str, str] | None:
    """Return the labels of a job; None for a job that cannot be read or was forgotten."""
    with contextlib.suppress(UserError, ValueError):
        terms = last_terms(folder, job)
        return terms.labels if terms is not None else None
    return None


def _of_label(budgets: dict[str, Budget], found: tuple[str, str]) -> dict[str, Budget]:
    return {name: each for name, each in budgets.items() if (each.label, each.value) == found}


def _removed(before: dict[str, Budget], found: tuple[str, str]) -> list[str]:
    if not before:
        raise CommandError(f"no budget of {found[0]}={found[1]} is set; `cortex budget` lists what is")
    for each in before.values():
        print_error(f"{each.name}: removed, it was {usd_text(each.cap_nusd)}")
    return list(before)


def _change_text(before: dict[str, Budget], now: Budget, whose: str) -> None:
    was = f" (was {usd_text(before[now.name].cap_nusd)})" if now.name in before else ""
    facts = _facts(now)
    print_error(
        f"{now.name}: {usd_text(now.cap_nusd)}{was}, set by {now.who}, for all {whose}, running and to come; "
        f"spent {_usd(facts['spent_usd'])} of it so far, the {now.period} is in UTC"
    )


def _usd(value: float) -> str:
    return usd_text(round(value * 1e9))


def _listed(budgets: dict[str, Budget], found: tuple[str, str] | None, options: Options, where: str) -> int:
    """Print the budgets in force: amount, spent, lent and left, with author and time. Return the exit code."""
    shown = budgets if found is None else _of_label(budgets, found)
    facts = [_facts(each) for each in sorted(shown.values(), key=lambda each: (each.label, each.value, each.period))]
    if options.as_json:
        print(msgspec.json.encode({"budgets": facts}).decode())
        return COMPLETE
    for each in facts:
        line = (
            f"{each['label']}  {_usd(each['max_cost_usd'])} a {each['period']}  spent {_usd(each['spent_usd'])}, lent "
            f"{_usd(each['lent_usd'])}, left {_usd(each['left_usd'])} until {clock(each['until_s'])}  "
            f"by {each['who']}, since {clock(each['at_s'])}"
        )
        print(bounded_line(line))
    if not facts and found is not None:
        print_error(f"no budget of {found[0]}={found[1]} is set; `cortex budget` lists what is")
    elif not facts:
        print_error(f"no budget is set in {where}")
    return COMPLETE


def _facts(budget: Budget) -> dict[str, Any]:
    """Return a budget as plain facts. ``spent_usd``: known, assumed and reserved costs, as the jobs last reported.
    ``lent_usd``: further money that jobs may spend without asking again."""
    turn_to(budget, time.time())
    spent_nusd = sum(each.used_nusd for each in budget.holdings.values())
    counted_nusd = budget.counted_nusd
    return {
        "label": f"{budget.label}={budget.value}", "period": budget.period, "max_cost_usd": usd(budget.cap_nusd),
        "spent_usd": usd(spent_nusd), "lent_usd": usd(counted_nusd - spent_nusd),
        "left_usd": usd(max(0, budget.cap_nusd - counted_nusd)),
        "until_s": window_end_s(budget.period, budget.window), "who": budget.who, "at_s": budget.at_s,
        "jobs": {job: usd(each.used_nusd) for job, each in sorted(budget.holdings.items())},
    }  # fmt: skip


async def _ask_all(peer: Peer) -> dict[str, Budget]:
    return _budgets_decoder.decode(await peer.ask("budgets"))


async def _in_cluster(
    cluster: str, found: tuple[str, str] | None, caps: dict[str, int], remove: bool, options: Options
) -> int:
    """Run ``cortex budget`` against the scheduler of a cluster, which keeps the budgets of all its jobs."""

    async def send(peer: Peer) -> int:
        held = await _ask_all(peer)
        if found is None or not (caps or remove):
            return _listed(held, found, options, cluster)
        before = _of_label(held, found)
        if remove:
            for name in _removed(before, found):
                await peer.ask("remove_budget", name)
            return COMPLETE
        for period, cap_nusd in caps.items():
            now = _made(named_folder(options), found, period, cap_nusd)
            await peer.ask("set_budget", msgspec.msgpack.encode(now))
            _change_text(before, (await _ask_all(peer))[now.name], f"jobs of {cluster}")
        return COMPLETE

    return await asked_cortex(cluster, send)
