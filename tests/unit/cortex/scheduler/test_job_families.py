"""A job and its child jobs together keep to what their user bounds by hand, and weigh what one job weighs."""

from __future__ import annotations

import random

import pytest

from tests.support.fake_job_channels import OTHER, ROUTE, Channel, Town, settings

LEASE_S = 15.0


def family(*names: str, limit: int = 100, concurrency: int = 12, rates=(0.0, 0.0, 0.0), routes=(ROUTE,)) -> Town:
    town = Town(settings(limit))
    town.after(1.0)
    for name in names:
        member(town, name, concurrency, rates, routes)
    return town


def member(town: Town, name: str, concurrency: int = 12, rates=(0.0, 0.0, 0.0), routes=(ROUTE,)) -> Channel:
    job = town.job(name, routes)
    job.concurrency, job.rates = concurrency, rates
    return job


def rates_of(town: Town) -> dict[str, float]:
    return {name: round(job.grants[ROUTE].requests_per_s, 6) for name, job in town.jobs.items()}


@pytest.mark.parametrize(
    ("names", "permits"),
    [
        (("j",), [12]),
        (("j", "j~1"), [6, 6]),
        (("j~1", "j~2", "j~2~7"), [4, 4, 4]),
        (("j", "j~1", "k"), [6, 6, 12]),
        (("j", "jj~1"), [12, 12]),
    ],
)
def test_they_share_the_calls_at_once_that_one_of_them_is_allowed(names, permits):
    town = family(*names)
    town.settle()
    assert list(town.permits().values()) == permits


def test_one_that_comes_gets_no_permit_before_another_has_given_it_back():
    town = family("j", "j~1")
    town.join("j")
    town.join("j~1")
    assert town.permits() == {"j": 12, "j~1": 0}
    town.deliver_all()
    assert town.permits() == {"j": 6, "j~1": 0}
    town.join("j")
    town.deliver_all()
    assert town.permits() == {"j": 6, "j~1": 6}


def test_what_one_does_not_want_the_others_have():
    town = family("j", "j~1", "j~2")
    town.job("j").wanted = 1
    town.settle()
    assert sorted(town.permits().values()) == [1, 5, 6]
    town.leave("j~1")
    town.settle()
    assert town.permits() == {"j": 1, "j~2": 11}


def test_a_bound_that_is_set_on_the_job_at_the_root_holds_for_its_children():
    town = family("j", "j~1", "j~2", rates=(6.0, 0.0, 0.0))
    town.settle()
    town.job("j").concurrency, town.job("j").rates = 3, (3.0, 0.0, 0.0)
    town.settle()
    assert town.permits() == {"j": 1, "j~1": 1, "j~2": 1}
    assert rates_of(town) == {"j": 1.0, "j~1": 1.0, "j~2": 1.0}


def test_they_share_the_rates_by_their_permits():
    town = family("j", "j~1", rates=(8.0, 800.0, 80.0))
    town.settle()
    town.join("j", 3)
    town.settle()
    assert town.permits() == {"j": 3, "j~1": 9}
    assert rates_of(town) == {"j": 2.0, "j~1": 6.0}
    grant = town.job("j").grants[ROUTE]
    assert (grant.input_tokens_per_s, grant.output_tokens_per_s) == (200.0, 20.0)


def test_a_job_without_children_is_granted_no_rate_for_what_it_keeps_by_itself():
    town = family("j", rates=(8.0, 0.0, 0.0))
    town.settle()
    assert rates_of(town) == {"j": 0.0}
    assert town.state.families == {}


def test_more_of_them_than_calls_at_once_take_turns():
    town = family("j~1", "j~2", "j~3", concurrency=1)
    had = set()
    for _ in range(4):
        town.settle()
        permits = town.permits()
        assert sum(permits.values()) == 1
        had.add(max(permits, key=lambda name: permits[name]))
        for _ in range(3):
            town.after(LEASE_S / 3)
            town.settle()
    assert had == {"j~1", "j~2", "j~3"}


def test_a_family_weighs_what_one_job_weighs():
    town = family("j", "j~1", "j~2", "k", limit=18, concurrency=100)
    town.settle(8)
    permits = town.permits()
    assert permits.pop("k") == 9
    assert permits == {"j": 3, "j~1": 3, "j~2": 3}


def test_in_a_large_pool_they_share_too():
    town = family(*(f"k{place}" for place in range(70)), limit=1_000, concurrency=2)
    town.settle()
    for place in range(30):
        member(town, f"j~{place}")
        town.join(f"j~{place}")
        assert sum(town.permits()[name] for name in town.jobs if name.startswith("j")) <= 12
    for _ in range(20):
        town.after(0.5)
        town.settle(1)
    assert sum(town.permits()[name] for name in town.jobs if name.startswith("j")) == 12


@pytest.mark.parametrize("seed", range(60))
def test_together_they_never_may_use_more_than_their_bound_whatever_becomes_of_messages(seed):
    """Grants are lost, doubled and late; jobs come, go, want more or less, and move between routes.

    Probes of a half open route come on top: were there only room for what the others have, it would never be tried.
    """
    chance = random.Random(seed)
    names = ("j", "j~1", "j~2", "j~2~1", "k")
    town = family(concurrency=10, limit=30)
    for _ in range(150):
        what, name = (
            chance.choice("join join join want post post lose double begin end leave late time".split()),
            chance.choice(names),
        )
        job = member(town, name, 10, routes=(ROUTE, OTHER))
        if what in ("join", "want"):
            job.wanted = chance.randrange(20) if what == "want" else job.wanted
            town.join(name, answered=chance.random() < 0.8)
        elif what in ("post", "double", "lose") and town.post:
            place = chance.randrange(len(town.post))
            if what == "double":
                town.post.append(town.post[place])
            elif what == "lose":
                town.post.pop(place)
            else:
                town.deliver(place)
        elif what == "begin":
            job.begin(chance.choice(job.routes), town.at_s, chance.randrange(5))
        elif what == "end":
            for flights in job.flights.values():
                del flights[: chance.randrange(5)]
        elif what == "leave" and not any(job.flights.values()) and name in town.state.jobs:
            town.post = [grant for grant in town.post if grant.job != name]
            town.leave(name)
        elif what == "late":
            town.after(chance.random())
        elif chance.random() < 0.1 and ROUTE in town.state.routes and town.breaker().state == "closed":
            town.trip()
        using = [
            sum(town.may_use(each, route) for route in each.routes) for each in town.jobs.values() if each.job != "k"
        ]
        probes = 3 if town.state.routes and town.breaker().generation else 0
        assert sum(min(10, each) for each in using) <= 10 + probes, (seed, what, name)  # each keeps to it by itself
