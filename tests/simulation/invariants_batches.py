"""Watch over message batches: none without its intent, none twice, no row asked while its whereabouts are unknown.

The outcome of a batch is the provider's own record; a channel may only know of it from the events that it committed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from cortex.loop.batch_submissions import custom_id
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.batch_record import SubmissionStatus
from policies.estimates.batching import absent
from tests.simulation.batches import Batch
from tests.simulation.invariants import JobWatch, Observer, Watch, awake
from tests.simulation.loop import Life

READ_S = 240.0
"""Seconds after a batch's end, without faults, in which its results must be in K."""


class _Roads:
    """Records of one job."""

    def __init__(self) -> None:
        self.ids: dict[int, frozenset[str]] = {}
        """Custom ids of submissions, by number."""
        self.leave: Counter[int] = Counter()
        """Submissions ordered by committed turns and not made yet, counted by number."""
        self.there: dict[int, tuple[int, int]] = {}
        """Goals whose row is, or may be, at the provider: (number of the submission, attempt)."""
        self.names: dict[int, str] = {}
        self.named_s: dict[int, float] = {}
        """Times at which K learnt those names; a person may be the one who knows."""
        self.asking: set[int] = set()
        """Submissions that only a person can decide."""


class BatchesWatch(Observer):
    """Observer of turns, of new batches, and of billed rows."""

    by_turns = True

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._world, self._loop = watch, world, world.loop
        self._roads: dict[str, _Roads] = defaultdict(_Roads)
        self._made: dict[str, str] = {}
        """Names of batches by custom id."""
        self._billed: Counter[str] = Counter()
        self._lost: set[str] = set()
        """Rows with unreadable results: whether they were paid for is unknown."""
        self._void: set[str] = set()
        """Custom ids in submissions whose intent a disk has lost: nobody knows of them, and they are paid again."""
        self._before = _Roads()
        self._calm_s = 0.0

    # -- turns ---------------------------------------------------------------------------------------------------------

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job, but not the submissions of which nobody knows now."""
        self._before = old = self._roads.pop(record.name, _Roads())
        lost = (one.number for out in gone for one in out if type(one) is commands.SubmitBatch)
        self._void.update(*(old.ids.get(number, ()) for number in lost))
        for batch in self._world.account.all.values():
            self._see_void(batch)

    def rebuilt(self, record: JobWatch) -> None:
        """Count no submission twice that has left."""
        roads = self._roads[record.name]
        for number in roads.leave:
            roads.leave[number] = self._before.leave[number]

    def _see_void(self, batch: Batch) -> None:
        if self._void & batch.requests.keys():
            self._lost |= {request.text for request in batch.requests.values()}

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        k = record.k
        assert k is not None
        if not any(route.batched for route in k.terms.routes):
            return
        roads = self._roads[record.name]
        for batch in turn.batches:
            for event in batch:
                self._event(record.name, k, roads, event)
        for command in out:
            if type(command) is commands.FinishJob and command.outcome == "complete":
                if nameless := {number for number, _ in roads.there.values()} - roads.names.keys() - roads.asking:
                    self._watch.say(f"{record.name} is complete, and nobody can cancel submission {min(nameless)}")
            elif type(command) is commands.SubmitBatch:
                self._submit(k, roads, command.number)
            elif type(command) is commands.Call and command.goal in roads.there:
                number = roads.there[command.goal][0]
                self._watch.say(f"{record.name}: goal {command.goal} is asked again, it is in submission {number}")

    def _event(self, job: str, k: State, roads: _Roads, event: Any) -> None:
        if isinstance(event, (events.Answered, events.AttemptFailed)):
            number, attempt = roads.there.get(event.goal, (0, 0))
            if number and attempt == event.attempt:
                if number not in roads.names:
                    self._watch.say(f"{job}: a result of submission {number}, which nobody knows to be there")
                del roads.there[event.goal]
        elif type(event) is events.SubmissionAccepted:
            if event.number not in roads.names:
                roads.named_s[event.number] = self._loop.time()
            roads.names[event.number] = event.name
        elif isinstance(event, (events.SubmissionRejected, events.ResultsCollected)):
            roads.there = {goal: at for goal, at in roads.there.items() if at[0] != event.number}
        elif type(event) is events.SubmissionUnreadable:
            roads.asking.add(event.number)
            if k.paused is not None or k.outcome:
                return
            self._watch.say(f"{job} goes on and asks nobody, though submission {event.number} cannot be decided")

    def _submit(self, k: State, roads: _Roads, number: int) -> None:
        flights = [k.flights[key] for key in k.submissions[number].keys]
        roads.ids[number] = frozenset(custom_id(k, flight) for flight in flights)
        roads.leave[number] += 1
        roads.there.update({flight.goal: (number, flight.attempt) for flight in flights})

    # -- the provider --------------------------------------------------------------------------------------------------

    def made(self, batch: Batch, life: Life) -> None:
        """The provider has made a message batch."""
        ids = frozenset(batch.requests)
        self._see_void(batch)
        job = next(iter(batch.requests.values())).text.partition(" ")[0]
        roads = self._roads[job]
        number = next((number for number, known in roads.ids.items() if known == ids), 0)
        if not roads.leave[number] and not ids <= self._void:
            self._watch.say(f"{life.name} makes a batch of {len(ids)} rows of {job}, which no turn has submitted")
        roads.leave[number] -= 1
        again = (ids & self._made.keys()) - self._void
        if again:
            names = {self._made[one] for one in again}
            self._watch.say(
                f"{job}: {len(again)} rows are made into a batch again, they are in {', '.join(sorted(names))}"
            )
        self._made.update(dict.fromkeys(ids, batch.name))
        if batch.unreadable:
            self._lost |= {request.text for request in batch.requests.values()}

    def billed(self, request: Any) -> None:
        """A row of a batch was answered."""
        if request.batched and not self._world.provider.too_deep(request.text):  # asked again, as after an error
            self._billed[request.text] += 1
            if self._billed[request.text] > 1 and request.text not in self._lost:
                self._watch.say(f"{request.text!r} is paid {self._billed[request.text]} times in batches")

    # -- events that are due
    # -------------------------------------------------------------------------------------------------

    def standing(self) -> None:
        """Check that the end of each batch is seen in time."""
        now_s = self._loop.time()
        if not self._world.calm:
            self._calm_s = now_s
        for name, roads in self._roads.items():
            record, life = self._watch.jobs.get(name), self._world.lives.get(f"channel:{name}")
            k = record.k if record is not None else None
            if k is None or k.outcome or life is None or life.halted or not awake(life):
                continue
            for number, _ in set(roads.there.values()):
                batch = self._world.account.all.get(roads.names.get(number, ""))
                due_s = max(self._calm_s, roads.named_s.get(number, 0.0)) + READ_S
                if batch is not None and batch.ended_s and now_s > max(batch.ended_s + READ_S, due_s):
                    self._watch.say(
                        f"{name}: {batch.name} has ended {now_s - batch.ended_s:.0f} s ago, and is not read"
                    )


def asking(world: Any, job: str) -> tuple[tuple[int, str], ...]:
    """Return the user's decision about each undecidable submission: (number, name of its batch).

    The name is empty if there is no batch, or if its results cannot be read. As ``cortex resume`` demands, nobody says
    that there is none while the request may still arrive.
    """
    record = world.watch.jobs.get(job)
    k = record.k if record is not None else None
    if k is None:
        return ()
    names, found = world.account.ids(), []
    for made in k.submissions.values():
        if made.stand == SubmissionStatus.ASKING:
            ids = [custom_id(k, k.flights[key]) for key in made.keys if key in k.flights]
            name = next((names[one] for one in ids if one in names), "")
            if not name and not made.name and not absent(made.settled_at_s, k.at_s):
                continue
            found.append((made.number, "" if made.name and world.account.all[name].unreadable else name))
    return tuple(found)
