"""Voting, first to ahead by k: votes needed, the winner, and the cost of a long chain of voted steps.

Votes on the same question are counted until one candidate has k more than every other. Between a right and a wrong
candidate this is the gambler's ruin: a walk that goes up with probability p and down with 1 - p, from 0 to +k or -k
(Feller, An Introduction to Probability Theory and Its Applications, volume 1, chapter XIV, sections 2 and 3). Planned
for s steps it is the rule of Meyerson et al., Solving a Million-Step LLM Task with Zero Errors, 2025 (arXiv
2511.09030), the source of these formulas. With r = (1 - p)/p:

    a step is right        p^k / (p^k + (1 - p)^k) = 1 / (1 + r^k)
    s steps are right      (1 + r^k)^-s
    k for that to be t     ceil(ln(t^(-1/s) - 1) / ln r)
    votes a step           k / (2p - 1) * (1 - r^k) / (1 + r^k)

Two candidates are the worst case: wrong votes that disagree among themselves lose sooner. p is the success rate of
counted votes. A reply with a red flag (too long, or of the wrong form) is discarded, never repaired, and another sample
is requested: with a share f of such replies, a step takes votes / (1 - f) samples.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

K_MAX: Final = 200
"""Largest k of a plan: a step that needs more is right about as often as a coin."""
Z_95: Final = 1.6449
"""One-sided 95 % quantile of the normal distribution."""


class VotingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Plan of a chain of steps under first-to-ahead-by-k, with the expected result and cost."""

    k: int
    """Votes by which a candidate must be ahead of every other."""
    steps: int
    """Number of steps of the chain."""
    p: float
    """Share of counted votes that are right, as assumed."""
    target: float
    """Required probability that every step is right."""
    success: float
    """Probability that every step is right, with this k."""
    votes_per_step: float
    """Mean number of counted votes per step."""
    samples_per_step: float
    """Mean number of samples per step: counted votes and discarded replies."""
    rounds_per_step: float
    """Mean number of rounds of samples per step: a step takes this many latencies of a call."""
    samples: float
    """Mean number of samples of the whole chain."""


# -- one step -------------------------------------------------------------------------------------------------------


def votes_needed(counts: Collection[int], k: int) -> int:
    """Return the least number of further votes after which a candidate could be ahead by k; 0 if one is ahead already.

    ``counts`` are the votes so far, one number per candidate. A round requests exactly this many votes, so no vote is
    paid for that could not matter. Only the last vote of a round can decide, so the order of votes within a round has
    no effect.
    """
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    first = second = 0
    for count in counts:
        if count > first:
            first, second = count, first
        elif count > second:
            second = count
    return max(0, k - first + second)


def leader(counts: Sequence[int]) -> int:
    """Return the index of the candidate with the most votes, the first of equals. Raises ``ValueError`` for no
    candidate.
    """
    if not counts:
        raise ValueError("no candidate has a vote")
    return max(range(len(counts)), key=lambda place: (counts[place], -place))


# -- what to expect -------------------------------------------------------------------------------------------------


def step_success(p: float, k: int) -> float:
    """Return the probability that first-to-ahead-by-k takes the right one of two candidates; p: a vote is right."""
    _check(p, k)
    if p in (0.0, 1.0):
        return p
    log_odds = k * (math.log1p(-p) - math.log(p))
    return 1.0 / (1.0 + math.exp(log_odds)) if log_odds < 700 else 0.0


def chain_success(p: float, k: int, steps: int) -> float:
    """Return the probability that ``steps`` consecutive steps are right."""
    _check(p, k)
    if p in (0.0, 1.0):
        return p
    log_odds = k * (math.log1p(-p) - math.log(p))
    return math.exp(-steps * math.log1p(math.exp(log_odds))) if log_odds < 700 else 0.0


def votes_expected(p: float, k: int) -> float:
    """Return the mean number of counted votes until one of two candidates is ahead by k."""
    _check(p, k)
    if abs(2 * p - 1) < 1e-9:
        return float(k * k)
    return k * (2 * step_success(p, k) - 1) / (2 * p - 1)


def rounds_expected(p: float, k: int) -> float:
    """Return the mean number of rounds, each of which requests exactly the votes still needed.

    With the lead at d, a round requests k - |d| votes. Computed by iteration over the Markov chain of leads.
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
    """The leads after one round, with their probabilities."""
    asked = k - abs(lead)
    return [
        (lead + 2 * right - asked, math.comb(asked, right) * p**right * (1 - p) ** (asked - right))
        for right in range(asked + 1)
    ]


# -- planning -------------------------------------------------------------------------------------------------------


def k_min(p: float, target: float, steps: int) -> int:
    """Return the least k with which all steps are right with probability ``target``.

    Raises ``ValueError`` if there is none. With p at one half or less voting does not help: the wrong candidate is at
    least as likely to win.
    """
    _check(p, 1)
    if not 0 < target < 1:
        raise ValueError(f"a target is a probability between 0 and 1, not {target}")
    if steps < 1:
        raise ValueError(f"a chain has 1 step or more, not {steps}")
    if p <= 0.5:
        raise ValueError(f"voting cannot help if a vote is right with probability {p:g}: it must be above 0.5")
    if p == 1.0:
        return 1
    odds = math.expm1(-math.log(target) / steps)  # t^(-1/s) - 1, exact for many steps
    k = max(1, math.ceil(math.log(odds) / (math.log1p(-p) - math.log(p)) - 1e-12))
    if k > K_MAX:
        raise ValueError(f"k would be {k}, more than {K_MAX}: a vote is right with probability {p:g}, too near a half")
    return k


def plan(p: float, target: float, steps: int, flagged: float = 0.0) -> VotingPlan:
    """Return the plan with the least k for ``target``. ``flagged``: share of replies that are discarded.

    Raises ``ValueError`` if there is no such plan, or if ``flagged`` is not in [0, 1).
    """
    if not 0 <= flagged < 1:
        raise ValueError(f"a share of discarded replies is from 0 to below 1, not {flagged}")
    k = k_min(p, target, steps)
    votes = votes_expected(p, k)
    samples = votes / (1 - flagged)
    return VotingPlan(
        k=k, steps=steps, p=p, target=target, success=chain_success(p, k, steps), votes_per_step=votes,
        samples_per_step=samples, rounds_per_step=rounds_expected(p, k), samples=samples * steps,
    )  # fmt: skip


def at_least(right: int, of: int, z: float = Z_95) -> float:
    """Return a success rate to plan with: the lower 95 % confidence bound of ``right`` of ``of`` measured.

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
        raise ValueError(f"k must be 1 or more, not {k}")
