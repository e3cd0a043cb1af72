"""Details of a few goals: the prompt, every attempt, every wait, and the beginning of the reply."""

from __future__ import annotations

from typing import Any

import msgspec

from actors.history.annotated_turns import AnnotatedTurn, JournalReader, SettledAttempt
from actors.jobs.wait_reasons import named
from cortex.state import commands, events
from cortex.state.state import State
from cortex.values.display import clipped, text_of
from cortex.values.election import VOTE
from policies.estimates.price import usd_text

LINES_MAX = 30
PROMPT_CHARACTERS = 600
REPLY_CHARACTERS = 400
MESSAGE_CHARACTERS = 300


class GoalDetails(msgspec.Struct):
    """Entries about one goal, in the order of the journal."""

    prompt: str = ""
    """Beginning of the first prompt."""
    lines: list[tuple[float, str, str, str]] = msgspec.field(default_factory=list)
    """Time (Unix), kind (``asked``, ``answered``, ``failed``, ``other``), message, and the user's or model's text
    that belongs to it."""
    more: int = 0
    """Lines beyond ``LINES_MAX``, which are not kept."""

    def add(self, at_s: float, kind: str, message: str, text: str = "") -> None:
        """Add a line, or count it above ``LINES_MAX``."""
        if len(self.lines) < LINES_MAX:
            self.lines.append((at_s, kind, message, text))
        else:
            self.more += 1


Key = tuple[str, int]


def stories(reading: JournalReader, chosen: set[Key], text: bool) -> dict[Key, GoalDetails]:
    """Return the details of the chosen goals that this journal holds. ``text``: include prompts and replies."""
    ids = {goal for job, goal in chosen if job == reading.name}
    facts: dict[Key, GoalDetails] = {}
    if not ids:
        return facts
    for each in reading.steps():
        for one in each.settled:
            home = _shown_goal(one)
            if home in ids:
                _settled(facts.setdefault((reading.name, home), GoalDetails()), one, reading, text)
        _others(each, ids, facts, reading.name, text)
        if reading.k is not None:
            _asked(each, ids, facts, reading, reading.k, text)
    return facts


def _shown_goal(one: SettledAttempt) -> int:
    """Return the goal under which an attempt is shown: a vote is shown under its election's goal."""
    goal = one.goal
    return goal.parent if goal is not None and goal.kind == VOTE and goal.parent else one.event.goal


def _asked(
    each: AnnotatedTurn, ids: set[int], facts: dict[Key, GoalDetails], reading: JournalReader, k: State, text: bool
) -> None:
    for command in each.out:
        if not isinstance(command, commands.Call):
            continue
        goal = k.goals.get(command.goal)
        vote = goal is not None and goal.kind == VOTE and bool(goal.parent)
        home = goal.parent if goal is not None and vote else command.goal
        if home not in ids:
            continue
        story = facts.setdefault((reading.name, home), GoalDetails())
        route = f" of {named(reading.terms.routes[command.route])}" if command.route else ""
        what = f"vote {command.sample}" if vote else f"attempt {command.attempt}"
        how = f", framed: {goal.constructor}" if goal is not None and goal.constructor else ""
        story.add(each.turn.at_s, "asked", f"{what} asked{route}: a request of {len(command.body):,} bytes{how}")
        if text and not story.prompt:
            story.prompt = clip(text_of(command.body), PROMPT_CHARACTERS)


def _settled(story: GoalDetails, one: SettledAttempt, reading: JournalReader, text: bool) -> None:
    event = one.event
    where = f" at {event.by}" if not isinstance(event, events.ReplyRecalled) and event.by else ""
    waited = f" after {one.waited_s:.3f} s in its queue" if one.waited_s >= 0.001 else ""
    if isinstance(event, events.AttemptFailed):
        failure = event.failure
        status = f" (status {failure.status})" if failure.status else ""
        asked = f"; the provider asks to wait {failure.retry_after_s:g} s" if failure.retry_after_s else ""
        message = clipped(failure.message, MESSAGE_CHARACTERS)
        line = f"attempt {event.attempt} failed{where}{waited}, {one.elapsed_s:.3f} s: {failure.kind}{status}{asked}"
        story.add(one.at_s, "failed", line, message)
        return
    reply = event.reply
    words = clip(reply.text, REPLY_CHARACTERS) if text and reply is not None else ""
    if isinstance(event, events.ReplyRecalled) or reply is None:
        story.add(one.at_s, "answered", "answered from memory: nothing was sent, nothing paid", words)
        return
    usage, price = reply.usage, f", {usd_text(one.known_nusd)}" if one.known_nusd else ""
    tokens = f"{usage.input_tokens_billed:,} tokens in, {usage.output_tokens:,} out"
    if usage.unknown:
        tokens, price = "no token count", f", {usd_text(one.assumed_nusd)} assumed" if one.assumed_nusd else ""
    line = f"attempt {event.attempt} answered{where}{waited}, {one.elapsed_s:.3f} s: {tokens}{price}"
    line += f", stopped at {reply.stop_reason}" if reply.stop_reason else ", without a stop reason"
    story.add(one.at_s, "answered", line if one.counts else f"{line}; it came too late, and is not used", words)
    if one.goal is not None and one.goal.resamples and one.goal.refused:
        why = clipped(one.goal.refused, MESSAGE_CHARACTERS)
        story.add(one.at_s, "failed", "a reply was discarded, and another sample asked for", why if text else "")


def _others(each: AnnotatedTurn, ids: set[int], facts: dict[Key, GoalDetails], job: str, text: bool) -> None:
    """Add the results of tool runs and child jobs."""
    for batch in each.turn.batches:
        for event in batch:
            if isinstance(event, (events.Observed, events.ChildJobEnded)) and event.goal in ids:
                what = "its tool run" if isinstance(event, events.Observed) else "its child job"
                value: Any = event.value if isinstance(event, events.Observed) else event.answer
                failed = event.failure is not None
                words = clipped(event.failure.message if event.failure else repr(value), MESSAGE_CHARACTERS)
                kind = f"failed: {event.failure.kind}" if event.failure is not None else "ended"
                story = facts.setdefault((job, event.goal), GoalDetails())
                story.add(each.turn.at_s, "failed" if failed else "other", f"{what} {kind}", words if text else "")


def clip(text: str, length: int) -> str:
    """Return the beginning of a text, with its line breaks."""
    return text if len(text) <= length else text[:length].rstrip() + f"… ({len(text):,} characters)"
