"""A call that its first attempt answered, as one record: nearly all calls are that, and a record costs less than the
four spans that it stands for. Whoever wants those takes them out with ``spread``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from cortex.reply import Usage
from cortex.spans import Span, What, span_key


class Call(msgspec.Struct, array_like=True, gc=False):
    """A logical call, from its first attempt on."""

    trace: int
    key: int
    above: int
    open_s: float
    """From when on its goal could be chosen."""
    asked_s: float
    sample: str
    question: bytes
    route: int
    """Of its latest attempt."""
    constructor: str
    model: str
    endpoint: str
    output_tokens_max: int
    attempts: int = 1
    failed: str = ""
    """How its last attempt failed."""
    body: bytes = b""
    """What was asked, where prompts may be told."""
    first_route: int = 0

    def select(self) -> Span:
        """The span of the choice that led to it."""
        goal, number = self.key >> 24, self.key >> 4
        return Span(
            What.SELECT, self.trace, span_key(What.SELECT, goal, number), self.above, self.constructor, self.open_s,
            self.asked_s, "", {"route": self.first_route},
        )  # fmt: skip

    def ended(self, end_s: float, failed: str, facts: dict[str, Any]) -> Span:
        """Its own span, once it is over. ``facts``: what came of it."""
        facts |= {
            "goal": self.key >> 24, "sample": self.sample, "attempts": self.attempts,
            "max_tokens": self.output_tokens_max, "endpoint": self.endpoint, "asked_model": self.model,
        }  # fmt: skip
        if self.body:
            facts["prompt"] = self.body
        return Span(What.CALL, self.trace, self.key, self.above, self.model, self.asked_s, end_s, failed, facts)


class Exchange(msgspec.Struct, array_like=True, gc=False, tag=1):
    """A call, the one attempt at it, which was answered, and what became of the reply."""

    call: Call
    attempt: int
    kind: str
    """Of its goal."""
    begin_s: float
    """The attempt was sent."""
    end_s: float
    """The reply had come."""
    absorbed_s: float
    by: str
    """The branch."""
    waited_s: float
    stop: str
    model: str
    """As the reply names it."""
    usage: Usage
    probe: bool = False
    failed: str = ""
    """How absorbing it did."""
    goals: int = 0
    """That the reply made, where it was a plan."""
    reply: bytes = b""
    """What was answered, where replies may be told."""


Record = Span | Exchange
"""What the fold lets out."""


def answered(stop: str, model: str, usage: Usage, reply: bytes) -> dict[str, Any]:
    """What a reply says of the call that it ends."""
    facts: dict[str, Any] = {
        "stop": stop, "model": model, "input": usage.input_tokens_billed, "output": usage.output_tokens,
        "cache_read": usage.cache_read_tokens, "cache_creation": usage.cache_creation_tokens,
    }  # fmt: skip
    if reply:
        facts["reply"] = reply
    return facts


def spread(records: Iterable[Record]) -> Iterator[Span]:
    """Spans, each by itself."""
    for each in records:
        if type(each) is Span:
            yield each
        else:
            yield from _four(each)  # type: ignore[arg-type]


def count(records: Iterable[Record]) -> int:
    """How many spans they are."""
    return sum([1 if type(each) is Span else 4 for each in records])


def _four(told: Exchange) -> Iterator[Span]:
    """Select, absorb, the attempt, and the call."""
    call, attempt = told.call, told.attempt
    goal = call.key >> 24
    yield call.select()
    facts: dict[str, Any] = {"goals": told.goals} if told.goals else {}
    key = span_key(What.ABSORB, goal, attempt)
    yield Span(What.ABSORB, call.trace, key, call.above, told.kind, told.end_s, told.absorbed_s, told.failed, facts)
    facts = {"by": told.by, "waited_s": told.waited_s, "attempt": attempt, "route": call.route}
    if told.probe:
        facts["probe"] = True
    key = span_key(What.ATTEMPT, goal, attempt)
    yield Span(What.ATTEMPT, call.trace, key, call.key, "", told.begin_s, told.end_s, "", facts)
    yield call.ended(told.end_s, "", answered(told.stop, told.model, told.usage, told.reply))
