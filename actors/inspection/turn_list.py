"""Turns of a journal, one line each; and the failed goals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from actors.history.catalog import replayed
from actors.inspection.decisions import failure_facts
from actors.inspection.replay import begun, taken_again
from actors.inspection.span import TurnSpan
from actors.journal.journal import Journal
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import Status
from cortex.values.display import clipped
from cortex.values.election import VOTE
from policies.failures.failure import RULES, Failure

_TEXT_CHARS_MAX = 60
"""Most characters of a quoted text."""


def turns_of(source: Journal, after: int) -> Iterator[dict[str, Any]]:
    """Yield every turn after a number: its time, its events by kind, text lines about them, and the outcome if the
    job ended."""
    outcome = ""
    for seq, turn in source.turns(after):
        flat = [event for batch in turn.batches for event in batch]
        lines = list(_turn_text(flat))
        if turn.account:
            before, outcome = outcome, codec.decode_account(turn.account).outcome
            if outcome and outcome != before:
                lines.append(f"the job ends: {outcome}")
        yield {"turn": seq, "at_s": turn.at_s, "events": dict(Counter(map(_tag, flat))), "said": lines}


def _tag(event: events.Event) -> str:
    return str(type(event).__struct_config__.tag)


def _turn_text(flat: list[events.Event]) -> Iterator[str]:
    """Yield a line for each kind of event: a single event with its data, several as their number."""
    for type_ in dict.fromkeys(map(type, flat)):
        some = [event for event in flat if type(event) is type_]
        yield _one(some[0]) if len(some) == 1 else f"{len(some):,} {_NAMES.get(type_, _tag(some[0]) + ' events')}"


_NAMES: dict[type, str] = {
    events.Answered: "calls answered", events.ReplyRecalled: "calls answered from memory",
    events.AttemptFailed: "attempts failed", events.GivenBack: "calls given back unsent",
    events.GoalMade: "goals made", events.ToolRunBegun: "tool runs begun",
    events.Observed: "tool runs over", events.ChildJobEnded: "child jobs ended",
    events.RowsRead: "windows of rows", events.PermitsGranted: "grants", events.AnswerGiven: "answers from outside",
    events.ShardReported: "reports of shards",
}  # fmt: skip


def _one(event: events.Event) -> str:
    match event:
        case events.Answered() | events.ReplyRecalled():
            text = f": {clipped(event.reply.text, _TEXT_CHARS_MAX)!r}" if event.reply is not None else ""
            remembered = " from memory" if isinstance(event, events.ReplyRecalled) else ""
            return f"goal {event.goal} answered{remembered}{text}"
        case events.AttemptFailed():
            return f"goal {event.goal} failed an attempt: {_failed(event.failure)}"
        case events.GivenBack():
            return f"goal {event.goal}: its call came back unsent, the breaker of its route is open"
        case events.GoalMade(value=[place, preview, *_]):
            return f"goal {event.goal} made: {event.kind} {clipped(str(preview), _TEXT_CHARS_MAX)!r} at {place}"
        case events.GoalMade():
            return f"goal {event.goal} made: {event.kind}"
        case events.ToolRunBegun():
            return f"goal {event.goal}: its tool run may begin at {event.by}"
        case events.Observed():
            came = _failed(event.failure) if event.failure else clipped(repr(event.value), _TEXT_CHARS_MAX)
            return f"goal {event.goal}: its tool run ended: {came}"
        case events.ChildJobEnded():
            came = _failed(event.failure) if event.failure else clipped(repr(event.answer), _TEXT_CHARS_MAX)
            if event.report is not None:
                return f"shard {event.goal} ended" + (f": {came}" if event.failure else "")
            return f"goal {event.goal}: its child job ended: {came}"
        case events.RowsRead():
            return f"{len(event.rows):,} rows read" + (", the last ones" if event.ended else "")
        case events.AnswerGiven():
            return f"{event.who} answered {event.name}: {clipped(repr(event.value), _TEXT_CHARS_MAX)}"
        case events.Stopped():
            return f"{event.how} by {event.who}"
        case events.LimitsSet():
            return f"limits set by {event.who or 'a new run'}"
        case events.RowsReopened():
            return f"{len(event.keys):,} failed rows are asked again by {event.who}"
        case events.Opened():
            return "the job begins" + (" anew" if event.carried is not None else "")
        case _:
            return _SIMPLE.get(type(event), _tag(event))


_SIMPLE: dict[type, str] = {
    events.Rejoined: "another run continues the job", events.Resumed: "resumed",
    events.PermitsGranted: "permits granted",
    events.BudgetLeased: "slices of its budgets", events.ResultsWritten: "output written", events.Ticked: "time passed",
    events.ShardReported: "a shard reports its figures",
    events.ShardsReopened: "shards begin again whose journals have lost their end",
}  # fmt: skip


def _failed(failure: Failure) -> str:
    return clipped(f"{failure.kind}: {failure.message}", 2 * _TEXT_CHARS_MAX)


# -- failures ---------------------------------------------------------------------------------------------------------


def failures_of(source: Journal, span: TurnSpan) -> Iterator[dict[str, Any]]:
    """Yield goals that failed for good and rows that were refused, in the order of these decisions, without rows
    that were asked again since. A row that was asked again without a better outcome follows at the end, with its latest
    failure."""
    again = [(seq, set(event.keys)) for seq, event in source.reopenings()]
    kept = _without_better(source, span) if again else set()
    latest: dict[str, dict[str, Any]] = {}
    for each in _failures(source, span):
        if each["row"] in kept:
            latest[each["row"]] = each
        elif not any(each["turn"] < seq and each["row"] in keys for seq, keys in again):
            yield each
    yield from sorted(latest.values(), key=itemgetter("turn"))


def _without_better(source: Journal, span: TurnSpan) -> set[str]:
    """Return the reopened rows whose earlier result stands, or stands until they are asked."""
    program = span.program
    if program is None:
        return set()
    k = replayed(source, lambda terms, known=program: known, span.upto)  # type: ignore[misc]
    return {*k.withdrawn, *k.standing} if k is not None else set()


def _failures(source: Journal, span: TurnSpan) -> Iterator[dict[str, Any]]:
    if span.program is None:
        yield from _failed_by_events(source, span)
        return
    found: list[dict[str, Any]] = []
    now: list[Any] = [0, 0.0, None]

    def tell(goal_id: int, what: str, seen: dict[str, Any]) -> None:
        if what == "ended" and seen["status"] == Status.FAILED:
            goal = now[2].goals[goal_id]
            if goal.kind != VOTE:
                found.append({
                    "goal": goal_id, "row": goal.row, "kind": goal.kind, "attempts": goal.tries - goal.unsent,
                    "turn": now[0],
                    "at_s": now[1], "failure": failure_facts(seen["failure"]),
                })  # fmt: skip
        elif what == "event" and isinstance(seen["event"], events.RowsRead):
            found.extend(_refused(seen["event"], now[2].position, now[0], now[1]))

    for taken in taken_again(source, span, begun(source, span, span.after), tell, span.upto):
        now[:] = taken.seq, taken.turn.at_s, taken.k
        taken.take()
        yield from found
        found.clear()


def _refused(event: events.RowsRead, position: int, seq: int, at_s: float) -> Iterator[dict[str, Any]]:
    if event.start != position:
        return  # a repeated window
    for row in event.rows:
        if row.refusal:
            failure = {"kind": "rejected", "message": row.refusal, "sent": False}
            named = {"goal": 0, "row": row.key, "kind": "row", "attempts": 0}
            yield {**named, "turn": seq, "at_s": at_s, "failure": failure}


def _failed_by_events(source: Journal, span: TurnSpan) -> Iterator[dict[str, Any]]:
    """Yield goals whose last event in the journal is a failure that is not retried."""
    last: dict[int, dict[str, Any]] = {}
    position = 0
    for seq, turn in source.turns(span.after):
        for batch in turn.batches:
            for event in batch:
                if isinstance(event, events.AttemptFailed):
                    last[event.goal] = {
                        "goal": event.goal, "row": "", "kind": "", "attempts": event.attempt, "turn": seq,
                        "at_s": turn.at_s, "failure": failure_facts(event.failure),
                    }  # fmt: skip
                elif isinstance(event, (events.Answered, events.ReplyRecalled)):
                    last.pop(event.goal, None)
                elif isinstance(event, events.RowsRead):
                    yield from _refused(event, position, seq, turn.at_s)
                    position = event.position
    yield from (each for each in last.values() if RULES[each["failure"]["kind"]].again != "hold")
