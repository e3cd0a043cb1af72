"""Step of a channel: absorb what happened, check whether the goal is met, select what to ask next.

    step : (K, turn) -> commands

K is changed in place and only by this function; the commands may leave once the turn is in the journal. The same turns
give the same K and the same commands, byte for byte: time is part of the turn, randomness is derived from the call's
id, and all order is the journal's.
"""

from __future__ import annotations

from itertools import islice
from operator import length_hint

from cortex.admission import hedging, pauses
from cortex.admission.permits import room
from cortex.calls import affinity, attempts, route_lanes, voting
from cortex.calls.answers import absorb, fast_absorb
from cortex.calls.program_hooks import Out, error_text, faulty, give_up, stop
from cortex.calls.request import ask, fast_ask
from cortex.goals import result_list
from cortex.goals.apply_changes import apply
from cortex.goals.lifecycle import OPEN, wake
from cortex.loop import batch_submissions, deadlines, tool_runs
from cortex.loop.event_handlers import take
from cortex.loop.termination import conclude, finish, may_begin, satisfied, see_end, see_failures
from cortex.loop.tool_runs import believed
from cortex.state import commands, events
from cortex.state.changes import Ask, Change, Vote
from cortex.state.program import Program
from cortex.state.state import Goal, State, flight_key
from cortex.values.prompt import DoesNotFit
from policies.failures.failure import Failure, FailureKind


def step(k: State, program: Program, turn: events.Turn) -> commands.StepCommands:
    """Take one turn. Never raises for a program's errors: an exception fails the goal it concerns, as FAULTY."""
    out = commands.StepCommands()
    at_s = float(turn.at_s)
    if turn.ahead_s != k.ahead_s and not k.overdue:  # a deadline that had passed by the last turn stays so
        k.ahead_s = float(turn.ahead_s)
    if at_s > k.at_s:
        k.at_s = at_s
    k.ledger.turn_to(k.at_s)
    for batch in turn.batches:
        rest = iter(batch)
        while (event := fast_absorb(k, program, rest, out)) is not None:
            if k.on_decision is not None:
                k.on_decision(0, "event", {"event": event})
            if type(event) is events.Answered:
                absorb(k, program, event, out)
            else:
                take(k, program, event, out)
    if k.on_decision is not None:
        k.on_decision(0, "heard", {})
    due = _is_due(k)
    if k.delayed:
        wake(k, out, program)
    if k.submissions:
        batch_submissions.wake(k, out)
    pauses.look_at_time(k)
    if k.deadlines and not k.outcome:
        deadlines.look(k, program, out)
    if k.tally.failed_for_good or k.terms.rows_unreadable:
        see_failures(k)
    if k.errands and not k.outcome and not may_begin(k):
        tool_runs.rest(k, out)
    if not k.outcome and not satisfied(k, program) and may_begin(k):
        if k.unhedged and k.paused is None:
            hedging.look(k, out)
        select(k, program, turn, out, due)
    if not k.outcome and satisfied(k, program) and not (k.submissions and batch_submissions.nameless(k)):
        conclude(k, program)
    if k.terms.role_routes:
        route_lanes.see_pause(k)
    see_end(k)
    if k.outcome and not k.finished:
        finish(k, out)
    if k.outcome and k.restored is None and (k.withdrawn or k.standing):
        result_list.restore(k)
    return out


MADE_MAX = 4_096
"""Goals made in one turn that may each be found too large; a program that makes goals forever is stopped."""


def _is_due(k: State) -> bool:
    """Return True if time alone opens or ends a goal in this turn."""
    return any(heap[0][0] <= k.at_s for heap in (k.delayed, k.deadlines) if heap)


def select(k: State, program: Program, turn: events.Turn, out: Out, due: bool = False) -> None:
    """Let the program choose calls until permits, money or its own wishes are used up. ``due``: as of ``_is_due``.

    What select yields is collected while K does not change, and then applied. Changes may open new goals, so select is
    called again after them; a program that only changes and never asks is stopped by a bound.
    """
    rounds_max = k.terms.limits.selects_max
    rounds_left = rounds_max + 4 * k.live  # a goal may be found too large three times, and is then given up
    symbolic, paused, made_max = 0, k.paused, k.next_goal + MADE_MAX
    several = bool(k.terms.role_routes)
    while symbolic < rounds_max and rounds_left > 0:
        k.short = k.elsewhere = False
        k.wishes = True
        calls_max = room(k) if program.calls_models else 1
        if calls_max <= 0 and not (several and (k.looking or due or _brings_news(turn))):
            if not k.unseen:
                k.unseen = _brings_news(turn)
            if several:
                route_lanes.park(k, ())
            return
        k.unseen, made = False, k.next_goal
        asks: list[Ask | Vote] = [*voting.wanted(k, calls_max)] if k.elections and not several else []
        waiting: list[Ask | Vote] = []
        changed: list[Change] = []
        try:
            if several:
                more, waiting = False, route_lanes.gather(k, program, asks, changed)
            elif k.terms.peers:
                more = _gather(k, program, calls_max + affinity.window(k), asks, changed) or len(asks) > calls_max
            else:
                more = _gather(k, program, calls_max, asks, changed)
            if changed:
                apply(k, changed, out, by=None, program=program)
        except Exception as error:  # an author's code may raise anything
            stop(k, error_text("select", error))
            return
        under_way = len(k.flights)
        deals = k.terms.peers and not several
        moved = _deal(k, program, asks, calls_max, out) if deals else _ask_all(k, program, asks, out)
        more &= moved or len(k.flights) > under_way
        k.wishes = more or (k.elsewhere and k.terms.peers > 0)
        if several:
            route_lanes.park(k, waiting if k.short else (*asks, *waiting))
        news = bool(changed) and not (program.asks_at_once and _asked_at_once(changed, asks))
        if k.outcome or k.paused is not paused or not (news or ((moved or more) and not k.short)):
            return
        symbolic += bool(changed) and not moved
        rounds_left += 4 * (min(k.next_goal, made_max) - min(made, made_max)) - 1
    stop(k, f"select made {rounds_max} rounds of changes in one turn")


_NO_NEWS = frozenset((events.PermitsGranted, events.ResultsWritten, events.GoalMade, events.ShardReported))


def _brings_news(turn: events.Turn) -> bool:
    """Return True if a turn may change what select yields. Grants are excluded: a waiting job would ask for one more
    each.
    """
    for batch in turn.batches:
        for event in batch:
            if type(event) not in _NO_NEWS:
                return True
    return False


def _gather(k: State, program: Program, calls_max: int, asks: list[Ask | Vote], changed: list[Change]) -> bool:
    """Collect what the program wants now: up to ``calls_max`` calls, and changes. Return whether it may want more."""
    changes = iter(program.select(k))
    while (left := calls_max - len(asks)) > 0:
        some = list(islice(changes, left))
        if not some:
            return False
        if _ASKS.issuperset(map(type, some)):  # the usual case
            asks += some  # type: ignore[arg-type]
            continue
        for change in some:
            (asks if type(change) in _ASKS else changed).append(change)  # type: ignore[arg-type]
    return True


_ASKS = frozenset({Ask, Vote})


def _asked_at_once(changed: list[Change], asks: list[Ask | Vote]) -> bool:
    """Return True if all changes are new goals, each of them asked for in the same round."""
    asked = {wish.goal.id for wish in asks}
    return all(type(change) is Goal and change.id in asked for change in changed)


def _ask_all(k: State, program: Program, asks: list[Ask | Vote], out: Out) -> bool:
    """Send these calls as far as the money allows. Return True if select should be called again: permits are left
    over.
    """
    moved, rest = False, iter(asks)
    while not (k.short or k.outcome) and (left := length_hint(rest)):
        vote = type(asks[-left]) is Vote  # not a call itself: its votes are
        change = next(rest) if vote else fast_ask(k, rest, program.asks_once, out)
        if change is None:
            break
        if _ask(k, program, change, out):
            moved = True
    return moved


def _deal(k: State, program: Program, asks: list[Ask | Vote], calls_max: int, out: Out) -> bool:
    """Send at most so many of these calls to servers of one model, each to one that holds its beginning if it can be.
    What no server takes now goes on as in ``_ask_all``, which this otherwise equals."""
    if not _ONLY_ASKS.issuperset(map(type, asks)):
        return _ask_all(k, program, asks[:calls_max], out)
    moved, sent = False, set()
    for at, place, names in affinity.next_calls(k, asks, calls_max):  # type: ignore[arg-type]
        if k.short or k.outcome:
            return moved
        sent.add(at)
        moved |= _ask(k, program, asks[at], out, place, names)
    rest = [change for at, change in enumerate(asks) if at not in sent][: calls_max - len(sent)]
    return moved | (bool(rest) and _ask_all(k, program, rest, out))


_ONLY_ASKS = frozenset({Ask})


def _ask(
    k: State, program: Program, change: Ask | Vote, out: Out, place: int = -1,
    beginnings: tuple[bytes, ...] | None = None,
) -> bool:  # fmt: skip
    """Send one call, to the server at ``place`` if that is given, or record why not. Return True if the goal was open
    and needs no permit now, for example in a vote. ``beginnings``: their names, where they were looked up.
    """
    goal = k.goals.get(change.goal.id)
    if goal is None or goal.status != OPEN:
        if not change.goal.id:
            stop(k, f"select asks for a goal of kind {change.goal.kind!r} that was never added")
        return False
    try:
        if change.uses and not believed(k, program, goal, change.uses, out):
            return goal.status != OPEN
        if type(change) is Vote:
            voting.begin(k, goal, change, out)
            return True
        if place < 0:
            return ask(k, goal, change, program.asks_once, out)  # type: ignore[arg-type]
        before = goal.tries
        apart = ask(k, goal, change, program.asks_once, out, place)  # type: ignore[arg-type]
        if goal.tries > before and (flight := k.flights.get(flight_key(goal.id, goal.tries))) is not None:
            affinity.asked(k, change, flight.route, beginnings)  # type: ignore[arg-type]
        return apart
    except DoesNotFit as error:
        failure = Failure(FailureKind.TOO_LARGE, str(error), sent=False)
        verdict = attempts.too_large(k, goal, failure)
        if verdict is not None:
            give_up(k, program, goal, failure, out)
    except Exception as error:  # an author's code may raise anything
        faulty(k, program, goal, "select", error, out)
    return True


__all__ = ["Goal", "absorb", "select", "step"]
