"""Retries: whether a failed call is tried again, and after how long.

This is the only place where retries are decided: the client that sends makes exactly one attempt. Only attempts of the
same call are meant. A new sample for a malformed reply and a smaller prompt for one that was too large are new calls.
"""

from typing import Final

import msgspec

from policies.failures.failure import RULES, Failure, FailureKind

PAID_ATTEMPTS_MAX: Final = 2
"""Attempts at one call that may be paid, if the last one brought an answer that cannot be used: a server that answers
so once usually does so again."""

_DOUBLINGS_MAX: Final = 64  # beyond it any base exceeds any cap; keeps the power small


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of retries. Raises ValueError, in one line, for a value that makes no sense."""

    attempts_max: int = 8
    """Attempts at one call, the first included; throttled attempts are counted separately."""
    timed_out_attempts_max: int = 5
    """Attempts at one call if the last one timed out, at its own deadline or at a gateway's: each of these may be
    billed."""
    throttled_attempts_max: int = 60
    """Throttled attempts at one call. Many, because the rate limit is not the call's fault; bounded, because a prompt
    that alone exceeds the limit of a minute would be throttled forever."""
    base_s: float = 0.5
    """Upper bound of the first wait, in seconds."""
    throttled_base_s: float = 2.0
    """Upper bound of the first wait in seconds if the provider throttles and names no time: its buckets refill by the
    minute."""
    cap_s: float = 60.0
    """Upper bound of a wait in seconds, unless the provider asks for more: a Retry-After is waited in full."""
    patience_s: float = 900.0
    """Longest Retry-After, in seconds, that is waited for; for a longer one the job pauses."""
    budget_share: float = 0.2
    """Retries that each success pays for."""
    budget_floor: int = 20
    """Retries that are free, so that a job may fail early on."""
    budget_unspent_max: int = 1_000
    """Unused retries that may accumulate."""

    def __post_init__(self) -> None:
        for name in ("attempts_max", "timed_out_attempts_max", "throttled_attempts_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


_NOT_NEGATIVE: Final = (
    "base_s", "throttled_base_s", "cap_s", "patience_s", "budget_share", "budget_floor", "budget_unspent_max",
)  # fmt: skip


class RetryDecision(msgspec.Struct, frozen=True):
    """Decision about a call whose attempt failed.

    `again`: one more attempt. `deferred`: that attempt is over budget and takes the long wait. `hold`: no attempt now,
    but the goal stays open and the job pauses. None of them: the call has failed for good. `reason` is for people.
    """

    again: bool
    """True for one more attempt."""
    reason: str
    """Reason, for people."""
    deferred: bool = False
    """True if the attempt is over budget and takes the long wait."""
    hold: bool = False
    """True if the job pauses and the goal stays open."""


def may_retry(
    policy: RetryPolicy,
    failure: Failure,
    attempt: int,
    retries_spent: int,
    successes: int,
    throttles: int = 0,
    paid: int = 0,
) -> RetryDecision:
    """Decide whether the call whose attempt number `attempt` (from 1) ended in `failure` is tried again.

    `throttles` counts the throttled attempts among them, `paid` those that may have been paid; this one may count in
    either. `retries_spent` and `successes` are counted over the whole
    job: it may spend `budget_floor` retries plus `budget_share` of the successes, so that an outage does not multiply
    the load (the retry budget of Finagle and tower; instead of a sliding window, unused budget lapses, see `lapsed`). A
    retry over budget is deferred, not refused: refusing would fail rows because of the provider. Lost and throttled
    calls need no budget: neither is a sign of an unhealthy provider, and the rate is limited anyway.
    """
    kind = failure.kind
    rule = RULES[kind].again
    if rule == "hold":
        return RetryDecision(False, f"{kind}: waits until the account or key is repaired", hold=True)
    if failure.answer_came and paid >= PAID_ATTEMPTS_MAX:
        return RetryDecision(False, f"{kind}: {paid} attempts may have been paid, and an answer is not paid again")
    if rule == "after":
        return _throttled(policy, failure, max(throttles, 1) if throttles else attempt)
    if rule not in ("backoff", "policy"):
        return RetryDecision(False, f"{kind} is not tried again")
    tried = attempt - throttles
    waited_for = rule == "policy" or (failure.status >= 400 and failure.may_be_billed)
    tried_max = policy.timed_out_attempts_max if waited_for else policy.attempts_max
    tried_max = min(tried_max, policy.attempts_max)
    if tried >= tried_max:
        return RetryDecision(False, f"{kind} at attempt {tried} of {tried_max}")
    if beyond_patience(policy, failure):
        return RetryDecision(False, f"{kind}: asked to wait {failure.retry_after_s} s, too long", hold=True)
    if kind is not FailureKind.LOST and retries_spent >= (may := budget(policy, successes)):
        return RetryDecision(True, f"{kind}: {retries_spent} retries are over the budget of {may}", deferred=True)
    return RetryDecision(True, f"{kind} at attempt {tried} of {tried_max}")


AWAY_S: Final = 30.0
"""Seconds without an answer after which a server that takes no connection counts as away. The eight attempts of a call
take about a minute; a restart of a server behind a balancer, and a failing host among several, take less."""


def is_away(failure: Failure, silent_s: float) -> bool:
    """Return whether a call that used up its attempts failed for the server's sake alone: the last one reached no
    server, and no call was answered for `silent_s` seconds. The job then pauses, resumable, and no row fails."""
    return failure.kind is FailureKind.TRANSIENT and not failure.sent and silent_s >= AWAY_S


def budget(policy: RetryPolicy, successes: int) -> int:
    """Return the retries that `successes` pay for."""
    return policy.budget_floor + int(policy.budget_share * successes)


def lapsed(policy: RetryPolicy, retries_spent: int, successes: int) -> int:
    """Return the retries that count as spent: unused budget beyond `budget_unspent_max` has lapsed.

    Without the lapse, a job with a million successes could try every call eight times in its first outage.
    """
    return max(retries_spent, budget(policy, successes) - policy.budget_unspent_max)


def beyond_patience(policy: RetryPolicy, failure: Failure) -> bool:
    """Return True if the provider asked for a longer wait than `patience_s`."""
    return failure.retry_after_s is not None and failure.retry_after_s > policy.patience_s


def _throttled(policy: RetryPolicy, failure: Failure, throttles: int) -> RetryDecision:
    kind = failure.kind
    if beyond_patience(policy, failure):
        return RetryDecision(False, f"{kind}: asked to wait {failure.retry_after_s} s, too long", hold=True)
    if throttles >= policy.throttled_attempts_max:
        return RetryDecision(False, f"{kind} {throttles} times")
    return RetryDecision(True, f"{kind} {throttles} times of {policy.throttled_attempts_max}")


def backoff_s(
    policy: RetryPolicy,
    attempt: int,
    kind: FailureKind,
    retry_after_s: float | None,
    draw: float,
    deferred: bool = False,
) -> float:
    """Return the seconds to wait after attempt number `attempt` (from 1) failed.

    Full jitter: uniform between 0 and a ceiling that doubles with each attempt up to `cap_s` (Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Retry-After is a lower bound, never shortened, and
    the jitter is added to it, so that clients with the same Retry-After do not return together. A deferred retry waits
    `cap_s` and jitter. `draw`, in [0, 1), is the random number. Raises ValueError for another value.
    """
    if not 0 <= draw < 1:
        raise ValueError(f"draw must be in [0, 1), not {draw}")
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    throttled = kind is FailureKind.THROTTLED and retry_after_s is None
    base_s = policy.throttled_base_s if throttled else policy.base_s
    ceiling_s = min(policy.cap_s, base_s * (1 << min(attempt - 1, _DOUBLINGS_MAX)))
    floor_s = policy.cap_s if deferred else 0.0
    if retry_after_s is not None and retry_after_s > floor_s:
        floor_s = retry_after_s
    return floor_s + draw * ceiling_s
