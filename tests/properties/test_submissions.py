"""Message batches under crashes anywhere: no row is ever with the provider twice, and each comes back exactly once.

The provider here keeps the truth. Whatever the channel does not live to hear, it must find out or ask.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.loop.batch_submissions import custom_id
from cortex.programs.batch import Batch
from cortex.state import commands, events
from cortex.values.batch_record import SubmissionStatus
from cortex.values.limits import Limits, Route
from policies.estimates.batching import BatchingPolicy
from policies.failures.failure import Failure, FailureKind
from policies.failures.retry import RetryPolicy
from tests.support.state_machine_harness import PRICE, Stage, failure, fed, reply

ROWS = tuple(f"row-{index}" for index in range(9))
LIMITS = Limits(
    output_tokens_max=8, batching=BatchingPolicy(submit_timeout_s=5.0, settle_s=2.0),
    retry=RetryPolicy(base_s=0.5, cap_s=2.0, attempts_max=50),
)  # fmt: skip
ROUTE = Route(endpoint="sim", model="m", price=PRICE, via="batches")
TURNS_MAX = 4_000


class Provider:
    """Batches by name: custom ids, which of them were handed out, and whether all of them were."""

    def __init__(self) -> None:
        self.batches: dict[str, dict[str, str]] = {}
        self.open: set[str] = set()
        self.made_at_s: dict[str, float] = {}

    def make(self, rows: dict[str, str], at_s: float) -> str:
        """A new batch of custom id -> row. The one thing that must never happen is looked for here."""
        there = [row for name in self.open for row in self.batches[name].values()]
        assert not set(there) & set(rows.values()), "a row is with the provider a second time"
        name = f"batch_{len(self.batches)}"
        self.batches[name] = rows
        self.open.add(name)
        self.made_at_s[name] = at_s
        return name


class Road:
    """One job over message batches; the edge is played here, and dies at any moment."""

    def __init__(self, seed: int, crashes: float, faults: float) -> None:
        self.chance = random.Random(seed)
        self.crashes, self.faults = crashes, faults
        self.provider = Provider()
        self.stage = Stage(Batch(), LIMITS, permits=20, route=ROUTE, streams=True)
        self.hand: dict[int, commands.Call] = {}
        self.bodies: set[int] = set()
        """Submissions whose requests this incarnation of the channel holds."""
        self.to_do: list[commands.Command] = []
        self.paid: Counter[str] = Counter()
        self.answered = 0
        self.hear(self.stage.turn(fed(*ROWS, ended=True)))

    @property
    def k(self) -> Any:
        return self.stage.k

    def hear(self, out: list[commands.Command]) -> None:
        for command in out:
            if isinstance(command, commands.Call):
                self.hand[command.goal << 20 | command.attempt] = command
            elif (
                isinstance(command, (commands.SubmitBatch, commands.FindSubmission, commands.CollectResults))
                and command not in self.to_do
            ):
                self.to_do.append(command)

    def put(self, *happened: events.Event, later_s: float = 0.3) -> None:
        self.hear(self.stage.turn(*happened, at_s=self.k.at_s + later_s))

    # -- one thing happens -------------------------------------------------------------------------------------------

    def turn(self) -> None:
        if self.k.outcome:
            self.hand, self.to_do, self.bodies = {}, [], set()
            entries = self.answers()
            self.put(events.Rejoined(self.k.epoch + 1), *entries, events.Resumed("ann"), events.PermitsGranted(20))
        elif self.chance.random() < self.crashes:
            self.crash()
        elif self.chance.random() < 0.02:
            self.put(events.Stopped("ann", "drain"))
        elif self.hand and self.chance.random() < 0.5:
            self.cut()
        elif self.to_do:
            self.act(self.to_do.pop(self.chance.randrange(len(self.to_do))))
        else:
            self.put(events.Ticked(), later_s=1.0)

    def crash(self) -> None:
        """What was in memory is gone: calls in hand, requests on their way, results half read."""
        self.hand, self.to_do, self.bodies = {}, [], set()
        self.put(events.Rejoined(self.k.epoch + 1), events.PermitsGranted(20))
        if self.k.outcome:
            self.put(events.Resumed("ann"))

    def cut(self) -> None:
        keys = self.chance.sample(sorted(self.hand), self.chance.randint(1, len(self.hand)))
        newest = list(self.provider.batches)[-1] if self.provider.batches else ""
        self.bodies.add(self.k.next_submission)
        self.put(events.SubmissionIntended(self.k.next_submission, 0, tuple(keys), newest))
        for key in keys:
            self.hand.pop(key, None)

    def act(self, command: Any) -> None:
        made = self.k.submissions.get(command.number)
        if made is None:
            return
        if isinstance(command, commands.SubmitBatch):
            self.submit(made)
        elif isinstance(command, commands.FindSubmission):
            self.find(command, made)
        else:
            self.collect(command, made)

    def submit(self, made: Any) -> None:
        assert made.number in self.bodies, "what is to be submitted died with an earlier channel"
        rows = {custom_id(self.k, self.k.flights[key]): self.k.flights[key].sample for key in made.keys}
        fate = self.chance.random() if self.chance.random() < self.faults else 1.0
        if fate < 0.25:
            refusal = failure(self.chance.choice(["throttled", "overloaded", "rejected"]), status=429)
            self.put(events.SubmissionRejected(made.number, refusal))
        elif fate < 0.4:
            self.put(events.SubmissionUncertain(made.number, failure("transient")))  # it never arrived
        else:
            name = self.provider.make(rows, self.k.at_s)
            if fate < 0.6:
                self.crash()
            elif fate < 0.8:
                self.put(events.SubmissionUncertain(made.number, failure("timed_out")))
            else:
                self.put(events.SubmissionAccepted(made.number, name))

    def find(self, command: Any, made: Any) -> None:
        """Only a list that was asked for late enough proves that there is none."""
        found = self.found(made)
        if self.chance.random() < 0.15:
            self.put(
                events.SubmissionUnreadable(made.number, failure("rejected", "the list cannot be read", status=403))
            )
        elif found:
            self.put(events.SubmissionAccepted(made.number, found[0]))
        elif self.k.at_s >= made.settled_at_s:
            why = made.failure or Failure(FailureKind.LOST, "it was never made", sent=False)
            self.put(events.SubmissionRejected(made.number, why))
        else:
            self.put(events.Ticked(), later_s=1.0)
            self.to_do.append(command)

    def answers(self) -> list[events.Event]:
        """The job has stopped and asks; a person looks, and says what is so. Some are not asked about: code looks again."""
        entries: list[events.Event] = []
        for made in self.k.submissions.values():
            if made.stand != SubmissionStatus.ASKING or made.name:
                continue
            found = self.found(made)
            never = Failure(FailureKind.LOST, "it was never made", sent=False)
            if f"--submitted {made.number}=" in self.k.why or self.chance.random() < 0.5:
                entries.append(
                    events.SubmissionAccepted(made.number, found[0], "ann") if found
                    else events.SubmissionRejected(made.number, never, "ann")
                )  # fmt: skip
        return entries

    def found(self, made: Any) -> list[str]:
        """Only ids decide."""
        ids = {custom_id(self.k, self.k.flights[key]) for key in made.keys if key in self.k.flights}
        found = [name for name, rows in self.provider.batches.items() if ids & set(rows)]
        assert len(found) <= 1
        return found

    def collect(self, command: Any, made: Any) -> None:
        """Some lines of its results, in any order, some of them read before; then perhaps the end of them."""
        rows = self.provider.batches[made.name]
        ids = {custom_id(self.k, self.k.flights[key]): key for key in made.keys if key in self.k.flights}
        read = self.chance.sample(sorted(ids), self.chance.randint(0, len(ids)))
        happened = [self.outcome(made.name, each, rows[each], self.k.flights[ids[each]]) for each in read]
        if len(read) == len(ids):
            self.provider.open.discard(made.name)
            happened.append(events.ResultsCollected(made.number))
        else:
            self.to_do.append(command)
        self.put(*happened)

    def outcome(self, name: str, each: str, row: str, flight: Any) -> events.Event:
        """What became of a request: fixed in the provider's file, however often it is read."""
        draw = random.Random(f"{name}/{each}").random()
        del self.provider.batches[name][each]
        if draw < self.faults * 0.3:
            kind, status = ("overloaded", 529) if draw < self.faults * 0.2 else ("throttled", 429)
            return events.AttemptFailed(flight.goal, flight.sample, flight.attempt, failure(kind, status=status))
        self.paid[row] += 1
        self.answered += 1
        return events.Answered(flight.goal, flight.sample, flight.attempt, flight.hash, reply(row))

    def run(self) -> None:
        for _ in range(TURNS_MAX):
            if self.k.outcome == "complete":
                return
            self.turn()
        raise AssertionError(f"no end: {self.stage.statuses()}, {self.k.submissions}, {self.k.why}")


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.05, 0.25]), st.sampled_from([0.0, 0.4, 0.9]))
@settings(max_examples=60)
def test_no_row_is_with_the_provider_twice_and_each_comes_back_once(seed, crashes, faults):
    road = Road(seed, crashes, faults)
    road.run()
    lines = Counter(msgspec.json.decode(line)["custom_id"] for line in road.stage.emitted)
    assert lines == Counter(ROWS)
    assert road.paid == Counter(ROWS)
    assert road.k.ledger.paid_calls == len(ROWS)
    assert road.k.ledger.reserved_nusd == road.k.ledger.assumed_nusd == road.k.ledger.paid_again == 0
    assert not road.k.submissions


def test_the_crashes_are_worth_it():
    """All stands are seen, and submissions are lost, found and asked about: else the property would say little."""
    seen: set[SubmissionStatus] = set()
    asked = 0
    for seed in range(40):
        road = Road(seed, 0.1, 0.7)
        for _ in range(TURNS_MAX):
            if road.k.outcome == "complete":
                break
            road.turn()
            seen |= {made.stand for made in road.k.submissions.values()}
        asked += any(
            isinstance(event, events.SubmissionUnreadable)
            for turn in road.stage.turns
            for batch in turn.batches
            for event in batch
        )
    assert seen == set(SubmissionStatus)
    assert asked > 5
