"""What blocks a route, and with it the job: the account, the key, the model, or a wait beyond the job's patience.

No goal fails for it. While a route is blocked nothing is asked there but a probe that the cortex granted, or the one
call with which a resumed job tries it; the first answer to one of these opens the route again. A job whose routes are
all blocked is paused: it ends partial when its calls have come home, or waits, if its user wants that. Of a job whose
roles have routes of their own the other lanes go on first (``cortex.calls.route_lanes``).
"""

from __future__ import annotations

import msgspec

from cortex.state.route_share import RouteShare
from cortex.state.state import InFlightAttempt, State
from policies.failures.failure import Failure, FailureKind
from policies.failures.reset_time import stated_reset_at_s

_OF_THE_ACCOUNT = (FailureKind.BLOCKED, FailureKind.UNAUTHORISED)


def block(k: State, flight: InFlightAttempt, failure: Failure) -> None:
    """This attempt's failure was not its goal's fault: its route is blocked.

    Attempts that were under way when the first one failed say the same once more, and nothing about a route that is
    tried since.
    """
    share = k.shares[flight.route]
    if share.blocked is None or flight.probe:
        share.blocked, share.trying = failure, False
        if share.starts > 0:
            share.starts = 0  # leave for more probes is none for this
    until_s = _until_s(k, failure)
    share.reset_s = max(share.reset_s, until_s)
    if failure.kind not in _OF_THE_ACCOUNT:  # it is busy: then it means what it says
        share.hold_until_s = max(share.hold_until_s, until_s)
    if k.tell is not None:
        k.tell(flight.goal, "blocked", {"failure": failure, "place": flight.route, "reset_s": share.reset_s})
    if k.paused is None and all(one.blocked is not None and not one.trying for one in k.shares):
        k.paused, k.paused_at_s = share.blocked, k.at_s


def _until_s(k: State, failure: Failure) -> float:
    if failure.retry_after_s is not None:
        return k.at_s + failure.retry_after_s
    if failure.kind == FailureKind.BLOCKED:
        return stated_reset_at_s(failure.message) or 0.0
    return 0.0


def try_again(k: State) -> None:
    """Someone says that what blocked the job is gone: each blocked route is tried with one call, before the rest."""
    for place, share in enumerate(k.shares):
        if share.blocked is not None:
            _try(k, place, share)
    k.paused = None


def look_at_time(k: State) -> None:
    """The provider named the moment from which a blocked route is open again: it is tried then."""
    for place, share in enumerate(k.shares):
        if share.blocked is not None and 0 < share.reset_s <= k.at_s:
            _try(k, place, share)


def _try(k: State, place: int, share: RouteShare) -> None:
    """One call finds out. Not on the road of message batches, where an answer may take a day: whether the account is
    in order shows when a submission is taken, and one that is refused costs nothing.
    """
    if share.reset_s >= share.hold_until_s:
        share.hold_until_s = 0.0
    share.reset_s = 0.0
    if k.terms.routes[place].batched:
        share.blocked = None
    else:
        share.trying = True


def waits(k: State) -> bool:
    """Whether a paused job stays for its routes to open, rather than end."""
    limits = k.terms.limits
    return (
        k.paused is not None
        and k.at_s < k.paused_at_s + limits.blocked_wait_s
        and (any if k.terms.role_routes else all)(share.blocked is not None for share in k.shares)
    )


def alike(failure: Failure, count: int) -> Failure:
    """The same refusal of many goals in a row, taken for what it must be."""
    said = f"the last {count} goals were all refused with: {failure.message}"
    return msgspec.structs.replace(failure, kind=FailureKind.BLOCKED, message=said, retry_after_s=None)
