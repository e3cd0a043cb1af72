"""Watch over what follows a loss of power with a disk that has lied: no reply answers another question than its own, and
nothing is asked again whose reply the journal has kept.

Branches on other machines, the index of replies and results files remember more than the journal. What they remember of
the lost turns is named as the calls of later turns are: by goal and attempt, by turn and position, by number.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cortex.state import commands, events
from cortex.values.reply import Reply
from tests.simulation.invariants import JobWatch, Observer, Watch
from tests.simulation.loop import Life
from tests.simulation.provider import ELECT, reply, said, spoken


class LossesWatch(Observer):
    """Observer of turns, and of messages to branches."""

    by_turns = True

    def __init__(self, watch: Watch, world: Any) -> None:
        self._watch, self._world = watch, world
        self._plans = {job.name: job for job in world.plan.jobs}
        self._calls: dict[str, dict[tuple[int, int], commands.Call]] = defaultdict(dict)
        self._last: dict[str, dict[int, commands.Call]] = defaultdict(dict)
        """By job and goal: its last call."""
        self._known: dict[str, set[str]] = defaultdict(set)
        """By job: questions whose replies are in its journal."""
        self._settled: dict[str, set[tuple[int, int]]] = defaultdict(set)
        """By job: attempts that were answered."""
        self._dropped: dict[str, int] = defaultdict(int)
        """By job: replies that K had dropped after the last turn."""
        self._speakers: dict[tuple[str, int, str], Life] = {}
        """By job, epoch and process of a branch: the channel that has given calls to it."""

    def lost(self, record: JobWatch, gone: list[list[commands.Command]]) -> None:
        """Forget a job."""
        for table in (self._calls, self._last, self._known, self._settled, self._dropped):
            table.pop(record.name, None)  # type: ignore[attr-defined]

    def turned(self, record: JobWatch, turn: events.Turn, out: list[commands.Command]) -> None:
        """A turn is on disk."""
        calls, last, again, others = self._calls[record.name], self._last[record.name], 0, []
        for batch in turn.batches:
            for event in batch:
                if type(event) is events.Answered:
                    call = calls.get((event.goal, event.attempt))
                    if (event.goal, event.attempt) in self._settled[record.name]:
                        again += 1
                    elif call is not None and event.hash != call.hash:
                        others.append(call)
                    elif call is not None:
                        self._settled[record.name].add((event.goal, event.attempt))
                        self._answered(record.name, call, event.hash, event.reply)
                elif type(event) is events.ReplyRecalled and event.reply is not None and event.goal in last:
                    self._answered(record.name, last[event.goal], event.hash, event.reply)
        self._drops(record, again, others)
        for one in out:
            if type(one) is commands.Call:
                calls[one.goal, one.attempt] = last[one.goal] = one
                text = spoken(one.body)
                if text in self._known[record.name]:
                    self._watch.say(f"{record.name}: {text!r} is asked again, its reply is in the journal")

    def _drops(self, record: JobWatch, again: int, others: list[commands.Call]) -> None:
        """A turn has brought replies to attempts that were answered, and to other questions: K must drop them."""
        dropped = record.k.tally.dropped if record.k is not None else 0
        before, self._dropped[record.name] = self._dropped[record.name], dropped
        if others and dropped - before < again + len(others):
            goal, text = others[0].goal, spoken(others[0].body)
            self._watch.say(f"{record.name}: goal {goal} asks {text!r} and takes in the reply to another question")

    def _answered(self, job: str, call: commands.Call, question: bytes, answer: Reply) -> None:
        text, plan = spoken(call.body), self._plans.get(job)
        if plan is not None and plan.program == "batch" and not plan.retries and not self._world.plan.provider.shapes:
            self._known[job].add(text)
        if question != call.hash:
            self._watch.say(f"{job}: goal {call.goal} asks {text!r} and takes in the reply to another question")
        elif self._has_one(text) and not self._world.provider.odd(text) and answer.body != reply(said(text)).body:
            self._watch.say(f"{job}: {text!r} is answered by {answer.body!r}")

    def _has_one(self, text: str) -> bool:
        """Return whether all replies to a question are the same short one."""
        return not text.startswith(ELECT) and not self._world.provider.shaped(text)

    def sent(self, life: Life, name: str, method: str, args: Any) -> None:
        """A message leaves a life: no two channels speak to a process of a branch under one epoch."""
        if method != "work" or not life.name.startswith("channel:") or not args[2]:
            return
        job, epoch, incarnation = args[:3]
        before = self._speakers.setdefault((job, epoch, incarnation), life)
        if before is not life:
            self._watch.say(f"{job}: two channels give calls to {name} under epoch {epoch}")
