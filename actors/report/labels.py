"""Display names of goals, events and states of breakers."""

from __future__ import annotations

import re

from cortex.scheduler.pools import breaker_in
from cortex.state import events
from cortex.state.state import Goal
from cortex.values.display import clipped
from policies.failures.breaker import BreakerState

NAME_CHARACTERS = 80
"""Most characters of a goal's display name."""
OPEN, HALF_OPEN, HELD = "open", "half open", "held"


def breaker_of(event: events.PermitsGranted) -> str:
    """Return the state of a route at a grant: ``open``, ``half open``, ``held`` (the provider asked to wait), or empty
    if calls may start.

    Read from the breaker's state in the grant's memo; a grant without one, which no scheduler gave, is judged by its
    figures.
    """
    held = HELD if event.starts == 0 and event.permits else ""
    if (state := breaker_in(event.memo)) is not None:
        return {BreakerState.OPEN: OPEN, BreakerState.HALF_OPEN: HALF_OPEN}.get(state, held)
    if event.again_s > 0:
        return OPEN
    return HALF_OPEN if event.starts > 0 and event.permits else held


def name_of(goal: Goal, sample: str) -> str:
    """Return the display name of a goal: the key of its row, or the beginning of its value."""
    if goal.row:
        return goal.row if not goal.row.isdecimal() else f"row {goal.row}"
    if sample and not sample.isdecimal():
        return clipped(sample, NAME_CHARACTERS)
    value = goal.value
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        texts = [each for each in value if isinstance(each, str) and each][:2]
        if len(texts) == 2 and _PLACE.fullmatch(texts[0]):
            texts = [f"{clipped(texts[1], NAME_CHARACTERS - len(texts[0]) - 3)} ({texts[0]})"]  # of a flow
        return clipped(texts[0], NAME_CHARACTERS) if texts else ""
    return "" if value is None else clipped(value if isinstance(value, str) else repr(value), NAME_CHARACTERS)


_PLACE = re.compile(r"[^\s:]{1,40}:\d+")


LABELLED_EVENTS = (
    events.Opened, events.Rejoined, events.Resumed, events.Stopped, events.LimitsSet, events.AnswerGiven,
    events.SubmissionAccepted,
    events.SubmissionRejected, events.SubmissionUncertain, events.SubmissionUnreadable, events.RowsReopened,
)  # fmt: skip
"""Events that reports list."""


def event_label(event: events.Event) -> str:
    """Return the event as one line of text."""
    match event:
        case events.Opened():
            return "the job began" + (" anew, since its program changed" if event.carried is not None else "")
        case events.Rejoined():
            return "another run went on with the job"
        case events.Resumed():
            return f"resumed by {event.who}"
        case events.Stopped():
            return f"{event.how} by {event.who}" + (f": {event.story}" if event.story else "")
        case events.LimitsSet():
            return f"limits set by {event.who or 'a new run'}"
        case events.AnswerGiven():
            return f"{event.who} answered {event.name}"
        case events.RowsReopened():
            return f"{len(event.keys):,} failed rows are asked again by {event.who}"
        case events.SubmissionAccepted():
            return f"submission {event.number} is with the provider as {event.name}"
        case events.SubmissionRejected() | events.SubmissionUncertain() | events.SubmissionUnreadable():
            return f"submission {event.number}: {event.failure.kind}: {clipped(event.failure.message, 200)}"
    return ""
