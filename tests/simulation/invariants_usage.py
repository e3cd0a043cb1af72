"""Watch over usage in forms that no API describes: K gets counts within their bounds, or that they are unknown.

Counted from events and commands, never from the counts of K.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from cortex.state import commands, events
from cortex.values.bounds.counts import COUNT_MAX
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.invariants_calls import worst_nusd
from tests.simulation.odd_usage import USAGE, read_as
from tests.simulation.provider import spoken

_COUNTS = 5
"""Fields of ``Usage`` that are counts, the first of them."""


class UsageWatch(Observer):
    """Observer of turns."""

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._provider = watch, world.provider
        self._calls: dict[tuple[str, int, int], commands.Call] = {}
        """Calls that were not answered yet."""
        self._assumed_nusd: Counter[str] = Counter()
        """By job: least cost of the answers without readable usage."""

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job, which is counted anew from the turns that are left."""
        del self._assumed_nusd[record.name]
        for key in [key for key in self._calls if key[0] == record.name]:
            del self._calls[key]

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        k = record.k
        assert k is not None
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    self._answered(record, event)
        for command in out:
            if type(command) is commands.Call:
                self._calls[record.name, command.goal, command.attempt] = command
        if k.shards:
            return  # its ledger has the sums of other jobs
        least_nusd = self._assumed_nusd[record.name]
        if k.ledger.assumed_nusd < least_nusd:
            self._watch.say(
                f"{record.name}: {k.ledger.assumed_nusd} nUSD are assumed, answers without readable usage may have cost"
                f" {least_nusd}"
            )

    def _answered(self, record: JobWatch, event: events.Answered) -> None:
        usage = event.reply.usage
        counts = msgspec.structs.astuple(usage)[:_COUNTS]
        if not all(type(count) is int and 0 <= count <= COUNT_MAX for count in counts):
            self._watch.say(f"{record.name}: K has {usage}")
        call = self._calls.pop((record.name, event.goal, event.attempt), None)
        if call is None:
            return
        text = spoken(call.body)
        wanted = read_as(text) if self._provider.odd(text) else USAGE
        if usage != wanted:
            self._watch.say(f"{record.name}: K has {usage} for {text!r}, the provider sent what reads as {wanted}")
        if wanted.unknown:
            self._assumed_nusd[record.name] += worst_nusd(record, call)
