"""Pools and routes: limits by hand, breakers, probes, fallbacks and blocked accounts, for the whole cluster."""

from __future__ import annotations

import itertools

import pytest

from cortex.scheduler.protocol import AllRejoined, BreakerMoved, PoolCapped
from cortex.scheduler.reports import BreakerStanding, ProgressReport
from cortex.scheduler.state import SchedulerSettings
from cortex.scheduler.step import report_answer
from policies.failures import breaker
from policies.failures.breaker import BreakerState
from policies.limits import queueing
from policies.limits.limit import PoolCaps, RateLimits, ReportedBucket
from policies.limits.told_queue import TOLD_S
from tests.support.fake_job_channels import OTHER, ROUTE, TIMEOUT_S, Town, out, pushes, told, town

# -- by hand -----------------------------------------------------------------------------------------------------------


def test_a_cap_by_hand_holds_for_all_and_says_who():
    t = town()
    t.join("a")
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(concurrency=4)))
    (push,) = t.post
    assert (push.permits, push.why) == (4, "ann capped this pool at 4 calls at once")
    assert t.state.pools[ROUTE].caps == PoolCaps(concurrency=4, who="ann", at_s=t.at_s)
    t.deliver_all()
    t.settle()
    assert t.permits() == {"a": 4}
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps()))
    assert pushes(t.post) == {"a": 10}


def test_rates_by_hand_are_split_like_the_permits():
    t = town()
    t.join("a")
    t.join("b", 5)
    t.settle()
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(requests_per_min=600.0, input_tokens_per_min=6000.0)))
    t.settle()
    facts = {name: job.grants[ROUTE] for name, job in t.jobs.items()}
    assert sum(grant.requests_per_s for grant in facts.values()) == pytest.approx(10.0)
    assert facts["a"].requests_per_s == pytest.approx(5.0)
    assert facts["b"].input_tokens_per_s == pytest.approx(50.0)
    t.after(1.0)
    t.join("b", 0)
    t.after(0.3)
    t.deliver_all()
    assert t.jobs["a"].grants[ROUTE].requests_per_s == pytest.approx(10.0), "all of it, as soon as it is free"


def test_the_largest_headroom_of_any_job_is_kept_free():
    t = town()
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(requests_per_min=600.0)))
    t.join("a")
    assert t.state.pools[ROUTE].headroom == 0.0
    t.job("b").headroom = 0.25
    t.join("b")
    assert t.state.pools[ROUTE].headroom == 0.25
    t.leave("b")
    assert t.state.pools[ROUTE].headroom == 0.0


def test_a_cap_of_nothing_that_is_known():
    t = town()
    with pytest.raises(ValueError, match="there is no pool or route called opus"):
        t.tell(PoolCapped(t.at_s, "ann", "opus", PoolCaps(concurrency=4)))


def test_who_set_a_rate_is_told_to_all_whom_it_binds():
    t = town()
    t.join("a", 3)
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(requests_per_min=600.0, output_tokens_per_min=900.0)))
    text = "paced by ann: 600 requests a minute, 900 output tokens a minute for all jobs of this pool"
    assert [grant.why for grant in t.post] == [text]
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(concurrency=8)))
    assert t.post[-1].why == ""


# -- what branches are told of breakers --------------------------------------------------------------------------------


def answer(t: Town):
    """Return the answer to a report that says nothing."""
    t.report()
    return report_answer(t.state, ProgressReport("branch:0", "b1", "node", t.number, "idle"))


def test_a_branch_is_told_of_every_breaker_that_is_not_closed():
    t = town()
    t.job("a", (ROUTE, OTHER))
    t.join("a")
    assert answer(t).breakers == ()
    t.trip()
    (told,) = answer(t).breakers
    assert told == BreakerStanding(ROUTE, BreakerState.OPEN, 1, pytest.approx(t.breaker().until_s - t.at_s))
    t.trip(OTHER)
    assert [standing.route for standing in answer(t).breakers] == [ROUTE, OTHER]
    t.after(1.0)
    assert answer(t).breakers == tuple(BreakerStanding(name, BreakerState.HALF_OPEN, 2) for name in (ROUTE, OTHER))
    t.report(generation=2, answered=3)
    assert [standing.route for standing in answer(t).breakers] == [OTHER]
    assert answer(t).cortex == t.state.cortex


def test_a_restarted_scheduler_says_nothing_of_breakers_until_it_knows_them():
    t = town()
    t.join("a")
    t.trip()
    t.settle()
    t.start(again=True)
    assert answer(t).breakers is None
    t.join("a")
    t.tell(AllRejoined(t.at_s))
    assert [standing.state for standing in answer(t).breakers] == ["open"], "a channel has brought it"


def test_probes_that_were_not_sent_make_room_for_others_and_are_counted():
    t = town()
    t.join("a")
    t.settle()
    t.trip()
    t.settle()
    t.after(1.0)
    t.deliver_all()
    generation, own = t.breaker().generation, t.breaker()
    assert breaker.probes_wanted(t.state.settings.breaker, own, t.at_s) == 0
    t.report(generation=generation, given_back=2)
    assert (own.state, t.state.routes[ROUTE].given_back) == ("half-open", 2)
    t.report(generation=0, given_back=5)
    assert t.state.routes[ROUTE].given_back == 7
    assert own.probed > 3, "the two are granted anew, those of before the opening were no probes"


# -- the breaker of a route --------------------------------------------------------------------------------------------


def test_while_the_breaker_is_open_nothing_is_leased():
    t = town()
    t.join("a")
    t.join("b")
    t.settle()
    t.trip()
    assert BreakerMoved(f"route:{ROUTE}", "closed", "open", "30 of 30 in 0 s failed") in t.commands
    assert pushes(t.post) == {"a": 0, "b": 0}
    assert t.post[0].why == "the breaker is open: 30 of 30 in 0 s failed"
    assert t.post[0].again_s == pytest.approx(t.breaker().until_s - t.at_s) and t.post[0].again_s > 0.5
    t.deliver_all()
    t.settle()
    assert t.permits() == {"a": 0, "b": 0}


def test_at_most_so_many_probes_are_out_and_so_many_answers_decide():
    t = town()
    for name in "abc":
        t.join(name)
    t.settle()
    t.trip()
    t.settle()
    commands = t.after(1.0)
    probes = out(commands)
    assert sum(starts for _, starts in probes.values()) == 3
    t.deliver_all()
    generation = t.breaker().generation
    for _ in range(2):
        t.report(generation=generation, answered=1)
        t.settle()
    assert t.permits().values(), "two answers do not decide"
    assert t.breaker().state == "half-open"
    t.report(generation=generation, answered=1)
    assert t.breaker().state == "closed"
    t.settle()
    assert sorted(t.permits().values()) == [3, 3, 4], "then all is as before"
    assert {job.starts[ROUTE] for job in t.jobs.values()} == {-1}


def test_a_failed_probe_opens_it_again_and_results_of_before_decide_nothing():
    t = town()
    t.join("a")
    t.trip()
    t.after(1.0)
    t.report(generation=0, answered=50)
    assert t.breaker().state == "half-open"
    t.report(generation=t.breaker().generation, failed={"overloaded": 1})
    assert t.breaker().state == "open"
    assert out(t.after(0.5)) == {}


def test_a_renewal_while_a_probe_is_out_gives_no_second_one():
    t = town()
    t.join("a")
    t.trip()
    t.settle()
    t.after(1.0)
    t.deliver_all()
    t.jobs["a"].begin(ROUTE, t.at_s)
    assert len(t.jobs["a"].flights[ROUTE]) == 3
    for _ in range(5):
        t.join("a")
        t.after(0.1)
        assert t.jobs["a"].begin(ROUTE, t.at_s) == 0


def test_leave_for_probes_that_is_not_used_is_taken_back_and_given_to_another():
    t = town()
    t.join("a")
    t.join("b", 1)
    t.trip()
    t.settle()
    assert list(out(t.after(1.0))) == ["a"], "to the one that wants most"
    t.deliver_all()
    t.after(4.0)
    t.join("a", 0)
    assert told(t, "a") == (0, 0)
    t.join("b", 5)
    t.join("a", 0)
    assert out(t.post) == {"b": (3, 3)}


def test_a_lost_probe_is_replaced_after_its_deadline():
    t = town()
    t.join("a")
    t.join("b")
    t.trip()
    t.settle()
    assert len(out(t.after(1.0))) == 1
    t.deliver_all()
    (prober,) = (job for job in t.jobs.values() if job.starts[ROUTE] > 0)
    prober.begin(ROUTE, t.at_s)
    other = next(name for name in t.jobs if name != prober.job)
    deadline_s = 1.0 + 15.0 + TIMEOUT_S + t.settings.restart.grace_s
    for _ in range(int(deadline_s / 5)):
        t.join(other)
        t.deliver_all()
        assert told(t, other) == (0, 0)
        t.after(5.0)
    t.join(other)
    t.deliver_all()
    assert told(t, other)[1] == 3


def test_a_job_that_comes_back_without_its_lost_probes_makes_no_room_for_others():
    """Its branch hung, and was killed after the probes' deadline; another job probes since."""
    t = town()
    t.join("a")
    t.join("b")
    t.trip()
    t.settle()
    t.after(1.0)
    t.deliver_all()
    (prober,) = (job for job in t.jobs.values() if job.starts[ROUTE] > 0)
    other = next(job for job in t.jobs.values() if job is not prober)
    prober.begin(ROUTE, t.at_s)
    while other.starts[ROUTE] <= 0:
        t.after(5.0)
        t.settle(1)
    prober.flights[ROUTE].clear()
    prober.epoch, prober.cortex, prober.until_s, prober.grants = 2, "", 0.0, {}
    for _ in range(3):
        t.join(prober.job)
        assert told(t, prober.job)[1] == 0
    assert other.begin(ROUTE, t.at_s) == 3


def test_the_probes_of_a_job_that_left_are_given_to_another():
    t = town()
    t.join("a")
    t.join("b", 5)
    t.trip()
    t.settle()
    t.after(1.0)
    t.deliver_all()
    assert t.jobs["a"].starts[ROUTE] == 3
    t.leave("a")
    assert out(t.post) == {"b": (3, 3)}


# -- fallbacks ---------------------------------------------------------------------------------------------------------


def test_work_moves_along_the_declared_fallback_and_returns():
    t = town()
    t.job("a", (ROUTE, OTHER))
    assert [grant.permits for grant in t.join("a")] == [10, 0]
    t.trip()
    t.deliver_all()
    assert (told(t, "a"), told(t, "a", OTHER)) == ((0, 0), (10, -1))
    t.settle()
    commands = t.after(1.0)
    assert out(commands) == {"a": (3, 3)}, "the route that it would rather use is probed"
    t.deliver_all()
    assert told(t, "a", OTHER) == (10, -1)
    t.report(generation=t.breaker().generation, answered=3)
    t.deliver_all()
    assert (told(t, "a"), told(t, "a", OTHER)) == ((10, -1), (0, -1))


def test_with_all_of_its_routes_open_a_job_waits():
    t = town()
    t.job("a", (ROUTE, OTHER))
    t.join("a")
    t.report(OTHER, failed={"overloaded": 30})
    t.trip()
    t.settle()
    assert [told(t, "a"), told(t, "a", OTHER)] == [(0, 0), (0, 0)]


# -- a provider that asks to wait --------------------------------------------------------------------------------------


def test_a_retry_after_holds_the_whole_pool_and_then_all_go_on():
    t = town()
    t.join("a")
    t.join("b")
    t.settle()
    t.report(begun=5, failed={"throttled": 1}, retry_after_s=3.0)
    t.deliver_all()
    assert {job.starts[ROUTE] for job in t.jobs.values()} == {0}
    assert all(permits > 0 for permits in t.permits().values()), "nothing has to be given back for it"
    assert t.jobs["a"].grants[ROUTE].why == "the provider asks to wait"
    t.after(2.0)
    t.deliver_all()
    assert {job.starts[ROUTE] for job in t.jobs.values()} == {0}
    t.after(2.0)
    t.deliver_all()
    assert {job.starts[ROUTE] for job in t.jobs.values()} == {-1}


# -- a blocked account -------------------------------------------------------------------------------------------------


def test_a_blocked_account_is_probed_once_a_minute_in_the_whole_cluster():
    t = town()
    for name in "abc":
        t.join(name)
    t.settle()
    t.report(failed={"blocked": 2}, message="credit is too low")
    t.settle()
    assert t.permits() == {"a": 0, "b": 0, "c": 0}
    probes = 0
    for _ in range(int(600 / 5)):
        t.after(5.0)
        t.settle(1)
        for job in t.jobs.values():
            if job.begin(ROUTE, t.at_s):
                probes += 1
                job.flights[ROUTE].clear()
                t.report(generation=t.breaker().generation, failed={"blocked": 1}, message="credit is too low")
    assert 6 <= probes <= 10, probes
    assert t.jobs["a"].grants[ROUTE].why == "blocked: credit is too low"


@pytest.mark.parametrize(
    ("end", "least", "most"),
    [
        ({"failed": {"rejected": 1}}, 90, 110), ({"failed": {"too_large": 1}}, 90, 110), ({"given_back": 1}, 90, 110),
        ({"failed": {"throttled": 1}}, 1, 3), ({"failed": {"cancelled": 1}}, 1, 3),
    ],
)  # fmt: skip
def test_rows_that_are_refused_for_their_own_requests_do_not_take_a_minute_each(end, least, most):
    """Such an answer says nothing of the account, and costs nothing."""
    t = town()
    t.join("a")
    t.join("b")
    t.settle()
    t.report(failed={"blocked": 2}, message="credit is too low")
    probes = []
    for _ in range(360):
        t.after(0.5)
        t.settle(1)
        for job in t.jobs.values():
            if job.begin(ROUTE, t.at_s):
                probes.append(t.at_s)
                job.flights[ROUTE].clear()
                t.report(generation=t.breaker().generation, **end)
    assert least <= len(probes) <= most, probes
    assert t.breaker().blocked


def test_when_a_blocked_account_answers_all_open_up():
    t = town()
    t.join("a", 0)
    t.join("b")
    t.report(failed={"blocked": 1}, message="credit is too low")
    t.settle()
    probe = None
    while probe is None:
        t.after(5.0)
        t.settle(1)
        probe = next((job for job in t.jobs.values() if job.begin(ROUTE, t.at_s)), None)
    assert probe.job == "b", "the one that has something to ask"
    assert len(probe.flights[ROUTE]) == 1
    t.report(generation=t.breaker().generation, answered=1)
    probe.flights[ROUTE].clear()
    t.join("a", 50)
    t.settle()
    assert t.permits() == {"a": 5, "b": 5}


def test_two_blocked_routes_of_a_pool_share_the_minute():
    t = town()
    t.job("a")
    t.job("b", (OTHER,))
    t.join("a")
    t.join("b")
    pool = t.state.pools[ROUTE]
    t.state.routes[OTHER].pool = ROUTE  # another model of the same class
    pool.routes[OTHER] = True
    for hold in t.state.jobs["b"].holds.values():
        hold.pool = ROUTE
    for route in (ROUTE, OTHER):
        t.report(route, failed={"blocked": 1}, message="credit is too low")
    begun = []
    for _ in range(40):
        t.after(5.0)
        t.settle(1)
        for job in t.jobs.values():
            for route in job.routes:
                if job.begin(route, t.at_s):
                    begun.append(t.at_s)
                    job.flights[route].clear()
                    t.report(route, t.state.routes[route].breaker.generation, failed={"blocked": 1})
    assert len(begun) >= 2
    assert all(b - a >= 55.0 for a, b in itertools.pairwise(begun)), begun


def test_a_job_resumed_after_a_block_sends_one_call_alone():
    """Nobody here knows more: one call decides for all."""
    t = town()
    for name in "ab":
        t.job(name).blocked = "credit is too low"
        t.join(name)
    t.deliver_all()
    assert sorted(max(0, job.starts[ROUTE]) for job in t.jobs.values()) == [0, 1]
    t.report(generation=t.breaker().generation, answered=1)
    t.settle()
    assert {name: told(t, name) for name in "ab"} == {"a": (1, 1), "b": (1, 1)}, "each ends its own pause with one call"
    for name in "ab":
        t.jobs[name].blocked = ""
    t.settle()
    assert t.permits() == {"a": 5, "b": 5}


# -- a server that queues ----------------------------------------------------------------------------------------------

HEADERS = RateLimits(requests=ReportedBucket(6_000, 5_000, 30.0))


def late(t, n: int = 25, after_s: float = 70.0, **counts: object) -> None:
    t.report(begun=n, failed={"timed_out": n}, slow=n, timed_out_s=after_s, **counts)


@pytest.mark.parametrize(
    ("answered_s_ago", "after_s", "state"),
    [
        (0.0, 70.0, "closed"),  # it answered others meanwhile: its queue is long
        (30.0, 70.0, "closed"),
        (40.0, 70.0, "open"),  # not in the later half of their time: nothing comes from it
        (40.0, 140.0, "closed"),
        (1.0, 0.0, "open"),  # of a branch that reports no duration
    ],
)
def test_timeouts_of_a_server_that_answers_others_open_no_breaker(answered_s_ago: float, after_s: float, state: str):
    t = town()
    t.join("a")
    t.report(begun=1, answered=1, latency_s=1.0)
    t.after(answered_s_ago)
    late(t, after_s=after_s)
    assert t.breaker().state == state


def test_a_server_from_which_nothing_ever_came_opens_its_breaker():
    t = town()
    t.join("a")
    late(t)
    assert t.breaker().state == "open"


def test_errors_of_a_server_that_answers_others_open_its_breaker():
    t = town()
    t.join("a")
    t.report(begun=50, answered=20, failed={"overloaded": 30}, latency_s=20.0)
    assert t.breaker().state == "open"


SLOW = {
    # (a server of the user's own, its metrics are read, it names limits, it refuses): slow answers open its breaker
    (False, False, False, False): False,
    (False, False, True, False): True,
    (False, False, False, True): True,
    (True, False, False, False): False,
    (True, False, True, False): True,  # a gateway
    (True, True, False, False): False,
    (True, True, True, False): False,  # a gateway before a server that queues: its metrics tell so
    (True, True, False, True): False,
}


@pytest.mark.parametrize("kind", SLOW)
def test_the_breaker_of_a_server_that_queues_counts_errors_and_not_slowness(kind: tuple[bool, bool, bool, bool]):
    own, metrics, names_limits, refuses = kind
    t = town()
    t.job("a").queues = own
    t.join("a")
    told = {"at_server": (8, 3) if metrics else None, "rate": HEADERS if names_limits else None}
    if refuses:
        t.report(begun=30, answered=20, failed={"throttled": 10}, latency_s=20.0, flights=20, **told)
    for _ in range(5):
        t.after(2.0)
        t.report(begun=30, answered=30, slow=30, latency_s=2_000.0, **told)
    assert t.breaker().opened == SLOW[kind]
    for words in ("errors", "nothing but silence"):
        t = town()
        t.job("a").queues = own
        t.join("a")
        t.report(begun=1, answered=1, latency_s=1.0, **told)
        t.after(40.0)
        if words == "errors":
            t.report(begun=40, answered=20, failed={"overloaded": 20}, latency_s=20.0, **told)
        else:
            late(t, **told)
        assert t.breaker().state == "open", words


def test_metrics_that_were_read_long_ago_tell_of_no_queue():
    t = town()
    t.join("a")
    t.report(begun=1, answered=1, latency_s=1.0, at_server=(8, 3))
    t.after(TOLD_S + 1.0)
    t.report(begun=40, answered=40, slow=40, latency_s=2_000.0, rate=HEADERS)
    assert t.breaker().state == "open"


def test_timeouts_at_a_queue_halve_the_calls_in_flight():
    t = town(limit=20)
    t.join("a", 20)
    t.settle()
    assert t.permits() == {"a": 20}
    t.report(begun=20, answered=1, latency_s=60.0, flights=19)
    t.after(1.0)
    t.report(failed={"timed_out": 4}, timed_out_s=70.0, flights=15)
    t.settle()
    assert t.state.pools[ROUTE].allowed.concurrency == 9


def test_a_server_of_the_users_own_is_searched_for_a_queue_from_two_calls_on():
    t = Town(SchedulerSettings())
    t.job("a").queues = True
    t.join("a")
    assert t.permits() == {"a": queueing.START}
    for _ in range(6):
        t.after(4.0)
        t.report(begun=2, answered=2, latency_s=8.0, samples=((4.0, 400), (2.0, 200)), prompts=(0, 0), flights=4)
        t.settle()
    assert t.permits()["a"] > queueing.START
    assert t.state.pools[ROUTE].limit.queue is not None


def test_a_pool_that_was_known_before_holds_what_it_has_while_a_queue_is_looked_for():
    t = town()
    t.join("a")
    t.report(begun=10, answered=10, latency_s=10.0, flights=10)
    before = t.state.pools[ROUTE].limit.probing.concurrency
    t.job("b").queues = True
    t.join("b")
    queue = t.state.pools[ROUTE].limit.queue
    assert queue is not None
    assert not queue.growing
    assert t.state.pools[ROUTE].limit.probing.concurrency == before
