"""Leases: shares that are fair, of permits that no two jobs hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.leases import LEASE_S, Grant, Joined, Leases, Left, Passed, Started, fair_shares, step

CLAIMS = st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 2.0, 3.0])), max_size=8)


@pytest.mark.parametrize(
    ("claims", "limit", "shares"),
    [
        ([], 10, []),
        ([(5, 1.0)], 10, [5]),
        ([(50, 1.0)], 10, [10]),
        ([(50, 1.0), (50, 1.0)], 10, [5, 5]),
        ([(50, 1.0), (50, 1.0)], 11, [6, 5]),
        ([(50, 3.0), (50, 1.0)], 12, [9, 3]),
        ([(2, 1.0), (50, 1.0), (50, 1.0)], 12, [2, 5, 5]),
        ([(2, 9.0), (50, 1.0)], 12, [2, 10]),
        ([(9, 1.0)] * 4, 3, [1, 1, 1, 0]),
        ([(9, 1.0)] * 3, 0, [0, 0, 0]),
    ],
)
def test_shares(claims, limit, shares):
    assert fair_shares(claims, limit) == shares


@given(CLAIMS, st.integers(0, 60))
def test_shares_are_max_min_fair(claims, limit):
    """None is above what is wanted or the limit; nothing is left where somebody wants it; and nobody can be given one
    more without taking it from someone who has, for its weight, no more."""
    shares = fair_shares(claims, limit)
    wanted = [claim for claim, _ in claims]
    assert all(0 <= share <= want for share, want in zip(shares, wanted, strict=True))
    assert sum(shares) == min(limit, sum(wanted))
    if limit >= len(claims):
        assert all(share >= 1 for share in shares)
    for i, (want, weight) in enumerate(claims):
        if shares[i] == want:
            continue
        for j, (_, other) in enumerate(claims):
            if shares[j] > 1:
                assert (shares[j] - 1) / other <= shares[i] / weight + 1e-9


@given(CLAIMS, st.integers(0, 60))
def test_more_permits_take_nothing_from_anyone(claims, limit):
    assert all(a <= b for a, b in zip(fair_shares(claims, limit), fair_shares(claims, limit + 1), strict=True))


# -- leases ------------------------------------------------------------------------------------------------------------


def join(leases: Leases, at_s: float, job: str, wanted: int = 10, held: int = 0, weight: float = 1.0) -> dict[str, int]:
    return {grant.job: grant.permits for grant in step(leases, Joined(at_s, job, "pool", wanted, held, weight))}


def test_a_lone_job_gets_all_that_it_wants():
    leases = Leases()
    assert step(leases, Joined(5.0, "a", "pool", 10, 0)) == [Grant("a", 10, 5.0 + LEASE_S)]


def test_a_second_job_gets_what_the_first_has_given_back():
    leases = Leases()
    join(leases, 0.0, "a")
    assert join(leases, 1.0, "b") == {"a": 5, "b": 0}
    assert join(leases, 2.0, "b") == {"b": 0}, "the first one is told once, and has not answered"
    assert join(leases, 3.0, "a", held=5) == {"a": 5, "b": 5}


def test_a_holder_that_shrinks_slowly_keeps_what_it_has_in_flight():
    leases = Leases()
    join(leases, 0.0, "a")
    join(leases, 1.0, "b")
    assert join(leases, 2.0, "a", held=8) == {"a": 5, "b": 2}
    assert join(leases, 3.0, "a", held=5) == {"a": 5, "b": 5}


def test_weight_is_priority():
    leases = Leases()
    join(leases, 0.0, "a", weight=1.0)
    join(leases, 0.0, "b", weight=4.0)
    assert join(leases, 1.0, "a", held=2, weight=1.0)["b"] == 8


def test_the_share_of_one_that_left_is_free_at_once():
    leases = Leases()
    join(leases, 0.0, "a")
    join(leases, 0.0, "b")
    assert step(leases, Left(1.0, "a")) == [Grant("b", 10, LEASE_S)]
    assert step(leases, Left(1.0, "nobody")) == []


def test_the_share_of_one_that_is_silent_is_free_when_its_lease_has_expired():
    leases = Leases()
    join(leases, 0.0, "a")
    join(leases, 10.0, "b")
    assert step(leases, Passed(LEASE_S - 0.1)) == []
    assert step(leases, Passed(LEASE_S)) == [Grant("b", 10, 10.0 + LEASE_S)]


def test_renewing_keeps_the_lease():
    leases = Leases()
    for at_s in (0.0, 10.0, 20.0, 30.0):
        assert join(leases, at_s, "a", held=10) == {"a": 10}
    assert step(leases, Passed(30.0 + LEASE_S - 0.1)) == []
    assert list(leases.holders) == ["a"]


def test_pools_are_apart():
    leases = Leases()
    step(leases, Joined(0.0, "a", "one", 10, 0))
    assert step(leases, Joined(0.0, "b", "two", 7, 0)) == [Grant("b", 7, LEASE_S)]


def test_a_job_that_changes_its_pool_frees_its_share_of_the_old_one():
    leases = Leases()
    join(leases, 0.0, "a")
    join(leases, 0.0, "b")
    grants = step(leases, Joined(1.0, "a", "other", 10, 0))
    assert {(grant.job, grant.permits) for grant in grants} == {("a", 10), ("b", 10)}


def test_a_message_that_is_still_on_its_way_counts():
    """b was told ten, then five, and had heard neither when it spoke: it may yet come to use ten for a while."""
    leases = Leases()
    join(leases, 0.0, "a")
    join(leases, 0.0, "b")
    join(leases, 1.0, "a", held=5)
    assert step(leases, Left(2.0, "a")) == [Grant("b", 10, LEASE_S)]
    assert join(leases, 2.1, "c") == {"b": 5, "c": 0}
    assert join(leases, 2.2, "b", held=5) == {"b": 5}
    assert join(leases, 2.3, "c") == {"c": 0}
    assert join(leases, 2.4, "b", held=5) == {"b": 5, "c": 5}, "it has had the time to hear, and holds no more"


# -- a cortex that came back -------------------------------------------------------------------------------------------


def test_after_a_restart_nothing_is_granted_twice():
    """Its memory is gone; who held what is told again, and until all had the time to tell it nothing new is given."""
    leases = Leases()
    step(leases, Started(100.0))
    assert join(leases, 101.0, "new") == {"new": 0}
    assert join(leases, 102.0, "old", held=6) == {"old": 5}
    assert join(leases, 103.0, "new") == {"new": 0}
    assert join(leases, 107.0, "old", held=5) == {"old": 5}
    assert join(leases, 110.0, "new") == {"new": 0}
    assert step(leases, Passed(100.0 + LEASE_S)) == [Grant("new", 5, 110.0 + LEASE_S)]


def test_after_the_silence_there_is_no_more_waiting():
    leases = Leases()
    step(leases, Started(100.0))
    assert join(leases, 100.0 + LEASE_S, "new") == {"new": 10}


@pytest.mark.parametrize(("wanted", "weight"), [(0, 1.0), (-1, 1.0), (5, 0.0), (5, -2.0)])
def test_a_claim_that_makes_no_sense(wanted, weight):
    with pytest.raises(ValueError, match=f"a: wants {wanted} permits at weight {weight}"):
        join(Leases(), 0.0, "a", wanted=wanted, weight=weight)


# -- a cluster ---------------------------------------------------------------------------------------------------------

JOBS = ("a", "b", "c")
LIMIT = 12


class Cluster:
    """Jobs that use every permit they hold, a cortex that may die, and messages to jobs that travel for a while."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.leases = Leases()
        self.permits = dict.fromkeys(JOBS, 0)
        self.in_flight = dict.fromkeys(JOBS, 0)
        self.until_s = dict.fromkeys(JOBS, 0.0)
        self.post: list[Grant] = []

    def tell(self, grants: list[Grant], asker: str = "") -> None:
        for grant in grants:
            if grant.job == asker:
                self.hear(grant)
                self.until_s[asker] = grant.until_s
            else:
                self.post.append(grant)

    def hear(self, grant: Grant) -> None:
        self.permits[grant.job] = grant.permits

    def do(self, what: str, job: str) -> None:
        if what == "join":
            held = max(self.permits[job], self.in_flight[job])
            self.tell(step(self.leases, Joined(self.at_s, job, "pool", LIMIT, held)), job)
        elif what == "leave":
            self.permits[job] = self.in_flight[job] = 0
            self.post = [grant for grant in self.post if grant.job != job]
            self.tell(step(self.leases, Left(self.at_s, job)))
        elif what == "ask":
            self.in_flight[job] = max(self.in_flight[job], self.permits[job])
        elif what == "answered":
            self.in_flight[job] = max(0, self.in_flight[job] - 3)
        elif what == "post" and self.post:
            self.hear(self.post.pop(0))
        elif what == "time":
            self.at_s += LEASE_S / 6
            self.tell(step(self.leases, Passed(self.at_s)))
        elif what == "cortex dies":
            self.leases = Leases()
            step(self.leases, Started(self.at_s))
        self.renew()

    def renew(self) -> None:
        """Every job that holds a lease renews it in time, as channels do, and hears its post before."""
        for job in JOBS:
            if self.permits[job] and self.at_s >= self.until_s[job] - LEASE_S / 2:
                for grant in [grant for grant in self.post if grant.job == job]:
                    self.post.remove(grant)
                    self.hear(grant)
                held = max(self.permits[job], self.in_flight[job])
                self.tell(step(self.leases, Joined(self.at_s, job, "pool", LIMIT, held)), job)


DEEDS = st.tuples(
    st.sampled_from(["join", "join", "leave", "ask", "ask", "answered", "post", "post", "time", "time", "cortex dies"]),
    st.sampled_from(JOBS),
)


@given(st.lists(DEEDS, max_size=60))
@settings(max_examples=300)
def test_no_permit_is_held_twice_whatever_dies_and_however_slow_the_post(deeds):
    cluster = Cluster()
    for what, job in deeds:
        cluster.do(what, job)
        assert sum(cluster.in_flight.values()) <= LIMIT, (what, job)
    for _ in range(20):  # and in the end all who ask have their share
        for job in JOBS:
            cluster.do("answered", job)
            cluster.do("join", job)
        while cluster.post:
            cluster.do("post", "")
        cluster.do("time", "")
    assert sorted(cluster.permits.values()) == [LIMIT // 3] * 3
