"""Branches that hang where nobody would look: on their way out, or found by a cortex that came back."""

from __future__ import annotations

import msgspec
import pytest

from cortex.scheduler.protocol import (
    JobLeft,
    KillMember,
    MemberDied,
    PingMember,
    PingUnanswered,
    RetireMember,
    StartMember,
)
from cortex.scheduler.state import NEVER
from tests.support.fake_members import House, of


def test_one_that_hangs_when_it_is_to_end_is_killed_and_not_started_again():
    h = House(limit=100, branches_max=2, calls_per_branch=20)
    h.join("a", 40)
    h.say("branch:1", calls=0)
    h.join("a", 10)
    assert of(RetireMember, h.live(40.0)) == [RetireMember("branch:1")]
    asked = of(PingMember, h.live(11.0))
    assert PingMember("branch:1") in asked
    h.tell(PingUnanswered(h.at_s, "branch:1"))
    assert [kill.subject for kill in of(KillMember, h.live(6.0))] == ["branch:1"]
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:1", "n0"))) == []
    assert list(h.state.members) == ["branch:0"]


def test_one_that_is_to_end_and_works_on_is_left_alone():
    h = House(limit=100, branches_max=2, calls_per_branch=20)
    h.join("a", 40)
    h.say("branch:1", calls=0)
    h.join("a", 10)
    assert of(RetireMember, h.live(40.0)) == [RetireMember("branch:1")]
    h.say("branch:1", calls=2)  # it came on its way; it is finished first
    assert of(KillMember, h.live(60.0)) == []


def test_one_that_was_found_and_says_nothing_is_killed_and_replaced():
    """A cortex that came back found its name, and no answer to it."""
    h = House()
    h.join("a")
    h.tell(MemberDied(h.at_s, "branch:7", gone=False))
    assert PingMember("branch:7") in of(PingMember, h.live(11.0))
    h.tell(PingUnanswered(h.at_s, "branch:7"))
    assert [kill.subject for kill in of(KillMember, h.live(6.0))] == ["branch:7"]


def test_one_that_hangs_while_there_is_no_job_is_found_by_the_next_job():
    h = House(branches_max=1)
    h.join("a", 1)
    h.say("branch:0", calls=1)
    h.say("branch:0", calls=0)
    h.tell(JobLeft(h.at_s, "a", 1))
    h.jobs.clear()
    h.after(2.0)
    assert (h.state_of("branch:0"), h.state.check_s) == ("up", NEVER), "nobody looks where there is no job"
    h.join("b", 1)
    assert PingMember("branch:0") in of(PingMember, h.live(32.0))


@pytest.mark.parametrize("when", ["it was to end", "it is not wanted any more"])
def test_one_whose_death_makes_it_superfluous_may_live_on_in_another_process(when: str):
    """The cluster started it again, and the new process hangs with calls: it is watched until its end is certain."""
    h = House(limit=100, branches_max=2, calls_per_branch=20)
    h.join("a", 40)
    h.say("branch:1", calls=0)
    h.join("a", 10)
    if when == "it was to end":
        h.say("branch:1", calls=1)
        h.live(40.0)
        assert h.state_of("branch:1") == "draining"
        found = h.tell(MemberDied(h.at_s, "branch:1", "n0"))
    else:
        h.after(20.0)
        h.still.add("branch:1")
        h.state.settings = msgspec.structs.replace(h.state.settings, fewer_after_s=60.0)
        found = [*h.tell(MemberDied(h.at_s, "branch:1", "n0")), *h.live(60.0)]
    assert of(RetireMember, found) == [RetireMember("branch:1")]
    h.mute.add("branch:1")
    assert PingMember("branch:1") in of(PingMember, h.live(11.0))
    h.tell(PingUnanswered(h.at_s, "branch:1"))
    assert [kill.subject for kill in of(KillMember, h.live(6.0))] == ["branch:1"]
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:1", "n0"))) == []
    assert list(h.state.members) == ["branch:0"]
    assert h.state.ended["branch:1"][0] == "branch:1 1", "its late reports count once"
