"""Watch over bills above their bound, and over the form of replies.

A provider may bill more than a call can cost by its own bounds. What that does to caps and to the number of calls under
way is counted here from commands and replies, never from the counts of K.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cortex.state import commands, events
from cortex.values.reply import Reply
from policies.estimates.bill_excess import KNOWN_AFTER
from policies.estimates.price import cost_nusd
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.invariants_calls import priced, worst_nusd
from tests.simulation.provider import DEPTH_MAX, spoken

NEARLY = 0.9
"""Share of the highest bill seen that is at least reserved for the next call: its own bounds are a little smaller."""


def begins(out: list[commands.Command]) -> bool:
    """Return whether a turn begins a call."""
    return any(type(command) is commands.Call for command in out)


def depth(body: bytes) -> int:
    """Return the levels of brackets in JSON text that has none within its strings."""
    deepest = now = 0
    for byte in body:
        if byte in b"[{":
            now += 1
            deepest = max(deepest, now)
        elif byte in b"]}":
            now -= 1
    return deepest


class BillsWatch(Observer):
    """Observer of turns."""

    by_turns = True

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._provider = watch, world.provider
        self._calls: dict[tuple[str, int, int], commands.Call] = {}
        self._out: Counter[tuple[str, int]] = Counter()
        """By job and route: calls under way."""
        self._since: dict[tuple[str, int], int] = {}
        """By job and route: replies since the first one above its bound."""
        self._worst_nusd: dict[tuple[str, int], int] = {}
        """By job and route: the highest of these bills."""
        self._bound_nusd: dict[tuple[str, int, int], int] = {}
        """By call: the least that must be reserved for it."""
        self._over_nusd: Counter[str] = Counter()
        """By job, its child jobs included: money billed above the bounds of calls."""
        self._over_before = self._over_nusd
        self._seen: set[bytes] = set()

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job, but not by how much its bills were above the bounds of its calls."""
        for table in (self._calls, self._out, self._since, self._worst_nusd, self._bound_nusd):
            for key in [key for key in table if key[0] == record.name]:  # type: ignore[attr-defined]
                del table[key]  # type: ignore[attr-defined]
        self._over_before = self._over_nusd.copy()

    def rebuilt(self, record: JobWatch) -> None:
        """Count none of these bills twice."""
        self._over_nusd = self._over_before

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    self._answered(record, event)
        k = record.k
        assert k is not None
        cap, over_nusd = k.terms.limits.max_cost_nusd, self._over_nusd[record.name.partition("~")[0]]
        flights = {(flight.goal, flight.attempt): flight.route for flight in k.flights.values()}
        for command in out:
            if type(command) is not commands.Call:
                continue
            self._calls[record.name, command.goal, command.attempt] = command
            since = self._since.get((record.name, command.route), KNOWN_AFTER) if cap is not None else KNOWN_AFTER
            busy = sum(route == command.route for route in flights.values()) if since < KNOWN_AFTER else 0
            worst_nusd_seen = self._worst_nusd.get((record.name, command.route), 0)
            self._bound_nusd[record.name, command.goal, command.attempt] = max(
                worst_nusd(record, command), int(NEARLY * worst_nusd_seen)
            )
            if busy > 1 and not k.terms.routes[command.route].batched:
                self._watch.say(
                    f"{record.name}: {busy} calls are out on route {command.route}, {since} replies after one that cost"
                    " more than its call could"
                )
        if cap is not None and self._worst_nusd and not k.shards and "~" not in record.name and begins(out):
            reserved_nusd = sum(self._bound_nusd.get((record.name, *key), 0) for key in flights)
            spent_nusd = k.ledger.known_nusd + k.ledger.assumed_nusd + reserved_nusd
            if spent_nusd > cap:
                self._watch.say(f"{record.name} begins a call that may bring its cost to {spent_nusd} nUSD, of {cap}")
        if cap is not None and over_nusd and k.ledger.committed_nusd > cap + over_nusd:
            self._watch.say(
                f"{record.name}: {k.ledger.committed_nusd} nUSD are committed, the cap is {cap}, and replies cost"
                f" {over_nusd} more than their calls could"
            )

    def _answered(self, record: JobWatch, event: events.Answered) -> None:
        call = self._calls.get((record.name, event.goal, event.attempt))
        if call is None:
            return
        self._shape(record.name, call, event.reply)
        place = (record.name, call.route)
        if place in self._since:
            self._since[place] += 1
        over_nusd = cost_nusd(priced(record, call), event.reply.usage) - worst_nusd(record, call)
        if over_nusd > 0:
            self._since.setdefault(place, 0)
            cost = over_nusd + worst_nusd(record, call)
            self._worst_nusd[place] = max(cost, self._worst_nusd.get(place, 0))
            self._over_nusd[record.name.partition("~")[0]] += over_nusd
            del self._calls[record.name, event.goal, event.attempt]

    def _shape(self, job: str, call: commands.Call, reply: Reply) -> None:
        """Check that a reply is what the provider said, and no deeper than K can hold."""
        if reply.body in self._seen:
            return
        if len(reply.body) < 1_000:
            self._seen.add(reply.body)
        if depth(reply.body) > DEPTH_MAX:
            self._watch.say(f"{job}: K has a reply of {depth(reply.body)} levels")
        text = spoken(call.body)
        if self._provider.shaped(text) and reply.body != self._provider.body(text):
            self._watch.say(f"{job}: K has another reply to {text!r} than the provider gave")
