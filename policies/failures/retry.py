"""May a failed call be tried again, and after how long?

Decided here alone: the client that sends makes one attempt and no more. Only attempts of the same call are
meant. A new sample for a malformed reply and a smaller prompt for one that was too large are new calls,
and not asked here.
"""

from typing import Final

import msgspec

from policies.failures.failure import RULES, Failure, FailureKind

_DOUBLINGS_MAX: Final = 64  # beyond it any base is over any cap; keeps the power small


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Raises ValueError, one line, for a bound that makes no sense."""

    attempts_max: int = 8
    """Attempts at one call, the first included; the throttled ones are counted apart."""
    timed_out_attempts_max: int = 5
    """The same, when the last one ran into its deadline, or into that of somebody on the way: each of those may have
    been paid for."""
    throttled_attempts_max: int = 60
    """Throttled attempts at one call. Many, for the rate limit is not the call's fault; but a prompt that
    alone is over the limit of a minute would be throttled for ever."""
    base_s: float = 0.5
    throttled_base_s: float = 2.0
    """The first wait where the provider throttles and names no time: its buckets refill by the minute."""
    cap_s: float = 60.0
    """The longest wait of our own choosing. What the provider asks for is waited in full."""
    patience_s: float = 900.0
    """The longest Retry-After that is sat out; beyond it the job pauses."""
    budget_share: float = 0.2
    """Retries that each success pays for."""
    budget_floor: int = 20
    """Retries that are free, so that a job may fail early on."""
    budget_unspent_max: int = 1_000
    """Retries that good hours may save up for a bad one, at most."""

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


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a call whose attempt failed.

    `again`: one more attempt. `deferred`: that attempt has no budget and takes the long wait. `hold`: no
    attempt now, but the goal stays open and the job pauses. None of them: the call has failed for good.
    """

    again: bool
    reason: str
    deferred: bool = False
    hold: bool = False


def may_retry(
    policy: RetryPolicy,
    failure: Failure,
    attempt: int,
    retries_spent: int,
    successes: int,
    throttles: int = 0,
) -> Decision:
    """Whether the call whose attempt number `attempt` (from 1) ended in `failure` is tried again.

    `throttles` is how many of those attempts were throttled. `retries_spent` and `successes` are counted
    over the whole job: retries may be `budget_floor` plus `budget_share` of the successes, so that a bad
    hour does not multiply the load (the retry budget of Finagle and tower; instead of a sliding window, what
    is saved up lapses, see `lapsed`). A retry over budget is not refused, for that would fail rows for the
    provider's sake; it is deferred. Calls lost with their actor and throttled ones need no budget: neither is
    the provider's ill health, and the rate is held anyway.
    """
    kind = failure.kind
    rule = RULES[kind].again
    if rule == "hold":
        return Decision(False, f"{kind}: waits until the account or key is put right", hold=True)
    if rule == "after":
        return _throttled(policy, failure, max(throttles, 1) if throttles else attempt)
    if rule not in ("backoff", "policy"):
        return Decision(False, f"{kind} is not tried again")
    tried = attempt - throttles
    waited_for = rule == "policy" or (failure.status >= 400 and failure.may_be_billed)
    tried_max = policy.timed_out_attempts_max if waited_for else policy.attempts_max
    tried_max = min(tried_max, policy.attempts_max)
    if tried >= tried_max:
        return Decision(False, f"{kind} at attempt {tried} of {tried_max}")
    if beyond_patience(policy, failure):
        return Decision(False, f"{kind}: asked to wait {failure.retry_after_s} s, too long", hold=True)
    if kind is not FailureKind.LOST and retries_spent >= (may := budget(policy, successes)):
        return Decision(True, f"{kind}: {retries_spent} retries are over the budget of {may}", deferred=True)
    return Decision(True, f"{kind} at attempt {tried} of {tried_max}")


def budget(policy: RetryPolicy, successes: int) -> int:
    """Retries that so many successes pay for."""
    return policy.budget_floor + int(policy.budget_share * successes)


def lapsed(policy: RetryPolicy, retries_spent: int, successes: int) -> int:
    """The retries that count as spent: what was saved up beyond `budget_unspent_max` has lapsed.

    Else a million good calls would let the first bad hour after them try each call eight times over.
    """
    return max(retries_spent, budget(policy, successes) - policy.budget_unspent_max)


def beyond_patience(policy: RetryPolicy, failure: Failure) -> bool:
    """Did the provider ask for a longer wait than a job sits out?"""
    return failure.retry_after_s is not None and failure.retry_after_s > policy.patience_s


def _throttled(policy: RetryPolicy, failure: Failure, throttles: int) -> Decision:
    kind = failure.kind
    if beyond_patience(policy, failure):
        return Decision(False, f"{kind}: asked to wait {failure.retry_after_s} s, too long", hold=True)
    if throttles >= policy.throttled_attempts_max:
        return Decision(False, f"{kind} {throttles} times")
    return Decision(True, f"{kind} {throttles} times of {policy.throttled_attempts_max}")


def backoff_s(
    policy: RetryPolicy,
    attempt: int,
    kind: FailureKind,
    retry_after_s: float | None,
    draw: float,
    deferred: bool = False,
) -> float:
    """Seconds to wait after attempt number `attempt` (from 1) failed.

    Full jitter: anywhere from nothing to a ceiling that doubles with each attempt up to `cap_s` (Marc
    Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). Retry-After is a floor under
    that, never shortened, and the jitter comes on top, so that those who were told the same moment do not
    all come at it. A deferred retry waits `cap_s` and its jitter. `draw`, in [0, 1), is the chance. Raises
    ValueError for another.
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
