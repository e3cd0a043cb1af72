"""Leases of the cortex: shares that are fair, of permits that no two jobs hold."""

from __future__ import annotations

import msgspec
import pytest

from cortex.scheduler.protocol import AllRejoined, ChannelJoined, JobLeft, PoolCapped, SchedulerStarted, TimePassed
from cortex.scheduler.reports import Claim, Claims, Grant
from cortex.scheduler.state import SchedulerSettings, SchedulerState
from cortex.scheduler.step import step
from policies.limits import limit
from policies.limits.limit import PoolCaps
from tests.support.fake_job_channels import ROUTE, TIMEOUT_S, pushes, town

LEASE_S = 15.0


def grants(commands) -> list[Grant]:
    return [command for command in commands if isinstance(command, Grant)]


def test_a_lone_job_gets_all_that_it_wants_and_no_more():
    t = town()
    (grant,) = t.join("a", 7)
    assert (grant.job, grant.route, grant.cortex, grant.permits, grant.starts) == ("a", ROUTE, "cortex 1", 7, -1)
    assert (grant.for_s, grant.why) == (LEASE_S, "")
    (grant,) = t.join("a", 50)
    assert (grant.permits, grant.why) == (10, "the pool's limit")


def test_a_second_job_gets_what_the_first_has_given_back():
    t = town()
    t.join("a")
    (grant,) = t.join("b")
    assert (grant.permits, grant.why) == (0, "a share of the pool's limit")
    assert pushes(t.post) == {"a": 5}
    t.join("b")
    assert t.permits() == {"a": 10, "b": 0}, "the first one is told once, and has not answered"
    t.deliver_all()
    t.join("a")
    assert pushes(t.post) == {"b": 5}, "and who waits is told at once"


def test_a_holder_that_shrinks_slowly_keeps_what_it_has_in_flight():
    t = town()
    t.join("a")
    t.jobs["a"].begin(ROUTE, t.at_s, 8)
    t.join("b")
    t.deliver_all()
    t.join("a")
    assert pushes(t.post) == {"b": 2}
    del t.jobs["a"].flights[ROUTE][:3]
    t.join("a")
    t.deliver_all()
    assert t.permits() == {"a": 5, "b": 5}


def test_weight_is_priority():
    t = town()
    t.job("b").weight = 4.0
    t.join("a")
    t.join("b")
    t.settle()
    assert t.permits() == {"a": 2, "b": 8}


def test_what_one_does_not_want_goes_to_the_others():
    t = town()
    t.join("a", 2)
    t.join("b")
    t.settle()
    assert t.permits() == {"a": 2, "b": 8}
    t.join("a", 0)
    t.settle()
    assert t.permits() == {"a": 0, "b": 10}


def test_the_share_of_one_that_left_is_free_at_once():
    t = town()
    t.join("a")
    t.join("b")
    assert pushes(t.tell(JobLeft(t.at_s, "a", 1))) == {"b": 10}
    assert t.tell(JobLeft(t.at_s, "nobody", 1)) == []


def test_what_a_silent_job_had_counts_until_its_last_call_must_have_ended():
    """Its lease runs out: it begins nothing. What it had begun by then may run for as long as a call may take."""
    t = town()
    t.join("a")
    quarantine_s = LEASE_S + TIMEOUT_S + t.settings.restart.grace_s
    for _ in range(int(quarantine_s / 4) - 1):
        t.after(4.0)
        t.join("b")
        t.post.clear()
        assert t.permits()["b"] == 0
    t.after(4.0)
    t.join("b")
    assert t.permits()["b"] == 10
    assert list(t.state.jobs) == ["b"]


@pytest.mark.parametrize("silent_s", [LEASE_S + TIMEOUT_S + 60.0, 86_400.0])
def test_a_job_that_was_suspended_comes_back_in_the_same_epoch(silent_s: float):
    """A laptop that slept, a process that was stopped, a network that was away: else it would wait for ever."""
    t = town()
    t.join("a")
    t.after(silent_s)
    assert list(t.state.jobs) == []
    (grant,) = t.join("a")
    assert (grant.permits, t.state.jobs["a"].epoch) == (10, 1)
    t.after(silent_s)
    t.jobs["a"].epoch = 2
    t.join("a")
    t.after(silent_s)
    t.jobs["a"].epoch = 1
    (grant,) = t.join("a")
    assert (grant.permits, grant.why) == (0, "epoch 1 of this job is over")


def test_a_job_that_comes_back_after_its_lease_is_told_anew_what_it_may_use():
    t = town()
    first = t.join("a")[0].serial
    t.after(LEASE_S + 1)
    (grant,) = t.join("a")
    assert grant.serial > first
    assert grant.permits == 10


def test_a_grant_that_was_put_aside_counts_again_when_it_is_told_again():
    """The cortex stood still: by its own clock the lease is young, by the holder's it ran out, and nothing is held."""
    t = town()
    t.join("a", 4)
    claims = t.jobs["a"].claims(t.at_s)
    nothing = msgspec.structs.replace(claims.claims[0], held=0)
    out = t.tell(ChannelJoined(t.at_s, msgspec.structs.replace(claims, claims=(nothing,))))
    assert [(grant.permits, grant.serial > nothing.acknowledged) for grant in out] == [(4, True)]
    assert t.state.pools[ROUTE].in_use == 4


def test_renewing_keeps_the_lease_and_costs_no_new_grant():
    t = town()
    first = t.join("a")
    for _ in range(5):
        t.after(5.0)
        assert t.join("a") == first, "the same serial: nothing to take in"
    assert not t.post


def test_a_push_that_was_lost_is_told_again_with_the_answer():
    t = town()
    t.join("a")
    t.join("b")
    t.post.clear()
    (grant,) = t.join("a")
    assert grant.permits == 5


def test_a_message_that_is_still_on_its_way_counts():
    """b was told ten, then five, and had heard neither when it spoke: it may yet come to use ten for a while."""
    t = town()
    t.join("a")
    t.join("b")
    t.deliver_all()
    t.join("a")
    t.deliver_all()
    assert t.permits() == {"a": 5, "b": 5}
    t.leave("a")
    assert pushes(t.post) == {"b": 10}
    t.join("c")
    assert t.permits()["c"] == 0
    held = t.jobs["b"].claims(t.at_s)
    step(t.state, ChannelJoined(t.at_s, held))
    t.join("c")
    assert t.permits()["c"] == 0, "b has not said yet that it heard of the five"
    t.deliver_all()
    t.join("b")
    t.deliver_all()
    assert t.permits() == {"b": 5, "c": 5}


def test_claims_that_a_later_one_has_overtaken_change_nothing():
    t = town()
    t.join("a", 3)
    late = t.jobs["a"].claims(t.at_s)
    t.join("a", 9)
    t.join("a", 9)
    answer = grants(t.tell(ChannelJoined(t.at_s, late)))
    assert [grant.permits for grant in answer] == [9]
    assert t.state.pools[ROUTE].in_use == 9


def test_an_earlier_incarnation_of_a_channel_gets_nothing():
    t = town()
    t.join("a", 3)
    late = t.jobs["a"].claims(t.at_s)
    t.jobs["a"].epoch = 2
    t.join("a", 3)
    (grant,) = grants(t.tell(ChannelJoined(t.at_s, late)))
    assert (grant.permits, grant.why) == (0, "epoch 1 of this job is over")
    assert t.state.jobs["a"].epoch == 2


def test_a_claim_that_comes_after_its_job_has_left_gets_nothing_until_the_job_runs_again():
    t = town()
    t.join("a", 3)
    late = t.jobs["a"].claims(t.at_s)
    t.leave("a")
    (grant,) = grants(t.tell(ChannelJoined(t.at_s, late)))
    assert (grant.permits, grant.why, list(t.state.jobs)) == (0, "epoch 1 of this job is over", [])
    (grant,) = t.join("a", 3)
    assert (grant.permits, t.state.jobs["a"].epoch) == (3, 2)


def test_pools_are_apart():
    t = town()
    t.join("a")
    t.job("b", ("https://two|key|opus",))
    assert t.join("b")[0].permits == 10


def test_a_route_that_a_job_no_longer_names_is_free():
    t = town()
    t.join("a")
    t.join("b")
    t.jobs["a"] = moved = type(t.jobs["a"])("a", ("https://two|key|opus",))
    moved.epoch = 2
    t.join("a")
    assert pushes(t.post)["b"] == 10
    assert t.state.pools[ROUTE].holders == 1


def test_with_fewer_permits_than_jobs_they_take_turns():
    t = town(limit=1)
    for name in "abc":
        t.join(name)
    had: dict[str, int] = dict.fromkeys("abc", 0)
    for _ in range(40):
        t.settle(2)
        for name, n in t.permits().items():
            had[name] += n
        t.after(5.0)
    assert min(had.values()) >= 10, had


def test_many_holders_are_divided_a_few_times_a_second_and_none_is_forgotten():
    t = town(limit=1000)
    for number in range(100):
        t.join(f"job {number}", 100)
    for _ in range(3):
        t.after(0.1)
        t.settle(1)
    assert set(t.permits().values()) == {10}


# -- a cortex that came back -------------------------------------------------------------------------------------------


def test_after_a_restart_nothing_is_granted_twice():
    """Its memory is gone; who held what is told again, and until all had the time to tell it nothing new is given."""
    t = town()
    t.join("old")
    t.jobs["old"].begin(ROUTE, t.at_s, 6)
    t.start(again=True)
    t.awaited = {"old", "silent"}
    (grant,) = t.join("new")
    assert (grant.permits, grant.why) == (0, "the scheduler was restarted and waits for the claims of other jobs")
    t.after(1.0)
    t.join("old")
    t.settle()
    assert t.permits() == {"old": 5, "new": 0}, "one that is silent may hold the other five"
    t.tell(AllRejoined(t.at_s))
    t.deliver_all()
    assert t.permits() == {"old": 5, "new": 4}, "all were heard: the old one has still six in flight"


def test_after_the_silence_there_is_no_more_waiting():
    t = town()
    t.start(again=True)
    t.awaited = {"dead"}
    t.join("new")
    for _ in range(4):
        t.after(4.0)
        t.join("new")
    assert t.permits() == {"new": 10}


def test_a_cap_by_hand_and_what_was_learnt_hold_across_a_restart():
    t = town(limit=20)
    t.join("a")
    t.jobs["a"].begin(ROUTE, t.at_s)
    t.report(begun=20, flights=20, failed={"throttled": 5}, retry_after_s=1.0)
    learnt = msgspec.structs.replace(t.state.pools[ROUTE].limit)
    t.jobs["a"].flights[ROUTE].clear()
    t.after(2.0)
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(concurrency=4)))
    t.settle()
    t.start(again=True)
    t.join("b")
    t.join("a")
    t.settle()
    assert t.permits() == {"a": 2, "b": 2}
    assert t.state.pools[ROUTE].caps.who == "ann"
    assert learnt != limit.new(t.settings.limit)
    assert t.state.pools[ROUTE].limit == msgspec.structs.replace(learnt, capped=True)


def test_of_two_memos_the_newer_counts():
    t = town(limit=20)
    t.join("a")
    t.join("b")
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(concurrency=4)))
    t.settle()
    t.tell(PoolCapped(t.at_s, "ben", ROUTE, PoolCaps(concurrency=6)))
    t.join("b")  # a has not heard of it
    t.start(again=True)
    for name in ("b", "a"):
        t.join(name)
    assert t.state.pools[ROUTE].caps.who == "ben"
    t.start(again=True)
    for name in ("a", "b"):
        t.join(name)
    assert t.state.pools[ROUTE].caps.who == "ben"


def test_a_memo_of_another_release_is_left_alone():
    t = town()
    t.join("a")
    t.jobs["a"].memos[ROUTE] = b"\x01garbage"
    t.start(again=True)
    assert t.join("a")[0].permits == 10


# -- what makes no sense -----------------------------------------------------------------------------------------------

CLAIM = Claim(ROUTE, ROUTE, 0)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        (Claims("a", 1, "", -1, 5, (CLAIM,)), "a: wants -1 permits at weight 1.0"),
        (Claims("a", 1, "", 1, 5, (CLAIM,), 0.0), "a: wants 1 permits at weight 0.0"),
        (Claims("a", 1, "", 1, 5, (CLAIM,), float("nan")), "a: wants 1 permits at weight nan"),
        (Claims("a", 1, "", 1, 5, (CLAIM,), headroom=1.0), "a: headroom 1.0"),
        (Claims("a", 1, "", 1, 5, (CLAIM,), call_timeout_s=0.0), "calls of 0.0 s"),
        (Claims("a", 1, "", 1, 5, ()), "names no route"),
        (Claims("a", 1, "", 1, 5, (Claim(ROUTE, ROUTE, -1),)), "held must be 0 or more"),
        (Claims("a", 1, "", 1, 5, (CLAIM, CLAIM)), "a: names a route twice"),
    ],
)
def test_a_claim_that_makes_no_sense(claims, says):
    state = SchedulerState()
    step(state, SchedulerStarted(0.0, "cortex"))
    before = msgspec.msgpack.encode(state)
    with pytest.raises(ValueError, match=says):
        step(state, ChannelJoined(1.0, claims))
    assert msgspec.msgpack.encode(state) == before


@pytest.mark.parametrize(
    "knobs",
    [
        {"branches_min": 2, "branches_max": 1},
        {"branches_max": 0, "branches_min": 0},
        {"workers_max": -1},
        {"calls_per_branch": 0},
        {"lease_s": 0.0},
        {"fewer_after_s": float("inf")},
    ],
)
def test_settings_that_make_no_sense(knobs):
    with pytest.raises(ValueError, match=r"must be|not 2, 1|not 0, 0"):
        SchedulerSettings(**knobs)


def test_idle_there_is_nothing_to_do_and_nothing_grows():
    t = town()
    for _ in range(3):
        t.join("a")
        t.leave("a")
        t.after(600.0)
    t.commands.clear()
    size = len(msgspec.msgpack.encode(t.state))
    t.after(600.0)
    assert t.state.due_s == float("inf")
    assert t.commands == []
    assert step(t.state, TimePassed(t.at_s)) == []
    assert len(msgspec.msgpack.encode(t.state)) <= size


def test_what_nobody_used_for_an_hour_is_forgotten():
    t = town()
    for number in range(5):
        t.job("a", (f"https://{number}|key|opus",))
        t.join("a")
        t.leave("a")
        t.after(3700.0)
    t.join("b")
    assert list(t.state.pools) == [ROUTE]
    assert list(t.state.routes) == [ROUTE]
