"""A branch that is started may take long to come to life, or never do."""

from __future__ import annotations

from cortex.scheduler.protocol import KillMember, MemberDied, MembersChanged, MemberStarted, StartMember
from tests.support.fake_members import House, of


def test_what_did_not_come_to_life_in_time_is_started_again_and_may_come_late():
    h = House()
    h.still.add("branch:0")
    h.join("a")
    assert h.state_of("branch:0") == "starting"
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0", gone=False))) == []
    assert of(StartMember, h.after(1.1)) == [StartMember("branch", "branch:0")]
    h.tell(MemberDied(h.at_s, "branch:0", gone=False))
    commands = h.tell(MemberStarted(h.at_s, "branch:0", "n0", "late"))
    assert of(MembersChanged, commands) == [MembersChanged(("branch:0",), ())]
    assert of(StartMember, h.after(5.0)) == []


def test_what_never_comes_to_life_hangs_perhaps_and_is_killed():
    h = House()
    h.still.add("branch:0")
    h.join("a")
    for _ in range(2):
        assert of(KillMember, h.tell(MemberDied(h.at_s, "branch:0", gone=False))) == []
        assert of(StartMember, h.after(1.1)) == [StartMember("branch", "branch:0")]
    kills = of(KillMember, [*h.tell(MemberDied(h.at_s, "branch:0", gone=False)), *h.after(2.0)])
    assert [kill.subject for kill in kills] == ["branch:0"]
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0"))) == [StartMember("branch", "branch:0")]
    assert of(KillMember, h.tell(MemberDied(h.at_s, "branch:0", gone=False))) == [], "it has its chances again"
