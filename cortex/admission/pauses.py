"""Blocks and pauses: an unusable account, key or model, or a wait beyond the job's patience, blocks a route.

No goal fails for it. On a blocked route only a probe granted by the scheduler is sent, or the one call with which a
resumed job tests it; the first answer to one of these opens the route again. A job whose routes are all blocked is
paused: it ends partial when its calls have ended, or waits, if its user wants that. If roles have routes of their own
the other lanes continue first (``cortex.calls.route_lanes``).
"""

from __future__ import annotations

import msgspec

from cortex.state.route_share import RouteShare
from cortex.state.state import InFlightAttempt, State
from policies.failures.failure import Failure, FailureKind
from policies.failures.reset_time import stated_reset_at_s

_OF_THE_ACCOUNT = (FailureKind.BLOCKED, FailureKind.UNAUTHORISED)


def block(k: State, flight: InFlightAttempt, failure: Failure) -> None:
    """Block the route of an attempt whose failure was not its goal's fault.

    Attempts that were in flight at the first such failure fail in the same way, and say nothing about a route that has
    been tested since.
    """
    share = k.shares[flight.route]
    if share.blocked is None or flight.probe:
        share.blocked, share.trying = failure, False
        if share.starts >= 0:  # further probes of the grant are void, also those that come back unsent
            share.starts = 0
            share.bounded += 1
    until_s = _until_s(k, failure)
    share.reset_s = max(share.reset_s, until_s)
    if failure.kind not in _OF_THE_ACCOUNT:  # the provider is busy: its Retry-After is respected
        share.hold_as_told(until_s)
    if k.on_decision is not None:
        k.on_decision(flight.goal, "blocked", {"failure": failure, "place": flight.route, "reset_s": share.reset_s})
    if k.paused is None and all(one.blocked is not None and not one.trying for one in _open(k)):
        k.paused, k.paused_at_s = share.blocked, k.at_s


def _open(k: State) -> list[RouteShare]:
    """Routes without the servers that were taken out."""
    if not k.terms.closed:
        return k.shares
    return [share for place, share in enumerate(k.shares) if not k.terms.is_closed(place)]


def _until_s(k: State, failure: Failure) -> float:
    if failure.retry_after_s is not None:
        return k.at_s + failure.retry_after_s
    if failure.kind == FailureKind.BLOCKED:
        return stated_reset_at_s(failure.message) or 0.0
    return 0.0


def try_again(k: State) -> None:
    """Let each blocked route be tested with one call, before the rest, because a user resumed the job."""
    for place, share in enumerate(k.shares):
        if share.blocked is not None:
            _try(k, place, share)
    k.paused = None


def look_at_time(k: State) -> None:
    """Let blocked routes be tested whose stated reset time has come."""
    for place, share in enumerate(k.shares):
        if share.blocked is not None and 0 < share.reset_s <= k.at_s:
            _try(k, place, share)


def _try(k: State, place: int, share: RouteShare) -> None:
    """Allow one test call. Not for message batches, where an answer may take a day: a submission shows whether the
    account is in order, and a refused submission costs nothing.
    """
    if share.reset_s >= share.hold_until_s:
        share.hold_until_s = 0.0
    share.reset_s = 0.0
    if k.terms.routes[place].batched:
        share.blocked = None
    else:
        share.trying = True


def waits(k: State) -> bool:
    """Return True if a paused job waits for its routes to open, instead of ending."""
    limits = k.terms.limits
    return (
        k.paused is not None
        and k.at_s < k.paused_at_s + limits.blocked_wait_s
        and (any if k.terms.role_routes else all)(share.blocked is not None for share in _open(k))
    )


UNREADABLE = "answered with what cannot be read"
"""Words for goals whose answers cannot be read, in the reason of a blocked route."""

ALIKE = "refused with"
"""Words for goals that were refused alike, in that reason."""


def alike(failure: Failure, count: int) -> Failure:
    """Return the failure of a blocked route that the same end of `count` consecutive goals stands for."""
    what = UNREADABLE if failure.kind is FailureKind.UNREADABLE else ALIKE
    text = f"the last {count} goals were all {what}: {failure.message}"
    return msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=text, retry_after_s=None)
