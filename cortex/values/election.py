"""An election: what K keeps of the votes on one goal's question."""

from __future__ import annotations

import msgspec

from cortex.values.reply import Reply

VOTE = "cortex.vote"
"""The kind of a vote's own goal. It stands below the goal that is voted on and is none of its children."""


class Ballot(msgspec.Struct, array_like=True):
    """One vote of a round that is not tallied yet."""

    sample: int
    said: bytes
    """What it is for, as deterministic MessagePack: equal bytes agree."""
    reply: Reply


class Candidate(msgspec.Struct, array_like=True):
    """An answer that somebody voted for."""

    said: bytes
    votes: int
    reply: Reply
    """The first that said so."""


class Election(msgspec.Struct, array_like=True):
    """The votes on one goal, from its first round until somebody is ahead."""

    k: int
    """By so many votes of every other."""
    body: bytes
    """The request, the same for each vote."""
    text_bytes: int
    tokens_bound: int
    """The most tokens that the request can be."""
    output_tokens_max: int
    """A reply that stops there is over-long."""
    next_sample: int
    samples_end: int
    """Before this one somebody must be ahead."""
    votes: list[int] = msgspec.field(default_factory=list)
    """Goals of this round's votes that are not in yet."""
    came: list[Ballot] = msgspec.field(default_factory=list)
    """Votes of this round that are."""
    candidates: list[Candidate] = msgspec.field(default_factory=list)
    """What earlier rounds were for."""
    role: str = ""


def next_sample(election: Election) -> int:
    """Take the next number of the question; below zero where there have been too many."""
    sample = election.next_sample
    if sample >= election.samples_end:
        return -1
    election.next_sample = sample + 1
    return sample
