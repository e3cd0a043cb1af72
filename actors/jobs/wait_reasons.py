"""Wait reasons and present routes of a job, from K alone: for the live line, ``status`` and programs."""

from __future__ import annotations

from typing import Any

from actors.jobs.bill_excess import held_back
from actors.jobs.learned_limits import limit_words, pace_words
from actors.jobs.learned_limits import time_of_day as time_of_day
from cortex.admission.budget_slices import unanswered
from cortex.scheduler.reports import PACED_BY, POOL_LIMITS, PROVIDER_ASKS
from cortex.state.goals import Goal, Status
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.values.batch_record import SubmissionStatus
from cortex.values.limits import BATCHES, Route
from policies.failures.failure import Failure, FailureKind
from policies.limits.pace import due_at_s

SERVERS_SHOWN = 3
"""Servers in the line of a running job that get none of its work; the others are counted."""
WORDS_MAX = 160
"""Most characters of a provider's message in the line of a running job."""


def wait_facts(k: State) -> dict[str, Any]:
    """Return the fields of ``status`` about routes, permits and waits."""
    place = _place(k)
    return {
        "waits": "; ".join(waits(k)),
        "route": named(k.terms.routes[place]) + _rank(k, place),
        "routes": [_route(k, each, route) for each, route in enumerate(k.terms.routes)],
        "permits": k.permits,
        "in_flight": len(k.flights),
        "oldest_asked_at_s": next((each.asked_at_s for each in k.flights.values()), 0.0),  # in the order of asking
        "clock_ahead_s": k.ahead_s,
        "deadline_at_s": k.terms.limits.deadline_at_s,
        "paused_until_s": k.paused_until_s,
        "sleeps_until_s": sleeps_until_s(k),
        "unauthorised": any(_refused(share) for share in k.shares),
    }


def idle_servers(facts: dict[str, Any]) -> str:
    """Return which of several servers got no work when the job ended, and why; empty if there is none, or the job has
    not ended: then ``waits`` tells."""
    servers = [each for each in facts["routes"] if each.get("shares_work")]
    idle = [f"{each['route']}: {each['why']}" for each in servers if each["why"] and not each["permits"]]
    if facts["outcome"] in ("", "running") or not idle:
        return ""
    text = "; ".join(idle[:SERVERS_SHOWN]) + (f"; and {len(idle) - SERVERS_SHOWN} more" if idle[SERVERS_SHOWN:] else "")
    return f"{len(idle)} of {len(servers)} servers got no work at the end: {text}"


def _rank(k: State, place: int) -> str:
    """Return the words for a route's rank: how many servers share the work, or which fallback it is."""
    peers = k.terms.peers - len(k.terms.closed)
    if place > k.terms.peers:
        return f" (fallback {place - k.terms.peers})"
    if k.terms.is_closed(place):  # a name, under which the servers are found
        return f" ({1 + peers} {'servers' if peers else 'server'})"
    return f" and {peers} more {'server' if peers == 1 else 'servers'}" if peers > 0 else ""


def _refused(share: RouteShare) -> bool:
    """Return True if the provider refuses the key of this route, and no other key has been tried yet."""
    return share.blocked is not None and share.blocked.kind == FailureKind.UNAUTHORISED and not share.trying


def _route(k: State, place: int, route: Route) -> dict[str, Any]:
    share = k.shares[place]
    return {
        "route": named(route), "roles": roles_at(k, place),
        "shares_work": 0 < k.terms.peers >= place and not k.terms.is_closed(place),
        "permits": share.permits, "in_flight": share.in_flight, "why": share.why,
        "failing": _short(share.failing.message) if share.failing is not None else "",
        "failing_since_s": share.failing_s, "stands_still": stands_still(share),
        "lacks": lacking(share.failing) if share.failing is not None else "",
        "probed_at_s": share.again_at_s if share.again_at_s > k.at_s else 0.0,
        "held_until_s": share.hold_until_s if share.hold_until_s > k.at_s else 0.0,
    }  # fmt: skip


def roles_at(k: State, place: int) -> list[str]:
    """Return the roles that use only this route."""
    lane = k.terms.lane_at(place)
    return [role for role, its in k.terms.roles.items() if its == lane] if lane else []


def named(route: Route) -> str:
    """Return model and address of a route, without secrets and long parts."""
    by = " by batches" if route.via == BATCHES else ""
    return f"{route.model} at {_address(route)}{by}"


def _address(route: Route) -> str:
    return route.endpoint.removeprefix("https://").removeprefix("http://")


def waits(k: State) -> list[str]:
    """Return the reasons why the job sends fewer calls than it could, each in a few words; empty if there are none."""
    if k.outcome:
        return []
    lines = [{"drain": "draining", "cancel": "cancelling"}.get(k.stopping, "")]
    if k.paused is not None:
        until_s = k.paused_until_s
        until = f" until {time_of_day(until_s)}" if until_s else ""
        probed_s = max((share.again_at_s for share in k.shares if _told_by_pause(k, share)), default=0.0)
        probed = f"; it is probed at {time_of_day(probed_s)}" if probed_s > k.at_s else ""
        lines.append(f"{k.paused.kind}{until}: {_short(k.paused.message)}{probed}")
    elif k.purse is not None and (k.purse.reason or k.purse.lacks_nusd):
        word = "waits to hear of the budgets of its labels" if unanswered(k) else "waits for a slice of its budget"
        lines.append(_short(f"over_budget: {k.purse.reason}") if k.purse.reason else word)
    elif (until_s := k.hold_until_s) > k.at_s:
        told = any(share.told_to_wait for share in k.shares if share.hold_until_s == until_s)
        lines.append(f"{'the provider says to wait' if told else 'the next call waits'} until {time_of_day(until_s)}")
    place, fallbacks, peers = _place(k), len(k.terms.fallbacks), k.terms.peers
    lines += _servers_held_back(k)
    for share in k.shares:
        if share.excess is not None and share.calls_at_once < share.permits:
            lines.append(held_back(share.excess, share.calls_at_once))
            break
    for each, share in enumerate(k.shares):
        if k.terms.is_peer(each) or place < each <= fallbacks:
            continue
        if each > fallbacks and not _busy(k, k.terms.lane_at(each)):
            continue
        held = share.why == PROVIDER_ASKS and share.told_to_wait and k.hold_until_s > k.at_s  # said above, with its end
        if share.why and not held and not _told_by_pause(k, share) and not share.why.startswith(PACED_BY):
            why = _when(k, each)
            lines.append(why if len(k.shares) == 1 else f"{_who(k, each)}: {why}")
        if each > fallbacks and share.blocked is not None and k.paused is None:
            lines.append(f"{_who(k, each)}: {share.blocked.kind}: {_short(share.blocked.message)}")
    if place > peers:
        lines.append(f"on the fallback {k.terms.routes[place].model}")
    if _paced(k, place):
        why = k.shares[place].why
        lines.append(why if why.startswith(PACED_BY) else _pace(k, place))
    lines += _batches(k)
    if k.expected and (names := k.awaited()):
        lines.append(f"waits for an answer: {', '.join(names[:5])}")
    if until_s := sleeps_until_s(k):
        lines.append(f"sleeps until {time_of_day(until_s)}")
    again_at_s = _again_at_s(k)
    if again_at_s and not any(lines):
        failing = k.shares[place].failing
        last = f": the last attempt failed: {_short(failing.message)}" if failing is not None else ""
        lines.append(f"tries again at {time_of_day(again_at_s)}{last}")
    if k.live and not k.permits and not any(lines):
        lines.append("waits for permits")
    return [each for each in lines if each]


def _told_by_pause(k: State, share: RouteShare) -> bool:
    """Return True if a share's reason is the one for which the whole job is paused."""
    return k.paused is not None and share.why == f"{_BLOCKED}{k.paused.message}"


def _servers_held_back(k: State) -> list[str]:
    """Return why servers that share the work get none of it, or why all of them get less than was asked for."""
    peers = k.terms.peers
    if not peers:
        return []
    shares = k.shares[: 1 + peers]
    idle = [
        place for place, share in enumerate(shares)
        if share.why and not (share.permits and share.starts) and not k.terms.is_closed(place)
    ]  # fmt: skip
    lines = [f"{_address(k.terms.routes[place])}: {_when(k, place)}" for place in idle[:SERVERS_SHOWN]]
    if len(idle) > SERVERS_SHOWN:
        lines.append(f"and {len(idle) - SERVERS_SHOWN} more servers")
    busy = [share for place, share in enumerate(shares) if not k.terms.is_closed(place)]
    if not idle and all(share.why and not share.why.startswith(PACED_BY) for share in busy):
        lines.append(busy[0].why)
    return lines


def _batches(k: State) -> list[str]:
    """Return how many message batches the job waits for, and since when."""
    lines = []
    for stands, words in _BATCH_WAITS:
        some = [made for made in k.submissions.values() if made.stand in stands]
        if some:
            count, requests = len(some), sum(len(made.keys) for made in some)
            many = f"{count:,} message {'batch' if count == 1 else 'batches'} of {requests:,} requests"
            lines.append(f"{many} {words} since {time_of_day(min(made.intended_at_s for made in some))}")
    return lines


_BATCH_WAITS = (
    ((SubmissionStatus.OUT,), "at the provider"),
    ((SubmissionStatus.INTENDED, SubmissionStatus.RESTING), "being handed over"),
    ((SubmissionStatus.DOUBTED,), "looked for at the provider, which may have them or not,"),
)


def sleeps_until_s(k: State) -> float:
    """Return the due time of the next delayed goal if the job only waits for it; else 0."""
    goal = _next_due(k)
    return goal.due_at_s if goal is not None and not goal.broken and not goal.tries else 0.0


def _again_at_s(k: State) -> float:
    """Return the time of the next retry if the job only waits for it; else 0."""
    goal = _next_due(k)
    return goal.due_at_s if goal is not None and (goal.broken or goal.tries) else 0.0


def _next_due(k: State) -> Goal | None:
    """Return the next goal that waits only for its due time, if nothing is in flight, at a worker, or ready."""
    if not k.resting or k.outcome or k.flights or k.errands or k.offered:
        return None
    due = [k.goals[goal_id] for at_s, goal_id in k.delayed if _rests(k, goal_id, at_s)]
    return min(due, key=lambda goal: goal.due_at_s, default=None)


def _rests(k: State, goal_id: int, due_at_s: float) -> bool:
    goal = k.goals.get(goal_id)
    return goal is not None and goal.status == Status.OPEN and goal.due_at_s == due_at_s > k.at_s


def _who(k: State, place: int) -> str:
    """Return the model of a route, with its roles."""
    roles = roles_at(k, place)
    return k.terms.routes[place].model + (f" ({', '.join(roles)})" if roles else "")


def _busy(k: State, lane: int) -> bool:
    """Return True if a lane has calls waiting or in flight."""
    return bool(k.parked.get(lane)) or any(k.shares[place].in_flight for place in k.terms.lane_places(lane))


def stands_still(share: RouteShare) -> bool:
    """Return True if no calls are sent on a route because its breaker is not closed."""
    return share.failing is not None and share.why.startswith(_BREAKER)


def lacking(failure: Failure) -> str:
    """Return what a route with this failure lacks: a reply at all, or one that can be used, such as no error and no
    page of a proxy."""
    return "no usable reply" if failure.status else "no reply"


_BREAKER = ("the breaker is ", "half open")
"""Beginnings of the scheduler's reason for a breaker that is not closed (``cortex.scheduler.leases``)."""
_BLOCKED = "blocked: "
"""Beginning of the scheduler's reason for a route whose account, model or key is refused."""


def _when(k: State, place: int) -> str:
    """Return the reason for a small share, and its end if known. For an open breaker: the last failure instead of the
    failure count, and the time of the next probe."""
    share = k.shares[place]
    text = share.why
    if text == PROVIDER_ASKS and share.told_until_s <= k.at_s:  # this job was told no time
        text = "the pool rests after 429"
    if text in POOL_LIMITS and (more := limit_words(share)):
        text = f"{text}: {more}"
    if stands_still(share) and share.failing is not None:
        since = time_of_day(share.failing_s)
        where = named(k.terms.routes[place])
        lacks = lacking(share.failing)
        text = f"{text.partition(':')[0]}: {lacks} from {where} since {since}: {_short(share.failing.message)}"
    if share.again_at_s <= k.at_s:
        return text
    return f"{text}; it is probed at {time_of_day(share.again_at_s)}"


def _place(k: State) -> int:
    """Return the route of the job's own calls: the first with a permit, else the one with most calls in flight."""
    places = k.terms.lane_places(0)
    for place in places:
        if k.shares[place].permits and k.shares[place].starts:
            return place
    return max(places, key=lambda place: (k.shares[place].in_flight, -place))


def _paced(k: State, place: int) -> bool:
    """Return True if only a rate limit delays the next call."""
    paces = (k.pace, k.shares[place].pace)
    return bool(k.wishes) and any(pace is not None and due_at_s(pace) > k.at_s for pace in paces)


def _pace(k: State, place: int) -> str:
    """Return what delays the next call: the job's own rates, or those of a route."""
    own, share = k.pace, k.shares[place]
    if own is not None and (share.pace is None or due_at_s(own) >= due_at_s(share.pace)):
        return "paced by --rpm, --itpm or --otpm of this job"
    return pace_words(share)


def _short(text: str) -> str:
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 1] + "…"
