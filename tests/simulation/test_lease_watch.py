"""Watch over leases: what it counts as under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cortex.scheduler.protocol import ChannelJoined
from cortex.scheduler.reports import Claim, Claims, Grant
from tests.simulation.invariants_leases import LeasesWatch
from tests.simulation.lease_books import Out

CALLS = {("j", 1, 1): 50.0, ("j", 2, 1): 50.0, ("j", 3, 1): 10.0, ("k", 1, 1): 50.0}
"""Calls of two jobs, by the latest time at which they end."""


def at_branch(calls: tuple[tuple[str, int, int], ...] = (), ended: tuple[tuple[str, int, int], ...] = ()) -> Any:
    """A world whose one branch makes these calls, and holds the outcomes of those that have ended."""
    made = [SimpleNamespace(job=job, call=SimpleNamespace(goal=goal, attempt=attempt)) for job, goal, attempt in calls]
    held: dict[str, dict[tuple[int, int], None]] = {job: {} for job, *_ in ended}
    for job, *key in ended:
        held[job][key[0], key[1]] = None
    branch = SimpleNamespace(seat=SimpleNamespace(_actor=SimpleNamespace(_under=made, _outboxes=held)))
    return SimpleNamespace(loop=None, lives={"branch:0": branch})


def watching(world: Any) -> LeasesWatch:
    watch = LeasesWatch(None, world)  # type: ignore[arg-type]
    watch._routes = {"m": Out("pool"), "other": Out("another")}
    watch._routes["m"].calls, watch._routes["other"].calls = dict(CALLS), dict(CALLS)
    return watch


@pytest.mark.parametrize(
    ("ended", "calls", "count"),
    [((), (), 3), (("j",), (), 1), (("j",), (("j", 2, 1),), 2), (("j", "k"), (), 0), (("j", "k"), (("k", 1, 1),), 1)],
)
def test_of_a_job_whose_channel_has_ended_those_calls_count_that_a_branch_has_under_way(
    ended: tuple[str, ...], calls: tuple[tuple[str, int, int], ...], count: int
) -> None:
    watch = watching(at_branch(calls))
    watch._orphaned = set(ended)
    assert watch._pruned("pool", 20.0) == count


@pytest.mark.parametrize(("ended", "count"), [((), 3), ((("j", 2, 1),), 2), ((("j", 2, 2), ("k", 2, 1)), 3)])
def test_a_call_is_over_once_a_branch_has_its_outcome(ended: tuple[tuple[str, int, int], ...], count: int) -> None:
    assert watching(at_branch(ended=ended))._pruned("pool", 20.0) == count


class TwoCortexes:
    """A job that two cortexes know: ``old`` granted it something, then was thought dead, and ``new`` took its place."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.jobs: dict[str, Any] = {}
        self.watch = LeasesWatch(self, SimpleNamespace(loop=SimpleNamespace(time=lambda: 1.0), lives={}))  # type: ignore[arg-type]
        self.say = self.said.append
        self.channel = object()
        self.watch._owner = {"j": self.channel}
        self.claims = Claims("j", 1, "old", 1, 4, (Claim("m", "pool", 0, 3),))
        self.watch._granter = {"j": "old"}

    def sent(self, **other: Any) -> None:
        self.claims = msgspec.structs.replace(self.claims, **other)
        self.watch.sent(self.channel, "cortex", "join", (msgspec.msgpack.encode(self.claims),))

    def known(self, claims: Claims) -> None:
        """The claims have reached the new cortex."""
        state = SimpleNamespace(cortex="new", jobs={"j": None})
        self.watch._joined(state, ChannelJoined(1.0, claims), 1.0)  # type: ignore[arg-type]

    def answered(self, cortex: str) -> None:
        grant = Grant("j", "m", cortex, 9, 0, for_s=15.0)
        message = SimpleNamespace(life=self.channel, sent_s=1.0)
        self.watch.answered(message, msgspec.msgpack.encode((grant,)))

    def counted(self) -> bool:
        """Return whether a permit that the old cortex grants now counts."""
        pool = SimpleNamespace(allowed=SimpleNamespace(concurrency=4))
        state = SimpleNamespace(routes={"m": SimpleNamespace(pool="pool")}, pools={"pool": pool})
        self.watch._outlived(state, [Grant("j", "m", "old", 10, 1)], 1.0)  # type: ignore[arg-type, list-item]
        held = self.watch._held.get(("j", "m"))
        return held is not None and ("old", 10, 1) in held.granted


def test_a_grant_of_the_past_counts_for_a_job_that_has_asked_nobody_else() -> None:
    assert TwoCortexes().counted()


def test_it_counts_while_the_successor_does_not_know_the_claim() -> None:
    both = TwoCortexes()
    both.sent()
    assert both.counted(), "the old cortex may still answer"


@pytest.mark.parametrize("role", [False, True])
def test_it_does_not_count_while_the_successors_answer_is_awaited(role: bool) -> None:
    both = TwoCortexes()
    both.sent(others=(msgspec.structs.replace(both.claims, job="j~judge"),) if role else ())
    both.known(both.claims)
    assert not both.counted(), "the job puts it aside, and drops it"
    both.answered("new")
    assert not both.counted(), "the job listens to the new one"


def test_a_claim_that_was_answered_before_says_nothing() -> None:
    both = TwoCortexes()
    both.sent()
    both.answered("old")
    both.known(both.claims)
    assert both.counted()


def test_nor_does_an_earlier_one_than_the_one_that_is_awaited() -> None:
    both = TwoCortexes()
    both.sent()
    early = both.claims
    both.answered("old")
    both.sent(wanted=2)
    both.known(early)
    assert both.counted()


@pytest.mark.parametrize(
    ("outcome", "epoch", "count"), [("", 1, 3), ("partial", 1, 0), ("", 2, 3), ("partial", 2, 0), ("partial", 0, 3)]
)
@pytest.mark.parametrize("name", ["j", "j~judge"])
def test_a_claim_that_arrives_after_the_end_of_its_job_holds_nothing(
    name: str, outcome: str, epoch: int, count: int
) -> None:
    """One of a later epoch than the end is of another run."""
    both = TwoCortexes()
    both.jobs = {"j": SimpleNamespace(k=SimpleNamespace(outcome=outcome, epoch=epoch))}
    claims = msgspec.structs.replace(both.claims, job=name, claims=(Claim("m", "pool", 3, 3),))
    state = SimpleNamespace(cortex="old", jobs={name: None})
    both.watch._joined(state, ChannelJoined(1.0, claims), 1.0)  # type: ignore[arg-type]
    assert both.watch._total("pool", 1.0) == count
