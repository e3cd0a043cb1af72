"""Votes of a flow: samples of one question, of which the answer that wins is the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cortex.flows.answer_types import AnswerType
from cortex.flows.awaitables import AwaitGroup, CallRequest
from policies.decisions.pooled_votes import FieldVote, winner


class VoteGroup(AwaitGroup):
    """Group of votes. ``by``: how they decide (``policies.decisions.pooled_votes.VOTES_BY``); ``returns``: type of the
    answer."""

    __slots__ = ("by", "returns")

    def __init__(
        self, make: Callable[[int], CallRequest], count: int, *, on_failure: str, by: str, returns: AnswerType
    ) -> None:  # fmt: skip
        super().__init__(make, count, on_failure=on_failure, at_once=count)
        self.by, self.returns = by, returns

    def result(self, partial: bool) -> Any:
        """Return the answer that wins; None where no vote has one."""
        cast = [self.values[place] for place in range(self.count) if place in self.values]
        others: list[Any] = []
        votes = []
        for answer, place, chances in cast:
            if place < 0:  # a type that lists no choices: equal answers are one
                if answer not in others:
                    others.append(answer)
                place = others.index(answer)
            votes.append([FieldVote(place, tuple(chances))])
        won = winner(votes, self.by)
        return None if won is None else self.returns.value(cast[won][0])


__all__ = ["VoteGroup"]
