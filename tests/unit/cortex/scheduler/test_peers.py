"""Servers of one model in the scheduler: a job's demand is divided among them, by limit, speed and health."""

from __future__ import annotations

from tests.support.fake_job_channels import Town, settings

ONE, TWO, THREE = (f"http://gpu-{name}||m" for name in ("one", "two", "three"))
FAR = "http://far||n"


def town_of(limit: int = 10, wanted: int = 100, routes: tuple[str, ...] = (ONE, TWO, THREE), peers: int = 2) -> Town:
    """A job at three servers; each pool keeps the limit."""
    made = Town(settings(limit))
    made.after(1.0)
    made.job("a", routes, wanted).peers = peers
    made.join("a")
    made.settle()
    return made


def granted(t: Town, job: str = "a") -> list[int]:
    """Permits of a job on its routes."""
    return [t.jobs[job].permits(route, t.at_s) for route in t.jobs[job].routes]


def wanted(t: Town, job: str = "a") -> list[int]:
    return [t.state.jobs[job].holds[route].want for route in t.jobs[job].routes]


def test_each_server_gives_its_whole_limit_where_more_is_wanted() -> None:
    t = town_of()
    assert granted(t) == [10, 10, 10]
    assert wanted(t) == [34, 33, 33], "more is wanted of each, so that each limit is searched for"


def test_a_job_holds_no_more_than_it_wants_over_all_servers() -> None:
    t = town_of(wanted=12)
    assert granted(t) == [4, 4, 4]


def test_fallbacks_wait_until_no_server_is_left() -> None:
    t = town_of(routes=(ONE, TWO, FAR), peers=1)
    assert granted(t) == [10, 10, 0]
    t.trip(ONE)
    t.settle()
    assert granted(t)[1:] == [10, 0]
    t.trip(TWO)
    t.settle()
    assert granted(t)[2] == 10


def test_a_server_whose_breaker_opens_gives_its_part_to_the_others_and_gets_it_back() -> None:
    t = town_of(wanted=12)
    t.trip(TWO)
    t.settle()
    assert granted(t) == [6, 0, 6]
    t.after(1.5)
    t.settle()
    breaker = t.breaker(TWO)
    assert breaker.state == "half-open"
    assert t.jobs["a"].grants[TWO].starts == 3, "it is probed, although others are in order"
    t.report(TWO, breaker.generation, answered=3)
    t.settle()
    assert granted(t) == [4, 4, 4]


def test_a_throttled_server_gives_its_part_to_the_others_until_its_wait_is_over() -> None:
    t = town_of(wanted=12)
    t.report(TWO, begun=4, failed={"throttled": 4}, retry_after_s=30.0)
    t.settle()
    assert granted(t) == [6, 0, 6]
    for _ in range(7):
        t.after(5.0)
        t.settle()
    assert granted(t)[1] > 0


def test_the_faster_servers_have_more_of_a_job_that_wants_less_than_all_may_have() -> None:
    t = town_of(limit=100, wanted=90)
    for _ in range(3):
        t.after(1.1)
        for route, seconds in ((ONE, 1.0), (TWO, 2.0), (THREE, 2.0)):
            t.report(route, begun=16, answered=16, latency_s=16 * seconds, samples=((seconds, 100),) * 16)
    t.settle()
    assert granted(t) == [60, 15, 15]


def test_jobs_share_each_server() -> None:
    t = town_of()
    t.job("b", (ONE, TWO, THREE), 100).peers = 2
    t.join("b")
    t.settle()
    assert granted(t) == [5, 5, 5]
    assert granted(t, "b") == [5, 5, 5]


def test_a_small_job_leaves_to_a_large_one_what_it_does_not_use() -> None:
    t = town_of(wanted=3)
    t.job("b", (ONE, TWO, THREE), 100).peers = 2
    t.join("b")
    t.settle()
    assert granted(t) == [1, 1, 1]
    assert granted(t, "b") == [9, 9, 9]
