"""Elections: K's record of the votes on one goal's question."""

from __future__ import annotations

import msgspec

from cortex.values.reply import Reply

VOTE = "cortex.vote"
"""Kind of a vote's own goal. It stands below the goal that is voted on, but is not counted among its children."""


class Ballot(msgspec.Struct, array_like=True):
    """Vote of the current round that is not tallied yet."""

    sample: int
    answer: bytes
    """Value voted for, as deterministic MessagePack: equal bytes agree."""
    reply: Reply


class Candidate(msgspec.Struct, array_like=True):
    """Answer with at least one vote."""

    answer: bytes
    votes: int
    reply: Reply
    """First reply with this answer."""


class Election(msgspec.Struct, array_like=True):
    """Votes on one goal, from its first round until a candidate is ahead."""

    k: int
    """Votes by which the winner must be ahead of every other."""
    body: bytes
    """Request, identical for each vote."""
    text_bytes: int
    tokens_bound: int
    """The most tokens that the request can be."""
    output_tokens_max: int
    """``max_tokens``: a reply that stops there is too long."""
    next_sample: int
    samples_end: int
    """Sample number before which a candidate must be ahead."""
    votes: list[int] = msgspec.field(default_factory=list)
    """Goals of this round's votes that are not in yet."""
    ballots: list[Ballot] = msgspec.field(default_factory=list)
    """Votes of this round that are in."""
    candidates: list[Candidate] = msgspec.field(default_factory=list)
    """Answers voted for in earlier rounds."""
    role: str = ""


def next_sample(election: Election) -> int:
    """Take the next sample number of the question; -1 if there have been too many."""
    sample = election.next_sample
    if sample >= election.samples_end:
        return -1
    election.next_sample = sample + 1
    return sample
