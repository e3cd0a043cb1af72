"""A cortex or a channel that comes back: what is known, what is not, and what was said to the one before."""

from __future__ import annotations

import msgspec
import pytest

from cortex.scheduler.pools import PoolMemo
from cortex.scheduler.protocol import (
    AllRejoined,
    ChannelJoined,
    KillMember,
    MemberDied,
    MemberReported,
    MemberStarted,
    PoolCapped,
    StopJob,
    TimePassed,
)
from cortex.scheduler.reports import Grant, ProgressReport, RouteSignals
from policies.failures.breaker import Breaker, BreakerState
from policies.limits.limit import PoolCaps
from tests.support.fake_job_channels import ROUTE, Town, out, settings, told, town
from tests.support.fake_members import House, of


def test_calls_of_a_holder_that_was_never_heard_of_again_count_as_branches_tell_of_them():
    """It died with the cortex. Its lease is over after the silence; its calls may run on."""
    t = Town(settings(10))
    t.after(1.0)
    t.join("dead")
    t.start(again=True)
    del t.jobs["dead"]
    t.report(flights=6)
    for _ in range(4):
        t.after(4.0)
        t.join("new")
        t.deliver_all()
    assert t.permits() == {"new": 4}
    t.report(flights=0)
    t.after(1.0)
    t.join("new")
    assert t.permits() == {"new": 10}


def test_what_was_told_to_a_channel_before_it_died_is_not_waited_for():
    """It had been told of ten, and has come back with nothing: others may have them, and it gets its share anew."""
    t = Town(settings(10))
    t.after(1.0)
    t.join("a")
    t.join("b")
    t.jobs["a"] = type(t.jobs["a"])("a", wanted=0)
    t.jobs["a"].epoch = 2
    t.post.clear()
    t.join("a")
    t.deliver_all()
    t.join("b")
    assert t.permits() == {"a": 0, "b": 10}


def test_a_serial_of_another_cortex_says_nothing_of_what_this_one_told():
    t = Town(settings(10))
    t.after(1.0)
    t.join("a")
    t.join("a")
    claims = t.jobs["a"].claims(t.at_s)
    claim = msgspec.structs.replace(claims.claims[0], held=0, acknowledged=99)
    t.tell(ChannelJoined(t.at_s, msgspec.structs.replace(claims, cortex="another", claims=(claim,))))
    assert t.state.pools[ROUTE].in_use == 10, "it was told of ten, and may take them in yet"


def test_a_death_that_was_told_is_not_counted_again_when_the_channel_is_back():
    t = Town(settings(10))
    t.after(1.0)
    t.join("a")
    for _ in range(3):
        t.tell(MemberDied(t.at_s, "channel:a"))
        t.jobs["a"].epoch += 1
        t.jobs["a"].cortex, t.jobs["a"].grants = "", {}
        t.join("a")
    assert len(t.state.jobs["a"].deaths) == 3
    assert not of(StopJob, t.commands)


def test_a_memo_of_this_cortex_itself_teaches_it_nothing():
    """A channel that came back has an old memo of what is known better here."""
    t = Town(settings(10))
    t.after(1.0)
    t.start(again=True)
    t.join("a")
    old = t.jobs["a"].memos[ROUTE]
    t.jobs["a"].begin(ROUTE, t.at_s)
    t.report(begun=10, flights=10, failed={"throttled": 5}, retry_after_s=30.0)
    held_until_s = t.state.pools[ROUTE].allowed.held_until_s
    t.jobs["a"] = type(t.jobs["a"])("a")
    t.jobs["a"].epoch, t.jobs["a"].memos[ROUTE] = 2, old
    t.join("a")
    assert t.state.pools[ROUTE].allowed.held_until_s == held_until_s > t.at_s


def test_a_cap_that_changes_no_share_is_told_all_the_same_for_a_cortex_that_comes_after():
    t = Town(settings(10))
    t.after(1.0)
    t.join("a", 3)
    t.tell(PoolCapped(t.at_s, "ann", ROUTE, PoolCaps(concurrency=8)))
    (push,) = t.post
    assert push.permits == 3
    t.deliver_all()
    t.start(again=True)
    t.join("a", 50)
    t.deliver_all()
    assert t.permits() == {"a": 8}


def test_whoever_was_away_himself_first_listens_again():
    """The cortex was away for a minute; then one branch is heard, and the other is not yet: it is no longer silent."""
    h = House(limit=100, branches_max=4, calls_per_branch=20)
    h.join("a", 80)
    for name in h.state.branches:
        h.say(name, calls=5)
    h.live(2.0)
    h.at_s += 60.0
    h.tell(TimePassed(h.at_s))
    for name in ("branch:0", "branch:2", "branch:3"):
        h.say(name)
    h.join("a")
    h.mute.add("branch:1")
    h.state.members["branch:1"].unconfirmed = True
    assert of(KillMember, h.live(8.0)) == []
    assert of(KillMember, h.live(8.0)), "but not for ever"


def test_a_branch_that_reports_late_counts_for_its_pool_once_and_never_below_nothing():
    t = Town(settings(10))
    t.after(1.0)
    t.tell(MemberStarted(t.at_s, "branch:0", "n0", "one"))
    for number in (1, 2):
        routes = (RouteSignals(ROUTE, ROUTE, in_flight=5),)
        t.tell(MemberReported(t.at_s, ProgressReport("branch:0", "one", "n0", number, "calling", 5, routes=routes)))
    t.tell(MemberReported(t.at_s, ProgressReport("branch:0", "two", "n0", 1, "idle")))
    late = ProgressReport("branch:0", "one", "n0", 3, "calling", 5, routes=(RouteSignals(ROUTE, ROUTE, in_flight=5),))
    t.tell(MemberReported(t.at_s, late))
    assert t.state.pools[ROUTE].in_flight == 0
    assert not [c for c in t.commands if isinstance(c, Grant)]


# -- breakers and their probes ------------------------------------------------------------------------------------------


def test_an_open_breaker_holds_across_a_restart_and_probes_are_not_doubled():
    t = town()
    t.join("a")
    t.trip()
    t.settle()
    t.start(again=True)
    t.join("a")
    assert t.breaker().state == "open"
    assert told(t, "a") == (0, 0)
    t.after(1.0)
    t.settle()
    assert t.jobs["a"].begin(ROUTE, t.at_s) == 3
    t.start(again=True)
    t.job("b")
    t.join("b")
    t.join("a")
    t.settle()
    t.after(3.0)
    t.settle()
    assert t.breaker().state == "half-open"
    assert told(t, "b") == (0, 0), "three are out, as a's memo tells"
    t.report(generation=t.breaker().generation, answered=3)
    assert t.breaker().state == "closed"


def came_back(t: Town) -> None:
    """The breaker has closed again, b has heard later news of it than a; the cortex restarts, and a alone has joined."""
    t.join("a")
    t.join("b")
    t.trip()
    t.after(1.0)
    t.settle()
    t.report(generation=t.breaker().generation, answered=3)
    t.settle()
    t.join("b", 3)
    t.start(again=True)
    t.join("a")
    assert (t.breaker().state, t.breaker().generation) == ("closed", 3)


def test_what_a_cortex_that_came_back_has_seen_itself_no_memo_knows_better():
    """One that comes after the breaker opened anew tells of the time before."""
    t = town()
    came_back(t)
    t.trip()
    t.join("b")
    assert (t.breaker().state, t.breaker().generation) == ("open", 4)
    t.settle()
    assert {told(t, "a"), told(t, "b")} == {(0, 0)}


def test_probes_that_a_cortex_let_out_are_not_forgotten_for_a_memo():
    t = town()
    t.join("a")
    t.join("b")
    t.trip()
    t.settle()
    t.join("b", 3)
    t.start(again=True)
    t.join("a")
    t.tell(AllRejoined(t.at_s))
    t.after(1.0)
    assert out(t.commands) == {"a": (3, 3)}
    t.join("b")
    assert out(t.after(2.0)) == {}, "all three are out"


def test_after_a_restart_in_which_a_channel_kept_silent_probes_wait_until_its_own_must_have_ended():
    t = town()
    t.join("a")
    t.trip()
    t.settle()
    t.start(again=True)
    t.awaited = {"a", "dead"}
    for _ in range(26):
        t.join("a")
        t.deliver_all()
        assert t.jobs["a"].starts[ROUTE] <= 0
        t.after(5.0)
    t.after(5.0)
    t.deliver_all()
    assert t.jobs["a"].starts[ROUTE] == 3


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_two_schedulers_with_one_era_the_breaker_that_stays_open_longer_counts(order: str) -> None:
    """Neither had a memo of the other. The serial of the one that gave more grants is no sign that it came later."""
    t = Town(settings(10))
    t.after(1.0)
    t.join("a")
    t.deliver_all()
    made = msgspec.msgpack.decode(t.jobs["a"].memos[ROUTE], type=PoolMemo)
    memos = {
        "a": PoolMemo((1, 900), 1.0, "earlier", made.limit, made.caps, Breaker(state=BreakerState.OPEN, until_s=12.0)),
        "b": PoolMemo((1, 3), 1.0, "later", made.limit, made.caps, Breaker(state=BreakerState.OPEN, until_s=22.0)),
    }
    t.jobs["b"] = type(t.jobs["a"])("b")
    t.start(again=True)
    for name in order:
        t.jobs[name].memos[ROUTE] = msgspec.msgpack.encode(memos[name])
        t.join(name)
    assert t.state.routes[ROUTE].breaker.until_s == t.at_s + 21.0
