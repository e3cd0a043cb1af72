"""Invariants of K, checked in one pass by ``check``; for tests, and to verify a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cortex.goals.result_list import chained
from cortex.state.state import ENDED, HELD, TRIES_MAX, Goal, State, Status, flight_key
from cortex.values.batch_record import SubmissionStatus
from cortex.values.election import VOTE
from cortex.values.ledger import Charge
from policies.decisions.voting import votes_needed


class InvariantViolation(AssertionError):
    """K violates its invariants. The message lists every violation."""


def check(k: State) -> None:
    """Check every invariant of K, in time linear in its size. Raises ``InvariantViolation`` with one line for each
    violation.
    """
    lines = [line for part in _PARTS for line in part(k)]
    if lines:
        raise InvariantViolation("\n".join(lines))


def _goals(k: State) -> Iterator[str]:
    awaited = {
        (flight.hash, goal_id)
        for flight in k.flights.values()
        if not flight.abandoned
        for goal_id in (flight.goal, *flight.followers)
    }
    woken, timed = set(k.delayed), set(k.deadlines)
    parents = Counter(goal.parent for goal in k.goals.values() if goal.kind != VOTE)
    for goal_id, goal in k.goals.items():
        for line in (*_status(k, goal, awaited, woken, timed), *_family(k, goal, parents[goal_id])):
            yield f"{line}: {goal.story()}"
        if goal.id != goal_id or not 0 < goal_id < k.next_goal:
            yield f"goal {goal.id} stands under {goal_id}, the next is {k.next_goal}"
        if not 0 <= goal.unsent <= goal.tries <= TRIES_MAX or not 0 <= goal.throttles <= goal.broken:
            yield f"goal {goal_id}: {goal.tries} tries, {goal.broken} broken, {goal.throttles} throttled"


def _status(
    k: State, goal: Goal, awaited: set[tuple[bytes, int]], woken: set[tuple[float, int]], timed: set[tuple[float, int]]
) -> Iterator[str]:  # fmt: skip
    places = [k.open_by_kind.get(goal.kind, ()), k.parked.get(goal.lane, ()), k.called]
    offered = sum(goal.id in place for place in places)
    delayed = goal.status == Status.OPEN and goal.due_at_s > 0
    task = k.errand_of(goal)
    if task is not None and task.abandoned:
        task = None
    if offered != (goal.status == Status.OPEN and not delayed):
        yield "an open goal is offered, delayed or parked: exactly one of these; other goals are none of them"
    if goal.due_at_s > 0 and (goal.due_at_s, goal.id) not in woken:
        yield "its due time is not in the heap of delayed goals"
    if goal.status == Status.ASKED and (goal.question, goal.id) not in awaited and goal.id not in k.elections:
        yield "it is asked, and no attempt makes its call"
    waits = (goal.join is not None) + (task is not None) + (goal.expects is not None)
    if goal.status == Status.WAITING and waits != 1:
        yield "a waiting goal waits for exactly one of: a join, an errand, an external answer, its program"
    if goal.expects and goal.id not in k.expected.get(goal.expects, ()):
        yield "the external answer it waits for is not expected"
    if goal.ended > k.ended or (goal.ended and goal.status not in ENDED):
        yield "it is numbered as ended and has not ended"
    if goal.status != Status.WAITING and waits:
        yield "it does not wait and still has a join, an errand or an expected answer"
    for due_at_s in (goal.deadline_at_s, goal.timeout_at_s):
        if due_at_s > 0 and goal.status not in ENDED and (due_at_s, goal.id) not in timed:
            yield "its deadline is not in the heap of deadlines"
    if goal.status in ENDED and (goal.question or goal.assumed or goal.due_at_s or goal.timeout_at_s):
        yield "it has ended and still awaits something"
    if goal.status == Status.RESOLVED and goal.failure is not None:
        yield "it is resolved and has a failure"
    if goal.status == Status.FAILED and goal.failure is None:
        yield "it has failed without a failure"


def _family(k: State, goal: Goal, served_by: int) -> Iterator[str]:
    children = [k.goals[child] for child in goal.children if child in k.goals]
    if not len(children) == len(set(goal.children)) == len(goal.children) == served_by:
        yield f"{served_by} goals serve it, it names {goal.children}"
    if any(child.parent != goal.id or child.depth != goal.depth + 1 for child in children):
        yield "a child has another parent or a wrong depth"
    resolved = sum(child.status == Status.RESOLVED for child in children)
    failed = sum(child.status in (Status.FAILED, Status.ABANDONED) for child in children)
    if (resolved, failed) != (goal.children_resolved, goal.children_failed):
        yield f"it counts {goal.children_resolved} and {goal.children_failed}, its children are {resolved} and {failed}"
    if goal.merged_resolved > resolved or goal.merged_failed > failed:
        yield "a join has merged children that have not ended"
    if goal.status in ENDED and resolved + failed < len(children):
        yield "it has ended and a child has not"
    if goal.parent and goal.parent not in k.goals:
        yield "its parent is not in K"
    if not goal.parent and goal.depth:
        yield "a top goal has no depth"


def _indices(k: State) -> Iterator[str]:
    for name, index in (("goals_by_kind", k.goals_by_kind), ("open_by_kind", k.open_by_kind)):
        for kind, ids in index.items():
            wrong = [id_ for id_ in ids if id_ not in k.goals or k.goals[id_].kind != kind]
            if wrong:
                yield f"{name}[{kind}] names {wrong}"
    for kind, ids in k.items_by_kind.items():
        wrong = [id_ for id_ in ids if id_ not in k.items or k.items[id_].kind != kind]
        if wrong:
            yield f"items_by_kind[{kind}] names {wrong}"
    for item in k.items.values():
        read = item.observation is None or item.observation.taken_at_s >= 0
        if read != (item.id in k.items_by_kind.get(item.kind, ())):
            yield f"item {item.id} must be listed if it was read, and only then"
        if not 0 < item.id < k.next_item or any(source not in k.items for source in item.sources):
            yield f"item {item.id} has sources {item.sources}, the next is {k.next_item}"
    for name, heap in (("delayed", k.delayed), ("deadlines", k.deadlines)):
        if any(heap[i] < heap[(i - 1) // 2] for i in range(1, len(heap))):
            yield f"{name} is no heap"
    live = sum(goal.status not in ENDED for goal in k.goals.values())
    if live != k.live:
        yield f"live says {k.live}, the goals {live}"
    resting = sum(goal.status == Status.OPEN and goal.due_at_s > 0 for goal in k.goals.values())
    if resting != k.resting:
        yield f"resting says {k.resting}, the goals {resting}"
    gone = [id_ for id_ in k.reading if id_ not in k.goals or k.goals[id_].status in ENDED]
    if gone:
        yield f"goals {gone} have ended and still wait for readings"


def _flights(k: State) -> Iterator[str]:
    for key, flight in k.flights.items():
        goal = k.goals.get(flight.goal)
        if key != flight_key(flight.goal, flight.attempt):
            yield f"flight {key} is attempt {flight.attempt} of goal {flight.goal}"
        if goal is not None and not 0 < flight.attempt <= goal.tries:
            yield f"flight of attempt {flight.attempt}: {goal.story()}"
        wanted = any(
            (other := k.goals.get(id_)) is not None and other.status == Status.ASKED and other.question == flight.hash
            for id_ in (flight.goal, *flight.followers)
        )
        if not wanted and not flight.abandoned:
            yield f"attempt {flight.attempt} of goal {flight.goal} is not awaited"
    if len(k.shares) != len(k.terms.routes):
        yield f"{len(k.shares)} shares of {len(k.terms.routes)} routes"
    under_way = Counter(flight.route for flight in k.flights.values())
    probing = Counter(flight.route for flight in k.flights.values() if flight.probe)
    for place, share in enumerate(k.shares):
        if share.in_flight != under_way[place]:
            yield f"route {place} counts {share.in_flight} in flight, the flights are {under_way[place]}"
        if share.probing != probing[place]:
            yield f"route {place} counts {share.probing} probing, the probing flights are {probing[place]}"
        if share.trying and share.blocked is None:
            yield f"route {place} is being tested and is not blocked"
        if share.permits < 0 or share.starts < -1:
            yield f"route {place} has {share.permits} permits, {share.starts} starts"
    for question, key in k.asking.items():
        if key not in k.flights or k.flights[key].hash != question:
            yield f"asking names flight {key}, which asks something else"
    for key, task in k.errands.items():
        goal = k.goals.get(task.goal)
        name = f"errand {task.name} of goal {task.goal}"
        if key != flight_key(task.goal, task.attempt) or (goal is not None and task.attempt > goal.tries):
            yield f"{name} is attempt {task.attempt}, under {key}"
        if not task.abandoned and (goal is None or k.errand_of(goal) is not task):
            yield f"{name} is not awaited by its goal"
        if task.abandoned and task.charge is None:
            yield f"{name} is abandoned and is no child job"
        if task.item and task.item not in k.items:
            yield f"{name} reads item {task.item}, which is not in K"
    left = [key for key, flight in k.flights.items() if k.outcome != "partial" or not flight.submission]
    if k.finished and (left or any(task.due_at_s != HELD for task in k.errands.values())):
        yield "the job has finished with flights or errands in progress"


def _elections(k: State) -> Iterator[str]:
    voting = {vote_id for election in k.elections.values() for vote_id in election.votes}
    stray = [goal.id for goal in k.goals.values() if goal.kind == VOTE and goal.id not in voting]
    if stray:
        yield f"votes {stray} belong to no election"
    for goal_id, election in k.elections.items():
        goal = k.goals.get(goal_id)
        if goal is None or goal.status != Status.ASKED or goal.question:
            yield f"goal {goal_id} is voted on and is not ASKED, or has a question of its own"
        votes = [k.goals[vote_id] for vote_id in election.votes if vote_id in k.goals]
        if not votes or len(votes) != len(election.votes):
            yield f"goal {goal_id} names votes {election.votes}"
        if any(vote.parent != goal_id or vote.kind != VOTE or vote.status > Status.ASKED for vote in votes):
            yield f"a vote on goal {goal_id} has another parent or kind, or has ended"
        samples = [int(vote.sample) for vote in votes] + [ballot.sample for ballot in election.ballots]
        if len(set(samples)) < len(samples) or max(samples, default=0) >= election.next_sample:
            yield f"votes on goal {goal_id} are samples {samples}, the next is {election.next_sample}"
        if votes_needed([candidate.votes for candidate in election.candidates], election.k) != len(samples):
            yield f"goal {goal_id} is voted on by {len(samples)} votes, more or less than are needed"


def _submissions(k: State) -> Iterator[str]:
    seen: Counter[int] = Counter()
    for number, made in k.submissions.items():
        seen.update(made.keys)
        if made.number != number or not 0 < number < k.next_submission:
            yield f"submission {made.number} stands under {number}, the next is {k.next_submission}"
        strange = [key for key in made.keys if key in k.flights and k.flights[key].submission != number]
        if strange or not made.keys:
            yield f"submission {number} names attempts {strange} of other submissions, or none"
        if (made.stand == SubmissionStatus.OUT) > bool(made.name) or (made.stand == SubmissionStatus.RESTING) != bool(
            made.due_at_s
        ):
            yield f"submission {number} is {made.stand}, batch {made.name!r}, due at {made.due_at_s}"
        if k.finished and (
            made.stand in (SubmissionStatus.INTENDED, SubmissionStatus.RESTING) or k.outcome != "partial"
        ):
            yield f"the job has finished and submission {number} is {made.stand}"
    twice = [key for key, count in seen.items() if count > 1]
    if twice:
        yield f"attempts {twice} were submitted twice"
    for key, flight in k.flights.items():
        if flight.submission and (flight.submission not in k.submissions or key not in seen):
            yield f"attempt {flight.attempt} of goal {flight.goal} belongs to no submission {flight.submission}"


def _ledger(k: State) -> Iterator[str]:
    ledger = k.ledger
    charges = [flight.charge for flight in k.flights.values()]
    charges += [task.charge for task in k.errands.values() if task.charge is not None]
    if _sum(charges) != (ledger.reserved_nusd, ledger.reserved_tokens):
        yield f"reserved: {ledger.reserved_nusd} nUSD, {ledger.reserved_tokens} tokens; under way: {_sum(charges)}"
    lost = [missing for goal in k.goals.values() for missing in (goal.assumed or {}).values()]
    unread = [flight.charge for batch in k.cancelled.values() for flight in batch.flights]
    assumed = _sum([*unread, *(missing.charge for missing in (*lost, *k.late.values()))])
    if assumed[0] > ledger.assumed_nusd or assumed[1] > ledger.assumed_tokens:
        yield f"assumed: {ledger.assumed_nusd} nUSD, {ledger.assumed_tokens} tokens; of lost attempts alone: {assumed}"
    for name in ledger.__struct_fields__:
        if getattr(ledger, name) < 0:
            yield f"ledger: {name} is {getattr(ledger, name)}"
    if ledger.paid_calls > ledger.attempts:
        yield f"ledger: {ledger.paid_calls} calls paid of {ledger.attempts} attempts"


def _sum(charges: list[Charge]) -> tuple[int, int]:
    return sum(charge.nusd for charge in charges), sum(charge.tokens for charge in charges)


def _results(k: State) -> Iterator[str]:
    turn = next(iter(k.again), k.next_in_order)
    early = [order for order in k.held if order <= turn or (order < k.next_in_order and order not in k.again)]
    if early:
        yield f"results {early} are held though their turn, {turn}, has come"
    given = _given(k)
    if given + len(k.held) != k.tally.succeeded + k.tally.failed and not _silent_failures(k, given):
        yield f"{given} results given out, {len(k.held)} held; tally: {k.tally.succeeded} and {k.tally.failed}"
    if k.again and (list(k.again) != sorted(k.again) or turn != chained(k) or max(k.again) >= k.next_in_order):
        yield f"the results end at {k.emitted}, those of {list(k.again)[:5]} are missing, the next is {k.next_in_order}"
    if not k.failed_held.keys() <= k.held.keys():
        yield f"results {sorted(k.failed_held)} are marked as failed, held are {sorted(k.held)}"
    if bool(k.outcome) < k.finished or k.outcome not in ("", "complete", "partial", "failed", "cancelled"):
        yield f"outcome {k.outcome!r}, finished: {k.finished}"
    if k.stopping not in ("", "drain", "cancel"):
        yield f"stopping {k.stopping!r}"
    if min(k.position, k.retries, k.successes, k.emitted) < 0:
        yield f"position {k.position}, retries {k.retries}, successes {k.successes}"


def _given(k: State) -> int:
    """Results given out, and earlier results of reopened rows that are counted now."""
    rests = k.restored is not None
    if k.next_in_order:
        rows = [row for row in k.again.values() if row is not None]
        counted = sum(row in k.standing or (rests and row in k.withdrawn) for row in rows)
        return (k.next_in_order - len(k.again) if k.again else k.emitted) + counted
    return chained(k) + len(k.standing) + len(k.withdrawn) * rests


def _silent_failures(k: State, given: int) -> bool:
    """True for fewer results than ended top goals: a failed goal is counted, and only some programs emit a line for
    it.
    """
    return given + len(k.held) < k.tally.succeeded + k.tally.failed


_PARTS = (_goals, _indices, _flights, _elections, _submissions, _ledger, _results)
