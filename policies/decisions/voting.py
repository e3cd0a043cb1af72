"""How many votes does one step need, who has won, and what does a long chain of such steps cost?

First-to-ahead-by-k: votes on the same question are counted until one candidate has k more than every other. Between a
right and a wrong candidate that is the gambler's ruin: a walk that goes up with probability p and down with 1 - p,
begun at 0 and ended at +k or -k (Feller, An Introduction to Probability Theory and Its Applications, volume 1, chapter
XIV, sections 2 and 3). Planned for s steps it is the rule of Meyerson et al., Solving a Million-Step LLM Task with Zero
Errors, 2025 (arXiv 2511.09030), whose formulas these are. With r = (1 - p)/p:

    a step is right        p^k / (p^k + (1 - p)^k) = 1 / (1 + r^k)
    s steps are right      (1 + r^k)^-s
    k for that to be t     ceil(ln(t^(-1/s) - 1) / ln r)
    votes a step           k / (2p - 1) * (1 - r^k) / (1 + r^k)

Two candidates are the worst case: wrong votes that disagree among themselves lose sooner. The p meant is that of votes
that are counted. A reply with a red flag (over-long, or of the wrong form) is discarded, never repaired, and another is
asked for: with a share f of such replies, a step asks for votes / (1 - f) samples.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

K_MAX: Final = 200
"""A plan that needs more votes ahead than this is no plan: the step's success rate is next to a coin's."""
Z_95: Final = 1.6449
"""One-sided 95 % quantile of the normal distribution."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a chain of steps needs under first-to-ahead-by-k, and what comes of it."""

    k: int
    """Votes that a candidate must be ahead of every other."""
    steps: int
    p: float
    """Share of counted votes that are right, as planned with."""
    target: float
    success: float
    """Probability that every step is right, with this k."""
    votes_per_step: float
    samples_per_step: float
    """Votes, and the replies discarded on the way to them."""
    rounds_per_step: float
    """Rounds in which these are asked for: a step takes so many times the latency of a call."""
    samples: float
    """In all."""


# -- one step -------------------------------------------------------------------------------------------------------


def votes_needed(counts: Collection[int], k: int) -> int:
    """The least number of further votes after which somebody could be ahead by k; 0 where somebody is.

    ``counts`` are the votes so far, one number a candidate. A round asks for exactly this many, so no vote is bought
    that could not have mattered, and a round can be decided by its last vote only: their order within it is nothing.
    """
    if k < 1:
        raise ValueError(f"somebody must be ahead by 1 vote or more, not {k}")
    first = second = 0
    for count in counts:
        if count > first:
            first, second = count, first
        elif count > second:
            second = count
    return max(0, k - first + second)


def leader(counts: Sequence[int]) -> int:
    """Place of the candidate with the most votes, the first of equals. Raises ``ValueError`` where there is none."""
    if not counts:
        raise ValueError("nobody has voted")
    return max(range(len(counts)), key=lambda place: (counts[place], -place))


# -- what to expect -------------------------------------------------------------------------------------------------


def step_success(p: float, k: int) -> float:
    """Probability that first-to-ahead-by-k takes the right one of two candidates; p: a vote is right."""
    _check(p, k)
    if p in (0.0, 1.0):
        return p
    log_odds = k * (math.log1p(-p) - math.log(p))
    return 1.0 / (1.0 + math.exp(log_odds)) if log_odds < 700 else 0.0


def chain_success(p: float, k: int, steps: int) -> float:
    """Probability that this many steps in a row are right."""
    _check(p, k)
    if p in (0.0, 1.0):
        return p
    log_odds = k * (math.log1p(-p) - math.log(p))
    return math.exp(-steps * math.log1p(math.exp(log_odds))) if log_odds < 700 else 0.0


def votes_expected(p: float, k: int) -> float:
    """Mean number of counted votes until one of two candidates is ahead by k."""
    _check(p, k)
    if abs(2 * p - 1) < 1e-9:
        return float(k * k)
    return k * (2 * step_success(p, k) - 1) / (2 * p - 1)


def rounds_expected(p: float, k: int) -> float:
    """Mean number of rounds, where each asks for exactly the votes still needed.

    With the lead at d, a round asks for k - |d| votes. Worked out exactly from the chain of leads.
    """
    _check(p, k)
    leads = range(-k + 1, k)
    after = {lead: _leads_after(lead, k, p) for lead in leads}
    rounds = dict.fromkeys(leads, 1.0)
    while True:
        moved = 0.0
        for lead in leads:
            new = 1.0 + sum(chance * rounds.get(then, 0.0) for then, chance in after[lead])
            moved = max(moved, abs(new - rounds[lead]))
            rounds[lead] = new
        if moved < 1e-12 * k:
            return rounds[0]


def _leads_after(lead: int, k: int, p: float) -> list[tuple[int, float]]:
    """Where one round leads, with what probability."""
    asked = k - abs(lead)
    return [
        (lead + 2 * right - asked, math.comb(asked, right) * p**right * (1 - p) ** (asked - right))
        for right in range(asked + 1)
    ]


# -- planning -------------------------------------------------------------------------------------------------------


def k_min(p: float, target: float, steps: int) -> int:
    """The least k with which all steps are right with probability ``target``. Raises ``ValueError`` where none is.

    For p of a half or less no number of votes helps: the wrong candidate is as likely to get ahead.
    """
    _check(p, 1)
    if not 0 < target < 1:
        raise ValueError(f"a target is a probability between 0 and 1, not {target}")
    if steps < 1:
        raise ValueError(f"a chain has 1 step or more, not {steps}")
    if p <= 0.5:
        raise ValueError(f"voting cannot help where a vote is right with probability {p:g}: it must be above 0.5")
    if p == 1.0:
        return 1
    odds = math.expm1(-math.log(target) / steps)  # t^(-1/s) - 1, exact for many steps
    k = max(1, math.ceil(math.log(odds) / (math.log1p(-p) - math.log(p)) - 1e-12))
    if k > K_MAX:
        raise ValueError(f"k would be {k}, more than {K_MAX}: a vote is right with probability {p:g}, too near a half")
    return k


def plan(p: float, target: float, steps: int, flagged: float = 0.0) -> Plan:
    """The least k for a target, and what it costs. ``flagged``: share of replies that are discarded.

    Raises ``ValueError`` where there is none, or for a share that is no share.
    """
    if not 0 <= flagged < 1:
        raise ValueError(f"a share of discarded replies is from 0 to below 1, not {flagged}")
    k = k_min(p, target, steps)
    votes = votes_expected(p, k)
    samples = votes / (1 - flagged)
    return Plan(
        k=k, steps=steps, p=p, target=target, success=chain_success(p, k, steps), votes_per_step=votes,
        samples_per_step=samples, rounds_per_step=rounds_expected(p, k), samples=samples * steps,
    )  # fmt: skip


def at_least(right: int, of: int, z: float = Z_95) -> float:
    """A success rate to plan with, from a measurement: below the true one with 95 % confidence.

    The lower end of the score interval (Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
    1927). Raises ``ValueError`` for counts that contradict each other.
    """
    if of < 1 or not 0 <= right <= of:
        raise ValueError(f"{right} right of {of} is no measurement")
    share, square = right / of, z * z
    centre = share + square / (2 * of)
    spread = z * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, (centre - spread) / (1 + square / of))


def _check(p: float, k: int) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"a success rate is from 0 to 1, not {p}")
    if k < 1:
        raise ValueError(f"somebody must be ahead by 1 vote or more, not {k}")
