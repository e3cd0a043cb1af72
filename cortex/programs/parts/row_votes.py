"""Votes of a table's rows: the answers to a row that is asked several times, and the one that wins.

A row is asked again once its answer is in, until the votes that are left cannot change the winner
(``policies.decisions.pooled_votes``): rows wait for their own votes, not for those of others. Samples of one row are
different questions, so a vote that was paid is remembered as every other answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from cortex.programs.parts.choice_columns import choices_of, rounded
from cortex.programs.parts.token_logprobs import field_distributions
from cortex.values.json_schema.checks import identity_of
from cortex.values.reply import Reply
from cortex.values.schema import json_text
from policies.decisions.pooled_votes import COUNT, PROBABILITY, VOTES_BY, FieldVote, mean_chances, winner

VOTES_MAX = 100
"""Votes of a row at most: its state holds an answer for each."""


class CastVote(msgspec.Struct, array_like=True, gc=False):
    """Answer of one vote."""

    text: str
    stop_reason: str
    model: str
    fields: list[FieldVote]
    """Its value of each field that is a choice, in the order of the schema."""


class RowVotes(msgspec.Struct, array_like=True):
    """Votes of one row so far."""

    asked: int = 0
    """Votes that have ended, those without an answer too."""
    misfits: int = 0
    """Answers of these that did not fit the schema."""
    cast: list[CastVote] = msgspec.field(default_factory=list)

    def plain(self) -> list[Any]:
        """Return the votes as plain data, for ``Checkpoint``."""
        found: list[Any] = msgspec.to_builtins(self)
        return found

    def after(self, misfits: int, vote: CastVote | None) -> RowVotes:
        """Return the votes with one more; None: it has no answer."""
        return RowVotes(self.asked + 1, misfits, [*self.cast, *([] if vote is None else [vote])])

    def won(self, by: str, votes: int) -> CastVote | None:
        """Return the vote whose answer wins of so many votes; None while it is open, or without an answer."""
        place = winner([each.fields for each in self.cast], by, max(votes - self.asked, 0))
        return None if place is None else self.cast[place]

    def chances(self, answer: CastVote) -> list[float | None]:
        """Return the mean probability of each value of an answer; None where no vote tells it."""
        return [*map(rounded, mean_chances([each.fields for each in self.cast], answer.fields))]


def votes_in(kept: Sequence[Any] | None, place: int) -> RowVotes:
    """Return the votes in what a row keeps, at this place; none where it keeps none."""
    return msgspec.convert(kept[place], RowVotes) if kept and len(kept) > place else RowVotes()


def cast_vote(schema: str, reply: Reply, text: str, in_words: bool) -> CastVote:
    """Return the vote of a reply whose text is an answer to a schema. ``in_words``: it was asked for in words."""
    choices = choices_of(schema)
    values = msgspec.json.decode(json_text(text, in_words=in_words))
    told = field_distributions(reply.body, text, choices, in_words=in_words)
    fields = []
    for name, allowed in choices.items():
        number = {identity_of(each): at for at, each in enumerate(allowed)}
        own = number.get(identity_of(values[name]), -1) if name in values else -1
        fields.append(FieldVote(own, tuple(told[name]) if own >= 0 else ()))
    return CastVote(text, reply.stop_reason, reply.model, fields)


def votes_of(votes: int | None, by: str, schema: str, logprobs: bool) -> tuple[Any, Any]:
    """Return ``Table.votes`` and ``Table.votes_by`` for options of the user; unset: a row is asked once. Raises
    ``ValueError`` for options that cannot decide: one line that begins with the option."""
    if votes is None:
        if by:
            raise ValueError("--votes-by says how --votes decides: give --votes too")
        return msgspec.UNSET, msgspec.UNSET
    if not 2 <= votes <= VOTES_MAX:
        raise ValueError(f"--votes {votes}: give 2 to {VOTES_MAX}, or leave it out to ask each row once")
    if by and by not in VOTES_BY:
        raise ValueError(f"--votes-by {by!r}: give {' or '.join(VOTES_BY)}")
    if not schema or not choices_of(schema):
        raise ValueError("--votes: only choices of listed values are voted on (enum, Literal, boolean): give --schema")
    if by == PROBABILITY and not logprobs:
        raise ValueError("--votes-by probability needs the probabilities of --logprobs: give --logprobs too")
    return votes, by or COUNT
