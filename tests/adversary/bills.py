"""Providers that bill 0.5 to 1,000 times what a call was bound by: a cap is passed by a bounded amount, and it is told.

The jobs are simulated: real steps of K, by turns made here, without a process. Attempts are also lost and answered late.

Two bounds are held against what was paid beyond the cap. *First*: the excess of the calls that were in flight when the
first excess was seen. *Last*: the excess of those that were in flight when the last call was asked. The second holds
for each provider, since a call is asked only if the cap has room for all that is reserved. The first holds for each
provider whose bills have a highest ratio that soon comes again. No rule can give it for one whose bills keep rising, or
come by chance: a first bill of 1.01 times what was reserved tells nothing of a next one of 900 times. There the calls
of the second bound are one, or the square root of the number that have stayed in a row within what is reserved
(``calls_at_once``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from actors.jobs.bill_excess import cap_passed, excess_facts, excess_line
from cortex.journal.codec import open_job
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.state import State, flight_key
from cortex.values.ledger import Charge
from cortex.values.limits import Limits
from cortex.values.reply import Usage
from policies.estimates.price import cost_nusd
from policies.failures.failure import FailureKind
from tests.adversary.verdicts import Attack, Verdict
from tests.support.state_machine_harness import PRICE, Flat, failure, other, reply, terms

JOBS, JOBS_SHORT = 10_200, 400
"""Simulated jobs, over all laws."""
LEAST, MOST = 0.5, 1_000.0
"""Ratios of a bill to the bound of its call."""
Bill = Callable[[int, int, int], tuple[float, float]]
"""From the bounds of prompt and reply, in tokens, and the number of the call in the job, to the tokens billed."""


def attacks(short: bool) -> Iterator[Attack]:
    """Yield an attack for each law of bills."""
    for law in LAWS:
        yield Attack("bills", law, partial(_law, law, (JOBS_SHORT if short else JOBS) // len(LAWS)))


def _ratio(chance: random.Random) -> float:
    return LEAST * (MOST / LEAST) ** chance.random()


def _steady(chance: random.Random) -> Bill:
    times = _ratio(chance)
    return lambda prompt, output, number: (prompt * times, output * times)


def _added_prompt(chance: random.Random) -> Bill:
    added = 200 * _ratio(chance)
    return lambda prompt, output, number: (prompt * LEAST + added, output * LEAST)


def _long_replies(chance: random.Random) -> Bill:
    times = _ratio(chance)
    return lambda prompt, output, number: (prompt * LEAST, output * times)


def _some(chance: random.Random) -> Bill:
    times, share = _ratio(chance), chance.choice((0.02, 0.1, 0.3))
    return lambda prompt, output, number: _both(prompt, output, times if chance.random() < share else LEAST)


def _by_chance(chance: random.Random) -> Bill:
    return lambda prompt, output, number: _both(prompt, output, _ratio(chance))


def _rising(chance: random.Random) -> Bill:
    growth = chance.choice((1.05, 1.3, 2.0))
    return lambda prompt, output, number: _both(prompt, output, min(MOST, LEAST * growth ** min(number, 999)))


def _both(prompt: int, output: int, times: float) -> tuple[float, float]:
    return prompt * times, output * times


LAWS: dict[str, Callable[[random.Random], Bill]] = {
    "one ratio": _steady, "a prompt in front": _added_prompt, "replies too long": _long_replies,
    "some calls": _some, "by chance": _by_chance, "rising": _rising,
}  # fmt: skip
WITHOUT_FIRST = ("by chance", "rising")
"""Laws for which the first bound cannot be promised."""


class Call(NamedTuple):
    """Call in flight: what was asked, and what was reserved for it."""

    asked: commands.Call
    charge: Charge
    number: int

    @property
    def key(self) -> tuple[int, int]:
        """Goal and attempt."""
        return self.asked.goal, self.asked.attempt


class Job:
    """Simulated job under a cap, at a provider with one law of bills."""

    def __init__(self, law: str, seed: int) -> None:
        chance = self._chance = random.Random(f"{law}/{seed}")
        self._bill = LAWS[law](chance)
        self._program = Flat(texts=tuple("x" * chance.randrange(3, 400) for _ in range(chance.randrange(5, 60))))
        self.cap_nusd = int(10 ** chance.uniform(5.5, 9.5))
        self._output_max = chance.choice((4, 64, 1_000))
        limits = Limits(output_tokens_max=self._output_max, max_cost_nusd=self.cap_nusd)
        routes = (other("n", price=PRICE, endpoint="far"),) if chance.random() < 0.2 else ()
        opened = terms(limits, price=PRICE, fallbacks=routes)
        self.k: State = open_job(opened)
        self._at_s = 100.0
        self.calls: list[Call] = []
        self._late: list[Call] = []
        """Calls that were lost, and are answered all the same."""
        self._excess: dict[tuple[int, int], int] = {}
        """Money of each bill beyond what was reserved, by goal and attempt."""
        self._numbers = 0
        self._at_first: list[tuple[int, int]] | None = None
        self._at_last: list[tuple[int, int]] = []
        self.too_many = ""
        self._turn(events.Opened(opened, 1))
        self._turn(*[events.PermitsGranted(chance.choice((1, 2, 4, 8, 16, 32)), route=at) for at in range(1 + len(routes))])

    def _turn(self, *happened: events.Event) -> None:
        self._at_s += 1.0
        for command in step(self.k, self._program, events.Turn(self._at_s, (happened,))):
            if isinstance(command, commands.Call):
                charge = self.k.flights[flight_key(command.goal, command.attempt)].charge
                self.calls.append(Call(command, charge, self._numbers))
                self._numbers += 1
                self._at_last = [call.key for call in (*self.calls, *self._late)]

    def _answer(self, call: Call) -> events.Answered:
        """The reply to a call, whose bill is noted."""
        prompt, output = self._bill(call.charge.bounds[1] - self._output_max, self._output_max, call.number)
        usage = Usage(max(1, int(prompt)), max(1, int(output)))
        self._excess[call.key] = max(0, cost_nusd(PRICE, usage) - call.charge.nusd)
        asked = call.asked
        return events.Answered(asked.goal, asked.sample, asked.attempt, asked.hash, reply("ok", usage))

    def run(self) -> None:
        """Answer, or lose, calls in any order until the job ends."""
        chance = self._chance
        while (self.calls or self._late) and not self.k.outcome:
            in_flight = [call.key for call in (*self.calls, *self._late)]
            happened: list[events.Event] = []
            for _ in range(chance.choice((1, 1, 2, 5))):
                if self._late and (chance.random() < 0.3 or not self.calls):
                    happened.append(self._answer(self._late.pop()))
                elif self.calls:
                    call = self.calls.pop(chance.randrange(len(self.calls)))
                    if chance.random() < 0.03:
                        self._late.append(call)
                        lost = failure(FailureKind.LOST, sent=True)
                        happened.append(events.AttemptFailed(call.asked.goal, call.asked.sample, call.asked.attempt, lost))
                    else:
                        happened.append(self._answer(call))
            self._turn(*happened)
            if self._at_first is None and any(share.excess for share in self.k.shares):
                self._at_first = in_flight

    def excess_nusd(self, first: bool) -> int:
        """Money beyond what was reserved of the calls in flight when the first excess was seen, or at the last call."""
        return sum(self._excess.get(key, 0) for key in (self._at_first or () if first else self._at_last))

    @property
    def over_nusd(self) -> int:
        """Money paid beyond the cap."""
        return self.k.ledger.known_nusd + self.k.ledger.assumed_nusd - self.cap_nusd


def _law(law: str, jobs: int, folder: Path) -> Verdict:
    passed = beyond_first = beyond_last = untold = calls = 0
    for seed in range(jobs):
        job = Job(law, seed)
        job.run()
        calls += len(job._excess)
        facts = excess_facts(job.k)
        over = job.over_nusd
        if (over > 0) != cap_passed(facts) or (over > 0 and "--max-cost was passed by" not in excess_line(facts)):
            untold += 1
        if over > 0:
            passed += 1
            beyond_first += over > job.excess_nusd(first=True)
            beyond_last += over > job.excess_nusd(first=False)
    held = not beyond_last and not untold and (law in WITHOUT_FIRST or not beyond_first)
    told = f"{jobs} jobs, {calls} bills: the cap passed in {passed}, beyond the excess in flight at the first in {beyond_first}"
    return Verdict(held, f"{told}, at the last in {beyond_last}; untold in {untold} (simulated)")
