"""Fast replay of batches: whole turns that are plain are folded at once.

A replay without a listener needs only K. Nearly every row of a batch is asked once and answered once, and leaves only
sums in K: so its goal and its attempt are created only if they still exist when something else happens, or at the end.
Meanwhile K is right except for its goals, its attempts, and the amounts reserved for them. The program is not called,
since `batch` yields the same for all such rows. Turns that are not plain go through ``loop.step``, which would produce
the same K, byte for byte, for a plain turn too (``tests/properties/test_plain_turns.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from cortex.admission import budget_slices
from cortex.calls.request import asked_as_given, may_ask_fast
from cortex.goals.lifecycle import ASKED, OPEN
from cortex.loop.event_handlers import take
from cortex.loop.termination import see_failures
from cortex.state.commands import StepCommands
from cortex.state.events import Answered, Event, PermitsGranted, ResultsWritten, Row, RowsRead, Ticked, Turn
from cortex.state.program import Program
from cortex.state.state import Goal, InFlightAttempt, State, flight_key
from cortex.values.endings import WHOLE_REASONS, Ending
from cortex.values.reply import Reply, text_of
from policies.estimates.price import cost_nusd
from policies.estimates.tokens import bodies_tokens_bound, body_tokens_bound
from policies.failures.timeout import attempt_timeout_s, teaches_from_s
from policies.limits.slices import day_of

_FOLDED = frozenset({Answered, RowsRead, PermitsGranted, ResultsWritten, Ticked})
_NEWS = frozenset({Answered, RowsRead, Ticked})


_NOBODY = Program()


GOALS_AN_EVENT = 2
"""Number of goals, at most, that are examined for each event that was stepped: a tenth of the time that stepping
took."""


def goal_of(row: Row, place: int) -> Goal:
    """Return the goal of a row that was not refused; ``place`` is its position in the source."""
    return Goal("row", [row.key, row.body, row.output_tokens_max, place])


def counted_ending(reply: Reply) -> str:
    """Return the ending under which a row's reply is counted; empty for a whole answer and for a tool use, which the
    request itself offers."""
    if reply.stop_reason in WHOLE_REASONS and text_of(reply.body).strip():
        return ""  # nearly all replies: four function calls instead of nine
    ending = reply.ending
    return "" if ending is Ending.WHOLE or ending is Ending.TOOL_USE else ending.value


def row_of(goal: Goal) -> Row:
    """Return the row that a goal was made of, without its position."""
    key, body, output_tokens_max, _ = goal.value
    return Row(key, body, output_tokens_max)


class BatchReplay:
    """Fast replay of one journal."""

    def __init__(self) -> None:
        self._fold: TurnFold | None = None
        self._stepped = 0
        """Events since the last check of whether K can take plain turns, or since it last did."""

    def take(self, turn: Turn) -> bool:
        """Return True if this turn was folded; otherwise K is complete, and ``step`` must take the turn."""
        if self._fold is None:
            return False
        if self._fold.take(turn):
            return True
        self.end()
        return False

    def end(self) -> None:
        """Complete K."""
        if self._fold is not None:
            self._fold.put_back()
            self._fold = None

    def stepped(self, k: State, program: Program, turn: Turn) -> None:
        """Note that ``step`` took this turn: the next ones may be plain. The check takes some time for each goal in
        K.
        """
        self._stepped += sum(map(len, turn.batches))
        if self._stepped * GOALS_AN_EVENT >= len(k.goals):
            self._fold, self._stepped = turn_fold(k, program), 0


def turn_fold(k: State, program: Program) -> TurnFold | None:
    """Return the fold of K if K can take plain turns, else None."""
    if program.fast_replay() is None or not _may_fold(k):
        return None
    asked = {flight.goal for flight in k.flights.values() if not flight.abandoned}
    if len(asked) < len(k.flights) or not asked <= k.goals.keys():
        return None  # some attempts are abandoned
    if not all(_is_row(k, goal) for goal in k.goals.values()):
        return None
    ready = k.open_by_kind["row"]
    slow = _askable(k, ready, [row_of(k.goals[goal_id]) for goal_id in ready])
    return TurnFold(k, slow) if slow is not None else None


def _may_fold(k: State) -> bool:
    """True if nothing is in progress or configured except rows that are asked over the single route."""
    limits, delayed = k.terms.limits, k.delayed
    if delayed and ((goal := k.goals.get(delayed[0][1])) is None or goal.due_at_s != delayed[0][0]):
        return False  # the next turn removes it
    return not (
        len(k.shares) != 1 or k.shares[0].failing is not None or k.shares[0].in_flight != len(k.flights)
        or k.shares[0].patience > 1.0
        or not may_ask_fast(k, k.shares[0]) or not budget_slices.unbounded(k) or limits.deadline_at_s is not None
        or k.deadlines or k.unhedged or k.elections or k.errands or k.submissions or k.shards or k.asking
        or k.held or k.again or k.withdrawn or k.parked or k.called or k.looking or k.paused is not None or k.outcome
        or k.finished or k.closing or k.unmet or k.open_by_kind.keys() != {"row"}
    )  # fmt: skip


def _is_row(k: State, goal: Goal) -> bool:
    """True for a row that was not asked yet, waits for its retry, or awaits an answer."""
    if goal.status is OPEN:
        return bool(goal.due_at_s) or not (goal.tries or goal.question or goal.hedge)
    return goal.status is ASKED and flight_key(goal.id, goal.tries) in k.flights


def _attempt(k: State, flight: InFlightAttempt) -> int:
    """Number of the attempt whose answer is plain for this goal; 0: none is."""
    goal = k.goals[flight.goal]
    odd = (
        goal.assumed or goal.hedge or goal.question != flight.hash or flight.paced is not None
        or flight.text_bytes or flight.followers or flight.probe or flight.prefix
        or (k.terms.route.price is not None and flight.charge.day != k.ledger.day)
    )  # fmt: skip
    return 0 if odd else flight.attempt


def _askable(k: State, goals: Iterable[int], rows: Sequence[Row]) -> dict[int, float] | None:
    """Goals among these whose timeout may exceed all earlier ones, with their timeouts.

    None if a row was refused or opened again, or leaves no room for its prompt.
    """
    limits = k.terms.limits
    bound, longest_s = bodies_tokens_bound([row.body for row in rows]), 0.0
    for refusal, place, own_max in {(row.refusal, row.place, row.output_tokens_max) for row in rows}:
        output_max = own_max or limits.output_tokens_max
        if refusal or place >= 0 or output_max <= 0 or k.terms.prompt_tokens_max(output_max) <= 0:
            return None
        longest_s = max(longest_s, attempt_timeout_s(limits.timeout, output_max, bound))
    slow: dict[int, float] = {}
    for goal_id, row in zip(goals, rows, strict=True) if longest_s > k.call_timeout_max_s else ():
        output_max = row.output_tokens_max or limits.output_tokens_max
        timeout_s = attempt_timeout_s(limits.timeout, output_max, body_tokens_bound(row.body))
        if timeout_s > k.call_timeout_max_s:
            slow[goal_id] = timeout_s
    return slow


class TurnFold:
    """Fold of plain turns into one K, until ``put_back``; meanwhile its goals and attempts must not be read."""

    def __init__(self, k: State, slow: dict[int, float]) -> None:
        self._k, self._slow = k, slow
        """Open goals whose timeout may exceed all earlier ones, with their timeouts."""
        self._usual_s = teaches_from_s(k.terms.limits.timeout, 1.0)
        self._rows: dict[int, Goal | Row] = dict(k.goals)
        """All live goals. A goal that was fed since the fold began is still a row."""
        self._open = [*k.open_by_kind["row"]]
        """Goals that may be asked now, in order; the first ``_begun`` of them were asked since the fold began."""
        self._begun = 0
        self._asked: dict[int, InFlightAttempt | float] = {}
        """Attempts in flight by goal, in order; for an attempt begun since the fold began, its time."""
        self._later: dict[int, int] = {}
        """Attempt numbers of goals beyond their first attempt; 0 if the answer is not plain."""
        self._place = k.tally.rows_read - k.next_goal
        """Offset from a goal's id to the position of its row in the source."""
        for flight in k.flights.values():
            self._asked[flight.goal] = flight
            if (attempt := _attempt(k, flight)) != 1:
                self._later[flight.goal] = attempt
            k.ledger.release(flight.charge)

    def take(self, turn: Turn) -> bool:
        """Fold a turn into K and return True if it is plain; otherwise change nothing."""
        k, at_s = self._k, max(self._k.at_s, float(turn.at_s))
        happened: Sequence[Event] = turn.batches[0] if len(turn.batches) == 1 else [*chain(*turn.batches)]
        kinds = set(map(type, happened))
        if turn.ahead_s != k.ahead_s:
            return False
        if not kinds <= _FOLDED or day_of(at_s) != k.ledger.day or (k.delayed and k.delayed[0][0] <= at_s):
            return False
        answers = [event for event in happened if type(event) is Answered]
        others = [event for event in happened if type(event) is not Answered] if len(answers) < len(happened) else []
        goals = [event.goal for event in answers]
        if not self._awaits(goals, answers) or self._too_many_fail(len(goals)):
            return False
        if max([event.elapsed_s for event in answers], default=0.0) > self._usual_s:
            return False  # their durations may change the timeouts of their route
        if True in [event.reply.usage.unknown for event in answers]:
            return False  # their charges are assumed, and reserved amounts are not up to date here
        fed = [event for event in others if type(event) is RowsRead]
        permits = self._permits([event for event in others if type(event) is PermitsGranted])
        left, more = len(self._asked) - len(goals), sum([len(window.rows) for window in fed])
        room = min(k.terms.limits.concurrency, permits) - left
        asked = max(0, min(room, len(self._open) - self._begun + more))
        if not left + asked:  # the job has ended, or is stuck, unless it waits for rows
            ended = k.source_ended or any(window.ended for window in fed)
            if ended or k.live - len(goals) + more >= k.terms.limits.window_rows:
                return False
        if permits < 0 or not self._rows_read(fed):
            return False
        k.at_s = at_s
        for event in others:
            if type(event) is not RowsRead:
                take(k, _NOBODY, event, StepCommands())
        if answers:
            self._settle(goals, answers)
        self._ask(asked)
        k.short = k.elsewhere = False
        if room <= 0:
            k.wishes, k.unseen = True, k.unseen or not kinds.isdisjoint(_NEWS)
        else:  # select was called once more, without a permit, if all the room was used
            k.wishes = asked == room
            k.unseen = k.wishes and not kinds.isdisjoint(_NEWS)
        return True

    # -- checks
    # ------------------------------------------------------------------------------------------------------------

    def _awaits(self, goals: list[int], answers: Sequence[Answered]) -> bool:
        """True if these are answers to attempts in flight, one for each."""
        found = set(goals)
        if len(found) < len(goals) or not found <= self._asked.keys():
            return False
        later = self._later
        if later and not later.keys().isdisjoint(found):
            return all(event.attempt == later.get(event.goal, 1) for event in answers)
        return {event.attempt for event in answers} <= {1}

    def _too_many_fail(self, succeeded: int) -> bool:
        """True if the job would be halted by its failures with this number of further successes."""
        k = self._k
        if not k.tally.failed_for_good:
            return False
        k.tally.succeeded += succeeded
        see_failures(k)
        halted, k.halted = bool(k.halted), ""
        k.tally.succeeded -= succeeded
        return halted

    def _permits(self, grants: list[PermitsGranted]) -> int:
        """Permits after these grants; -1 if a grant is not plain."""
        for grant in grants:
            if grant.route or grant.starts >= 0 or grant.permits < 0:
                return -1
            if grant.requests_per_s or grant.input_tokens_per_s or grant.output_tokens_per_s:
                return -1
        return grants[-1].permits if grants else self._k.shares[0].permits

    def _rows_read(self, windows: list[RowsRead]) -> bool:
        """Take in the next window of rows if all are plain; otherwise change nothing."""
        if not windows:
            return True
        k, event, first = self._k, windows[0], self._k.next_goal
        count = len(event.rows)
        if len(windows) > 1 or k.source_ended or event.start != k.position:
            return False
        new = range(first, first + count)
        if new.stop - 1 > k.terms.limits.goals_max or (slow := _askable(k, new, event.rows)) is None:
            return False
        k.position, k.source_ended = event.position, event.ended
        self._rows.update(zip(new, event.rows, strict=True))
        self._open += new
        self._slow |= slow
        k.next_goal += count
        k.live += count
        k.tally.rows_read += count
        return True

    # -- effects
    # -----------------------------------------------------------------------------------------------------------

    def _settle(self, goals: list[int], answers: Sequence[Answered]) -> None:
        """Settle these rows: each has its result, and leaves K."""
        k, count, price = self._k, len(goals), self._k.terms.route.price
        rows, asked, ledger, tally = self._rows, self._asked, self._k.ledger, self._k.tally
        for goal_id in goals:
            del rows[goal_id], asked[goal_id]
        for goal_id in self._later.keys() & set(goals) if self._later else ():
            del self._later[goal_id]
        usages = [event.reply.usage for event in answers]
        nusd = sum(cost_nusd(price, usage) for usage in usages) if price is not None else 0
        ledger.know_all(usages, nusd)
        k.live -= count
        k.successes += count
        k.emitted += count
        tally.answered += count
        tally.succeeded += count
        for ending in filter(None, [counted_ending(event.reply) for event in answers]):
            tally.endings[ending] = tally.endings.get(ending, 0) + 1
        k.alike = k.faulty_in_row = 0

    def _ask(self, count: int) -> None:
        """Ask the next ``count`` rows."""
        k, begun = self._k, self._begun
        if count:
            now = self._open[begun : begun + count]
            self._asked.update(zip(now, repeat(k.at_s)))
            self._begun = begun = begun + count
            k.tally.calls += count
            k.ledger.attempts += count
            if self._slow:
                times = [self._slow.pop(goal_id, 0.0) for goal_id in now]
                k.call_timeout_max_s = max(k.call_timeout_max_s, *times)
            if 2 * begun > len(self._open):
                del self._open[:begun]
                self._begun = 0
        k.shares[0].in_flight = len(self._asked)

    def put_back(self) -> None:
        """Create the goals and attempts in K as they are now."""
        k, flights = self._k, {}
        goals = k.goals = {goal_id: self._goal(goal_id, row) for goal_id, row in self._rows.items()}
        k.open_by_kind["row"] = dict.fromkeys(self._open[self._begun :])
        for goal_id, flight in self._asked.items():
            if not isinstance(flight, InFlightAttempt):
                goal = goals[goal_id]
                key, body, output_max, _ = goal.value
                flight = asked_as_given(k, goal, key, body, output_max, flight)
            k.ledger.reserve(flight.charge, 0)
            flights[flight_key(goal_id, flight.attempt)] = flight
        k.flights = flights

    def _goal(self, goal_id: int, row: Goal | Row) -> Goal:
        if isinstance(row, Goal):
            return row
        goal = goal_of(row, goal_id + self._place)
        goal.id, goal.row = goal_id, row.key
        return goal
