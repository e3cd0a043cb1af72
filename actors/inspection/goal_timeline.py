"""Timeline of one goal: its creation, its calls and their results, and each decision in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from actors.inspection.decisions import Facts, change_facts, facts_of, to_json_value
from actors.inspection.goal_events import OF_THE_JOB, about_submissions, concerned, event_facts
from actors.inspection.prompt_parts import prompt_facts, request_text
from actors.inspection.replay import begun, taken_again
from actors.inspection.span import TurnSpan
from actors.inspection.state_view import goal_facts, held
from actors.inspection.target import Target
from actors.journal.journal import Journal, StateFolder, StoreError
from cortex.state import commands, events
from cortex.state.state import ENDED, Goal, State

CHANGES_MAX = 50
"""Most changes of one result that are listed."""


class GoalTimeline(msgspec.Struct, kw_only=True):
    """Known history of one goal, in the order of the journal."""

    job: str
    subject: Facts
    note: str = ""
    """Limits of what the journal can show, and their reason; empty if it shows everything."""
    goal: Facts | None = None
    """Last known state of the goal; None if unknown."""
    entries: list[Facts] = []
    """Entries with turn, time, goal and kind of entry (``what``)."""


def story_of(folder: StateFolder, source: Journal, subject: Target, span: TurnSpan) -> GoalTimeline:
    """Return the timeline of a goal, of a row, or of one call. Raises ``StoreError``."""
    builder = _TimelineBuilder(folder, source, subject, span)
    if subject.refusal:
        builder.refused()
    elif span.program is not None:
        builder.again()
    else:
        builder.events_alone()
    return builder.story()


class _TimelineBuilder:
    """Builder of one timeline."""

    def __init__(self, folder: StateFolder, source: Journal, subject: Target, span: TurnSpan) -> None:
        self._folder, self._source, self._subject, self._span = folder, source, subject, span
        self._main = subject.goal
        self._goals: set[int] = {subject.goal} if subject.goal else set()
        self._submissions: set[int] = set()
        self._entries: list[Facts] = []
        self._k: State
        self._seq, self._at_s = 0, 0.0
        self._event: events.Event | None = None
        self._rendering: dict[int, Facts] = {}
        self._asked: dict[tuple[int, int], Facts] = {}
        self._last: Facts | None = None
        self._held = self._note = ""

    def story(self) -> GoalTimeline:
        """Return the timeline; of one call alone if the target names a call."""
        entries = self._entries
        if self._subject.sample:
            entries = [each for each in entries if each.get("sample", self._subject.sample) == self._subject.sample]
        named = {"goal": self._main or None, "row": self._subject.row or (self._last or {}).get("row", "")}
        if self._subject.sample:
            named["call"] = f"{self._span.terms.job}/{self._main}/{self._subject.sample}"
        note = self._note
        if not note and not entries:
            note = "the journal has no entries about it"
        job = self._source.job
        return GoalTimeline(job=job, subject=named, note=note, goal=self._last, entries=entries)

    # -- by replay ---------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """Replay the turns, from before the goal was made until it has ended and none of its attempts is in flight."""
        source, span, subject = self._source, self._span, self._subject
        if subject.goal:
            start = begun(source, span, span.upto, lambda k: k.next_goal <= subject.goal)
        else:
            start = begun(source, span, subject.fed_at - 1)
        for taken in taken_again(source, span, start, self._add_fact, span.upto):
            self._k, self._seq, self._at_s = taken.k, taken.seq, taken.turn.at_s
            self._commanded(taken.take())
            if self._main and self._over():
                break

    def _over(self) -> bool:
        k, goal = self._k, self._k.goals.get(self._main)
        if goal is None:
            if self._main >= k.next_goal:
                return False
        else:
            self._last = goal_facts(k, goal)
            if goal.status not in ENDED:
                self._see_held(goal)
                return False
        if self._last is not None and goal is None:
            self._last = {**self._last, **self._ending()}
        return not any(flight.goal in self._goals for flight in k.flights.values())

    def _ending(self) -> Facts:
        """Return how the goal ended, if it left K in the same turn."""
        ends = [each for each in self._entries if each["what"] == "ended" and each["goal"] == self._main]
        names = ("status", "answer", "failure")
        return {name: ends[-1][name] for name in names} if ends else {}

    def _see_held(self, goal: Goal) -> None:
        """Add an entry when the reason changes for which the goal is not asked."""
        why = held(self._k, goal) if goal.status == 0 else ""
        if why and why != self._held:
            self._add("held", goal.id, {"why": why})
        self._held = why

    def _add_fact(self, goal: int, what: str, seen: Facts) -> None:
        if what == "event":
            self._happens(seen["event"])
        elif what == "heard":
            self._event = None
        elif what == "changes":
            self._changes(goal, seen["changed"])
        elif what == "made":
            self._made(goal, seen["changed"])
        elif goal in self._goals:
            self._decided(goal, what, seen)

    def _happens(self, event: events.Event) -> None:
        self._event = event
        k = self._k
        # the decision "made" covers goals made by an event
        goal = concerned(event, k, self._goals) if not isinstance(event, events.GoalMade) else 0
        if isinstance(event, events.SubmissionIntended) and goal:
            self._submissions.add(event.number)
        if not goal and about_submissions(event, self._submissions):
            goal = self._main
        of_the_job = isinstance(event, OF_THE_JOB) and self._main in k.goals
        if goal or (of_the_job and k.goals[self._main].status not in ENDED):
            what, facts = event_facts(event, k, k.terms.routes)
            if isinstance(event, events.ReplyRecalled):
                facts |= self._payer(event)
            self._add(what, goal or self._main, facts)

    def _decided(self, goal: int, what: str, seen: Facts) -> None:
        k = self._k
        if what == "rendering":
            self._rendering[goal] = {"before": seen["prompt"], "seen": dict(seen)}
            return
        if what == "rendered":
            made = self._rendering.pop(goal)
            self._rendering[goal] = {"facts": prompt_facts(made["before"], seen["prompt"], k.estimate, made["seen"])}
            return
        facts = facts_of(k, what, seen)
        if what == "round":
            self._goals.update(seen["votes"])
        if what in ("asked", "round", "too_large"):
            facts |= self._prompt(goal)
        entry = self._add(what, goal, facts)
        if what == "asked":
            self._asked[goal, seen["flight"].attempt] = entry
        elif what == "hedged" and goal in k.goals:
            self._asked[goal, k.goals[goal].tries] = entry
        one = k.goals.get(goal)
        if what == "ended" and goal == self._main and one is not None:
            self._last = goal_facts(k, one)  # the goal may leave K in this turn

    def _prompt(self, goal: int) -> Facts:
        made = self._rendering.pop(goal, None)
        if made is None:
            return {}
        if "facts" in made:
            return {"prompt": made["facts"]}
        return {"prompt": prompt_facts(made["before"], None, self._k.estimate, made["seen"])}

    def _changes(self, by: int, changed: Iterable[Any]) -> None:
        """Add the changes that a program yielded: all changes if this goal's result led to them, else those to this
        goal."""
        if by in self._goals:
            self._add("program", by, _listed([change_facts(each) for each in changed]))
            return
        for change in changed:
            goal = getattr(getattr(change, "goal", None), "id", 0)
            if goal in self._goals and goal:
                self._add("program", goal, {"changes": [change_facts(change)]})

    def _made(self, by: int, changed: Iterable[Any]) -> None:
        for goal in changed:
            if not isinstance(goal, Goal):
                continue
            again = self._seq < self._subject.fed_at  # an earlier goal of a row that was reopened
            if not self._main and not again and goal.row and goal.row == self._subject.row:
                self._main = goal.id
                self._goals.add(goal.id)
            if goal.id == self._main:
                facts = {"kind": goal.kind, "row": goal.row, "parent": goal.parent, "value": to_json_value(goal.value)}
                self._add("made", goal.id, {**facts, "by": self._maker(by, goal), **_source(goal)})

    def _maker(self, by: int, goal: Goal) -> str:
        if by:
            return f"the result of goal {by}"
        if goal.row and isinstance(self._event, events.RowsRead):
            return f"row {goal.row}"
        return "the program's begin" if isinstance(self._event, events.Opened) else "the program's select"

    def _commanded(self, out: list[commands.Command]) -> None:
        for command in out:
            if getattr(command, "goal", 0) not in self._goals:
                continue
            if isinstance(command, commands.Call):
                entry = self._asked.get((command.goal, command.attempt))
                if entry is not None:
                    self._sent(entry, command)
            elif isinstance(command, commands.StartToolRun):
                arguments = to_json_value(command.arguments)
                self._add("runs_tool", command.goal, {
                    "tool": command.tool, "arguments": arguments, "attempt": command.attempt, "key": command.key,
                    "timeout_s": command.timeout_s,
                })  # fmt: skip
            elif isinstance(command, commands.LaunchChildJob):
                self._add("launches", command.goal, {
                    "job": f"{self._span.terms.job}~{command.goal}", "program": command.program,
                    "max_cost_nusd": command.max_cost_nusd, "max_job_tokens": command.max_job_tokens,
                })  # fmt: skip
            elif isinstance(command, commands.AbandonAttempt):
                self._add("abandons", command.goal, {"attempt": command.attempt})

    def _sent(self, entry: Facts, call: commands.Call) -> None:
        entry |= {
            "timeout_s": call.timeout_s, "prompt_tokens_max": call.prompt_tokens_max, "question": call.hash.hex(),
            "bytes": len(call.body), "request": call.body.decode(errors="replace"), "text": request_text(call.body),
        }  # fmt: skip

    def _add(self, what: str, goal: int, facts: Facts) -> Facts:
        one = self._k.goals.get(goal) if self._span.program is not None else None
        own = {"sample": one.sample} if one is not None and what in _OF_A_CALL else {}
        entry = {"turn": self._seq, "at_s": self._at_s, "what": what, "goal": goal, **own, **facts}
        self._entries.append(entry)
        return entry

    def _payer(self, event: events.ReplyRecalled) -> Facts:
        """Return the job that paid for a remembered reply, the turn and the time."""
        found = self._source.event(event.seq, event.position) if event.seq < self._seq else None
        job = self._source.job if isinstance(found, events.Answered) and found.hash == event.hash else ""
        seq = event.seq
        if not job:
            job, seq = self._folder.whose(event.hash)
        if not job or seq != event.seq:  # the question was asked anew: the index has a later reply
            return {"paid_by": "", "paid_at_s": None}
        try:
            other = self._source if job == self._source.job else self._folder.journal(job)
        except StoreError:
            return {"paid_by": job, "paid_at_s": None}
        try:
            at_s = next((turn.at_s for _, turn in other.turns(seq - 1)), None)
        finally:
            if other is not self._source:
                other.close()
        return {"paid_by": job, "paid_in_turn": seq, "paid_at_s": at_s}

    # -- without the program -----------------------------------------------------------------------------------------

    def events_alone(self) -> None:
        """Build the timeline from the journal's events: replies, failures, results. It has no prompts and no
        decisions."""
        where = self._span.terms.program
        self._note = f"the program {where} has changed since, or is gone: only data of the journal is shown"
        routes = self._span.terms.routes
        for seq, turn in self._source.turns(self._span.after):
            if seq > self._span.upto:
                return
            self._seq, self._at_s = seq, turn.at_s
            for batch in turn.batches:
                for event in batch:
                    if isinstance(event, events.RowsRead) and seq == self._subject.fed_at:
                        self._read(event)
                    by_row = bool(self._subject.row) and getattr(event, "sample", None) == self._subject.row
                    goal = concerned(event, None, self._goals) or (getattr(event, "goal", 0) if by_row else 0)
                    if goal:
                        self._main = self._main or goal
                        self._add(*_with_goal(event_facts(event, None, routes), goal))

    def refused(self) -> None:
        """Build the timeline of a row that was refused and never asked."""
        self._note = "the row was refused before it was asked"
        for seq, turn in self._source.turns(self._subject.fed_at - 1):
            self._seq, self._at_s = seq, turn.at_s
            self._entries.append({
                "turn": seq, "at_s": turn.at_s, "what": "row_refused", "goal": 0, "why": self._subject.refusal,
            })  # fmt: skip
            return

    def _read(self, event: events.RowsRead) -> None:
        row = next((row for row in event.rows if row.key == self._subject.row), None)
        if row is not None:
            request = row.body.decode(errors="replace")
            self._add("read", self._main, {"row": row.key, "request": request, "text": request_text(row.body)})


_OF_A_CALL = frozenset({
    "retry", "backoff", "resample", "refused", "too_large", "given_up", "shares", "over_budget", "blocked", "hedged",
    "dropped", "left_to_hedge", "goes_elsewhere", "held", "abandons", "waits_for_prefix", "paused",
})  # fmt: skip
"""Entries that are about the goal's current call."""


def _with_goal(entries: tuple[str, Facts], goal: int) -> tuple[str, int, Facts]:
    return entries[0], goal, entries[1]


def _source(goal: Goal) -> Facts:
    """Return the place in a flow's source where a goal is awaited; empty if no flow made the goal."""
    match goal.value:
        case [str(place), str(preview), str(_), *_] if ":" in place:
            return {"awaited_at": place, "preview": preview}
    return {}


def _listed(changes: list[Facts]) -> Facts:
    more = len(changes) - CHANGES_MAX
    return {"changes": changes[:CHANGES_MAX], **({"more_changes": more} if more > 0 else {})}
