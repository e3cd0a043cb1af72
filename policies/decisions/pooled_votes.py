"""Votes on typed answers: which of several answers to one question wins, counted or by their probabilities.

A question is asked several times. Each answer is a vote, and has a value for each field that is a choice of listed
values. By count, a vote gives 1 to its own values: the answer with most votes wins, the plain vote of self-consistency
(Wang et al., Self-Consistency Improves Chain of Thought Reasoning in Language Models, 2023, arXiv 2203.11171).

By probability, a vote gives to every answer the probability that it has where this vote was cast
(``policies.decisions.choice_probability``): the product over its fields, which are taken to be independent there. An
answer's score is the mean over the votes, a linear opinion pool (Stone, The Opinion Pool, 1961). Both scores estimate
the same number, how likely a model gives this answer, over whatever it writes before: the count by what was drawn, the
mean by its expectation given what was written before, so that its variance is never larger (the Rao-Blackwell theorem;
Casella and Robert, Rao-Blackwellisation of Sampling Schemes, Biometrika 83, 1996). Where nothing is written before, one
vote tells the whole distribution. The sum of log probabilities, the other usual pool, is not used: it asks for what
every vote finds likely, and one vote that finds an answer impossible rules it out, whatever all others say.

An answer that no vote gave never wins. Of equals the first one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

COUNT, PROBABILITY = VOTES_BY = ("count", "probability")
"""Ways of deciding."""
_CLOSE: Final = 1e-9
"""Difference of scores below which they are equal: that of sums of floats in another order."""


class FieldVote(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Value of one field in one vote."""

    value: int
    """Number of the value among those that the field may have; -1: another one, as a type's own code may make it."""
    chances: tuple[float, ...] = ()
    """Probability of each of these values; empty: not told, so that the vote gives all to its own."""


Vote = Sequence[FieldVote]


def scores(votes: Sequence[Vote], by: str = COUNT) -> list[float]:
    """Return the score of each vote's answer, as a sum over the votes: equal answers have equal ones."""
    return [sum(_given(vote, answer, by) for vote in votes) for answer in votes]


def winner(votes: Sequence[Vote], by: str = COUNT, remaining: int = 0) -> int | None:
    """Return the place of the first vote for the answer that wins; None while ``remaining`` further votes may change
    it, or without votes.

    Each further vote gives an answer 1 at most. It may give it to one that no vote has given yet, and that has by now
    what the votes gave to none of theirs.
    """
    if not votes:
        return None
    found = scores(votes, by)
    best = max(range(len(votes)), key=lambda place: (found[place] > max(found) - _CLOSE, -place))
    answers = {tuple(each.value for each in vote): score for vote, score in zip(votes, found, strict=True)}
    own = answers.pop(tuple(each.value for each in votes[best]))
    unseen = max(len(votes) - own - sum(answers.values()), 0.0)
    ahead = own - max([unseen, *answers.values()])
    return None if remaining and ahead <= remaining + _CLOSE else best


def mean_chances(votes: Sequence[Vote], answer: Vote) -> list[float | None]:
    """Return the mean probability of each of an answer's values over the votes that tell it; None if none does."""
    found: list[float | None] = []
    for at, field in enumerate(answer):
        told = [vote[at].chances[field.value] for vote in votes if vote[at].chances and field.value >= 0]
        found.append(sum(told) / len(told) if told else None)
    return found


def _given(vote: Vote, answer: Vote, by: str) -> float:
    whole = 1.0
    for own, its in zip(vote, answer, strict=True):
        if by == PROBABILITY and own.chances and its.value >= 0:
            whole *= own.chances[its.value]
        elif own.value != its.value:
            return 0.0
    return whole
