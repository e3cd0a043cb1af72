"""Events of a journal as JSON values about one goal."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from actors.inspection.decisions import Facts, failure_facts, to_json_value
from actors.jobs.wait_reasons import named
from cortex.state import events
from cortex.state.state import State, flight_key
from cortex.values.limits import Route
from cortex.values.reply import Reply
from policies.estimates.price import cost_nusd, usd

OF_THE_JOB = (events.Rejoined, events.Resumed, events.Stopped, events.LimitsSet)
"""Events that concern every live goal."""


def concerned(event: events.Event, k: State | None, goals: Collection[int]) -> int:
    """Return the goal, among ``goals``, that an event is about; 0 if none. Without K, only a goal that the event
    names is found."""
    named_goal = getattr(event, "goal", 0)
    if named_goal in goals:
        return int(named_goal)
    if k is None:
        return 0
    if isinstance(event, (events.Answered, events.AttemptFailed, events.GivenBack)):
        flight = k.flights.get(flight_key(event.goal, event.attempt))
        return next((each for each in flight.followers if each in goals), 0) if flight is not None else 0
    if isinstance(event, events.ReplyRecalled):
        asked = [k.flights.get(flight_key(event.goal, k.goals[event.goal].tries))] if event.goal in k.goals else []
        return next((each for flight in asked if flight is not None for each in flight.followers if each in goals), 0)
    if isinstance(event, events.AnswerGiven):
        waiting = (k.goals.get(each) for each in k.expected.get(event.name, ()))
        return next((goal.id for goal in waiting if goal is not None and goal.id in goals), 0)
    if isinstance(event, events.SubmissionIntended):
        return next((key >> 20 for key in event.keys if key >> 20 in goals), 0)
    return 0


def about_submissions(event: events.Event, numbers: Collection[int]) -> bool:
    """Return whether an event is about one of these submissions without naming its calls."""
    return not isinstance(event, events.SubmissionIntended) and getattr(event, "number", 0) in numbers


def event_facts(event: events.Event, k: State | None, routes: tuple[Route, ...]) -> tuple[str, Facts]:
    """Return the name of an event and its known data."""
    what = str(type(event).__struct_config__.tag)
    match event:
        case events.Answered() | events.AttemptFailed():
            return what, _attempt_facts(event, k, routes)
        case events.ReplyRecalled():
            return what, {"sample": event.sample, "reply": reply_facts(event.reply, None)}
        case events.GivenBack():
            return what, {
                "sample": event.sample, "attempt": event.attempt, "by": event.by, "again_s": event.again_s,
                "generation": event.generation,
            }  # fmt: skip
        case events.ToolRunBegun():
            return what, {"attempt": event.attempt, "by": event.by}
        case events.Observed():
            return what, {
                "value": to_json_value(event.value), "failure": failure_facts(event.failure) or None,
                "elapsed_s": event.elapsed_s, "by": event.by, "attempt": event.attempt,
            }  # fmt: skip
        case events.ChildJobEnded():
            return what, {
                "value": to_json_value(event.answer), "failure": failure_facts(event.failure) or None,
                "partial": event.partial, "known_usd": usd(event.known_nusd), "assumed_usd": usd(event.assumed_nusd),
                "tokens": event.input_tokens + event.output_tokens,
            }  # fmt: skip
        case events.AnswerGiven():
            return what, {"who": event.who, "name": event.name, "value": to_json_value(event.value)}
        case events.GoalMade():
            return "written_down", {"kind": event.kind, "value": to_json_value(event.value)}
        case events.SubmissionIntended():
            return what, {"number": event.number, "requests": len(event.keys)}
        case _:
            return what, dict(_fields(event))


def _fields(event: events.Event) -> Iterator[tuple[str, Any]]:
    """Yield the short fields of an event about the job or about a submission."""
    for name in ("number", "name", "who", "how", "story"):
        value = getattr(event, name, "")
        if value:
            yield name, value
    failure = getattr(event, "failure", None)
    if failure is not None:
        yield "failure", failure_facts(failure)


def _attempt_facts(event: events.Answered | events.AttemptFailed, k: State | None, routes: tuple[Route, ...]) -> Facts:
    flight = k.flights.get(flight_key(event.goal, event.attempt)) if k is not None else None
    route = routes[flight.route] if flight is not None and flight.route < len(routes) else None
    facts: Facts = {
        "sample": event.sample, "attempt": event.attempt, "elapsed_s": event.elapsed_s, "waited_s": event.waited_s,
        "by": event.by, "route": named(route) if route is not None else "",
        "asked_at_s": flight.asked_at_s if flight is not None else None,
    }  # fmt: skip
    if isinstance(event, events.AttemptFailed):
        return {**facts, **failure_facts(event.failure)}
    return {**facts, "reply": reply_facts(event.reply, route if route is not None else routes[0])}


def reply_facts(reply: Reply | None, route: Route | None) -> Facts:
    """Return a reply: text, usage, and cost at the route's price (None: unknown, or nothing was paid)."""
    if reply is None:
        return {}
    usage = reply.usage
    price = route.price if route is not None and not usage.unknown else None
    paid = cost_nusd(price, usage) if price is not None else None
    return {
        "text": reply.text, "stop_reason": reply.stop_reason, "model": reply.model,
        "input_tokens": None if usage.unknown else usage.input_tokens,
        "output_tokens": None if usage.unknown else usage.output_tokens,
        "cache_read_tokens": usage.cache_read_tokens, "cache_creation_tokens": usage.cache_creation_tokens,
        "cost_usd": None if paid is None else usd(paid), "body": reply.body.decode(errors="replace"),
    }  # fmt: skip
