"""Votes: one question is asked repeatedly until an answer is ahead of every other by k.

A vote is a goal below the goal that is voted on: it is asked, retried, hedged and moved to a fallback like any other,
and leaves memory once it is counted. A round asks for exactly the votes still needed and is tallied when all of them
are in, in the order of their samples, so the order of arrival changes nothing. A reply with a red flag is discarded,
never repaired: its vote takes the next sample of the question. See ``policies.decisions.voting``.
"""

from __future__ import annotations

from operator import attrgetter

from cortex.calls.request import fast_request, rendered
from cortex.goals.lifecycle import begin_timeout, drop_vote, leave_votes, set_status
from cortex.state import commands
from cortex.state.changes import Ask, Vote
from cortex.state.program import Program
from cortex.state.state import Goal, State, Status
from cortex.values.election import VOTE, Ballot, Candidate, Election
from cortex.values.plain_values import as_bytes
from cortex.values.prompt import text_frame
from cortex.values.reply import Malformed, Reply, finished
from policies.decisions.voting import leader, votes_needed

Out = list[commands.Command]


def begin(k: State, goal: Goal, change: Vote, out: Out) -> None:
    """Open an election on this open goal's question; select asks its first round.

    Raises ``DoesNotFit`` if no prompt fits M, or ``ValueError`` for bounds that make no sense, with nothing changed.
    """
    if change.k < 1 or change.samples_max < 0:
        raise ValueError(f"k must be 1 or more, samples_max 0 or more; not {change.k} and {change.samples_max}")
    if not goal.sample.isdecimal():
        raise ValueError(f"sample {goal.sample!r} has no next number")
    limits = k.terms.limits
    output_tokens_max = change.output_tokens_max or limits.output_tokens_max
    lane = k.terms.roles.get(change.role, 0)
    tokens_max = k.terms.prompt_tokens_max(output_tokens_max, k.terms.lane_places(lane)[0])
    ask = Ask(goal, change.prompt, change.body, output_tokens_max, change.params)
    made = None
    if not lane and k.on_decision is None:
        frame = text_frame(k.terms.route.model, output_tokens_max)
        made = fast_request(k, ask, output_tokens_max, tokens_max, frame)
    body, constructor, text_bytes, bound = made or rendered(k, ask, output_tokens_max, tokens_max, lane)
    if k.next_goal - 1 + change.k > limits.goals_max:
        raise ValueError(f"more than {limits.goals_max} goals in one job")
    first = int(goal.sample)
    end = first + max(change.k, change.samples_max or 20 * change.k + 20)
    set_status(k, goal, Status.ASKED)
    goal.constructor = constructor
    if limits.goal_timeout_s is not None:
        begin_timeout(k, goal)
    election = Election(change.k, body, text_bytes, bound, output_tokens_max, first, end, role=change.role)
    k.elections[goal.id] = election
    _next_round(k, goal, election, change.k, out)


def _next_round(k: State, goal: Goal, election: Election, needed: int, out: Out) -> None:
    number, sample, depth = k.next_goal, election.next_sample, goal.depth + 1
    ready = k.open_by_kind.setdefault(VOTE, {})
    for vote_id in range(number, number + needed):
        vote = k.goals[vote_id] = Goal(VOTE, parent=goal.id, id=vote_id, depth=depth, sample=str(sample))
        sample += 1
        election.votes.append(vote_id)
        ready[vote_id] = None
        if type(out) is commands.StepCommands:
            out.made.append(vote)
    k.next_goal, election.next_sample = number + needed, sample
    k.live += needed
    if k.on_decision is not None:
        k.on_decision(
            goal.id, "round", {"votes": tuple(election.votes), "k": election.k, "samples_end": election.samples_end}
        )


def wanted(k: State, calls_max: int) -> list[Ask]:
    """Return the calls of open votes, longest open first, ``calls_max`` at most."""
    asks: list[Ask] = []
    for vote in k.open(VOTE):
        if len(asks) == calls_max:
            break
        election = k.elections[vote.parent]
        made = (election.body, k.goals[vote.parent].constructor, election.text_bytes, election.tokens_bound)
        asks.append(Ask(vote, output_tokens_max=election.output_tokens_max, made=made, role=election.role))
    return asks


def cast(k: State, program: Program, vote: Goal, reply: Reply, out: Out) -> tuple[Goal, Reply | None] | None:
    """Count a reply. If it decides the election, return the goal voted on and the winner's first reply (None: no
    winner).

    Raises ``Malformed`` for a red flag, and whatever the program's ``ballot`` raises.
    """
    goal, election = k.goals[vote.parent], k.elections[vote.parent]
    if not finished(reply):
        raise Malformed(f"over-long: it stopped at {reply.stop_reason}")
    data = as_bytes(program.ballot(k, goal, reply))
    election.ballots.append(Ballot(int(vote.sample), data, reply))
    if k.on_decision is not None:
        k.on_decision(vote.id, "ballot", {"said": data, "open": len(election.votes) - 1})
    election.votes.remove(vote.id)
    k.tally.votes += 1
    drop_vote(k, vote, out)
    if election.votes:
        return None
    came = election.ballots
    if len(came) > 1:
        came.sort(key=_sample)
    for ballot in came:
        _count(election, ballot)
    came.clear()
    counts = [candidate.votes for candidate in election.candidates]
    needed = votes_needed(counts, election.k)
    if k.on_decision is not None:
        k.on_decision(goal.id, "tally", {"candidates": election.candidates, "k": election.k, "needed": needed})
    if needed and election.next_sample + needed <= election.samples_end:
        _next_round(k, goal, election, needed, out)
        return None
    winner = None if needed else election.candidates[leader(counts)].reply
    leave_votes(k, goal, out)
    return goal, winner


_sample = attrgetter("sample")


def _count(election: Election, ballot: Ballot) -> None:
    for candidate in election.candidates:
        if candidate.answer == ballot.answer:
            candidate.votes += 1
            return
    election.candidates.append(Candidate(ballot.answer, 1, ballot.reply))


def called_off(k: State, vote: Goal, out: Out) -> Goal:
    """End the election of a vote that cannot be had, without a winner. Return the goal that was voted on."""
    goal = k.goals[vote.parent]
    leave_votes(k, goal, out)
    return goal
