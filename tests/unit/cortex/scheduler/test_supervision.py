"""Branches and workers: started and ended with demand, replaced when they die, killed only on good evidence."""

from __future__ import annotations

import msgspec
import pytest

from cortex.scheduler.protocol import (
    AdmitToolRun,
    BreakerMoved,
    ChannelJoined,
    DrainMember,
    KillMember,
    MemberDied,
    MemberReported,
    MembersChanged,
    MemberStarted,
    NodesChanged,
    PingAnswered,
    PingMember,
    PingUnanswered,
    RetireMember,
    SchedulerStarted,
    StartMember,
    StopJob,
    TimePassed,
    ToolRunRequested,
    ToolRunReturned,
)
from cortex.scheduler.reports import ProgressReport, RouteSignals, ToolSignals
from tests.support.fake_job_channels import ROUTE
from tests.support.fake_members import House, of

# -- how many ----------------------------------------------------------------------------------------------------------


def test_with_a_job_there_is_a_branch_and_without_one_there_is_none():
    h = House()
    assert h.state.members == {}
    h.join("a")
    assert of(StartMember, h.commands) == [StartMember("branch", "branch:0")]
    assert of(MembersChanged, h.commands) == [MembersChanged(("branch:0",), ())]
    h.leave("a")
    assert of(RetireMember, h.after(29.0)) == [], "not at once: another job may come"
    commands = h.after(5.0)
    assert of(MembersChanged, commands) == [MembersChanged((), ())]
    assert of(RetireMember, commands) == [RetireMember("branch:0")]
    h.tell(MemberDied(h.at_s, "branch:0"))
    assert h.state.members == {}
    h.after(20.0)
    assert h.state.due_s == float("inf")


def test_branches_follow_what_is_granted_more_at_once_and_fewer_after_a_while():
    h = House(limit=100, branches_max=4, calls_per_branch=20)
    h.join("a", 30)
    assert h.state.branches == ("branch:0", "branch:1")
    h.join("a", 100)
    assert len(h.state.branches) == 4
    h.join("a", 10)
    h.live(20.0)
    h.join("a", 100)
    h.live(20.0)
    assert len(h.state.branches) == 4, "it was wanted again in between"
    h.join("a", 10)
    h.live(40.0)
    assert h.state.branches == ("branch:0",)


def test_a_branch_that_is_not_wanted_any_more_finishes_what_it_has():
    h = House(limit=100, branches_max=2, calls_per_branch=20)
    h.join("a", 40)
    h.say("branch:1", calls=3)
    h.join("a", 10)
    commands = h.live(40.0)
    assert h.state.branches == ("branch:0",)
    assert of(RetireMember, commands) == []
    h.say("branch:1", calls=0)
    assert of(RetireMember, h.live(4.0)) == [RetireMember("branch:1")]


def test_workers_come_with_tool_runs():
    h = House(workers_max=2, runs_per_worker=4)
    h.join("a")
    h.tell(ChannelJoined(h.at_s, msgspec.structs.replace(h.jobs["a"].claims(h.at_s), demand=5)))
    assert h.state.workers == ("worker:0", "worker:1")


def test_there_is_room_for_as_many_as_the_cluster_has_cores():
    h = House(limit=100, calls_per_branch=20, nodes=("n0",))
    h.join("a", 80)
    h.tell(NodesChanged(h.at_s, ("n0",), 3))
    assert h.state.branches == ("branch:0", "branch:1", "branch:2")


# -- deaths ------------------------------------------------------------------------------------------------------------


def test_what_died_is_started_again_at_once_the_first_time_and_then_after_a_wait():
    h = House()
    h.join("a")
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0", "n0"))) == [StartMember("branch", "branch:0")]
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0", "n0"))) == []
    assert of(StartMember, h.after(1.1)) == [StartMember("branch", "branch:0")]


def test_what_cannot_be_reached_is_not_taken_for_dead():
    h = House()
    h.join("a")
    h.say("branch:0", calls=2)
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0", "n0", gone=False))) == []
    assert h.state_of("branch:0") == "up"


def test_what_gets_on_between_its_deaths_may_die_as_often_as_it_likes():
    h = House(nodes=("n0", "n1"))
    h.join("a")
    for _ in range(20):
        h.say("branch:0", calls=1)
        h.after(0.5)
        h.say("branch:0", calls=1)
        assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:0", "n0"))) == [StartMember("branch", "branch:0")]
    assert not of(BreakerMoved, h.commands)


def test_what_keeps_dying_takes_its_node_out_and_comes_up_elsewhere():
    h = House(nodes=("n0", "n1"))
    h.join("a")
    starts = []
    for _ in range(5):
        h.tell(MemberDied(h.at_s, "branch:0", h.where["branch:0"]))
        h.after(20.0)
        h.join("a")
        starts = of(StartMember, h.commands)
    assert [(m.subject, m.new) for m in of(BreakerMoved, h.commands)][:1] == [("node:n0", "open")]
    assert starts[-1].avoid == ("n0",)
    assert h.where["branch:0"] == "n1"


@pytest.mark.parametrize(
    ("places", "out"),
    [
        (["n0", "n0", "n0", "n0"], ["node:n0"]),
        (["n0", "n1", "n0", "n1"], []),
        (["n0", "n0", "n0", "n1"], []),
        (["n1", "n0", "n0", "n0"], []),
        (["n1", "n0", "n0", "n0", "n0"], ["node:n0"]),
    ],
)
def test_a_node_is_blamed_for_deaths_in_a_row_there_alone(places: list[str], out: list[str]) -> None:
    """Deaths on several nodes come with the member, such as from a tool that ends its worker wherever it runs."""
    h = House(nodes=("n0", "n1"))
    h.join("a")
    for node in places:
        h.after(5.0)
        h.join("a")
        h.state.members["branch:0"].node = ""
        h.tell(MemberDied(h.at_s, "branch:0", node))
        assert h.state.members["branch:0"].start_s - h.at_s <= h.state.settings.restart.backoff_max_s
    assert [moved.subject for moved in of(BreakerMoved, h.commands)] == out


def test_a_node_that_was_out_gets_one_branch_to_see_whether_it_is_well():
    h = House(limit=100, branches_max=3, calls_per_branch=20)
    h.join("a", 60)
    for name in ("branch:0", "branch:1", "branch:2", "branch:0"):
        h.tell(MemberDied(h.at_s, name, "n0"))
        h.after(0.1)
    assert h.state.nodes["n0"].breaker.state == "open"
    for name in list(h.state.members):
        if h.state_of(name) == "up":
            h.tell(MemberDied(h.at_s, name, "n0"))
    h.commands.clear()
    h.live(25.0)
    assert of(StartMember, h.commands) == [], "there is no other node"
    h.live(15.0)
    assert len(of(StartMember, h.commands)) == 1
    name = of(StartMember, h.commands)[0].name
    h.say(name, calls=1)
    h.say(name, calls=1)
    assert h.state.nodes["n0"].breaker.state == "closed"
    h.live(3.0)
    assert len(h.state.branches) == 3


def test_a_channel_that_keeps_dying_fails_its_job_and_one_that_gets_on_does_not():
    h = House()
    h.join("a")
    h.join("b")
    for _ in range(6):
        h.jobs["b"].progress += 1
        h.join("b")
        for name in "ab":
            h.tell(MemberDied(h.at_s, f"channel:{name}"))
            h.jobs[name].epoch += 1
            h.jobs[name].cortex, h.jobs[name].grants = "", {}
            h.join(name)
        h.after(1.0)
    (condemned,) = of(StopJob, h.commands)
    assert condemned.job == "a"
    assert "died 5 times in 120 s" in condemned.story


def test_a_channel_that_comes_back_untold_is_counted_once():
    h = House()
    h.join("a")
    for _ in range(5):
        h.jobs["a"].epoch += 1
        h.jobs["a"].cortex, h.jobs["a"].grants = "", {}
        h.join("a")
    assert len(of(StopJob, h.commands)) == 1


# -- the ladder --------------------------------------------------------------------------------------------------------


def test_a_branch_whose_loop_is_stuck_is_asked_and_then_killed_and_replaced():
    h = House(limit=100, branches_max=3, calls_per_branch=20)
    h.join("a", 60)
    for name in h.state.branches:
        h.say(name, calls=5)
    h.mute.add("branch:1")
    asked = of(PingMember, h.live(12.0))
    assert {ping.subject for ping in asked} == {"branch:1"}
    h.tell(PingUnanswered(h.at_s, "branch:1"))
    kills = of(KillMember, h.live(6.0))
    assert [kill.subject for kill in kills] == ["branch:1"]
    assert "no answer" in kills[0].why
    assert h.state.branches == ("branch:0", "branch:2"), "it takes no more work"
    assert of(StartMember, h.tell(MemberDied(h.at_s, "branch:1", "n0"))) == [StartMember("branch", "branch:1")]


def test_one_that_answers_is_not_killed():
    h = House()
    h.join("a")
    h.say("branch:0", calls=5)
    h.mute.add("branch:0")
    for _ in range(20):
        for ping in of(PingMember, h.live(3.0)):
            h.tell(PingAnswered(h.at_s, ping.subject))
    assert of(KillMember, h.commands) == []
    assert len(of(PingMember, h.commands)) >= 4


def test_a_call_that_did_not_stop_when_asked_to_has_its_branch_killed():
    h = House()
    h.join("a")
    h.overdue_s["branch:0"] = 4.0
    h.say("branch:0", calls=5)
    assert of(KillMember, h.live(3.0)) == []
    h.overdue_s["branch:0"] = 6.0
    assert [kill.why for kill in of(KillMember, h.live(2.0))] == ["a call is 6 s overdue"]


def test_one_kill_a_look():
    h = House(limit=100, branches_max=3, calls_per_branch=20)
    h.join("a", 60)
    for name in h.state.branches:
        h.overdue_s[name] = 30.0
        h.say(name, calls=5)
    kills = []
    for _ in range(4):
        kills.append(len(of(KillMember, h.live(1.0))))
    assert kills in ([1, 1, 1, 0], [0, 1, 1, 1])


def test_silence_of_all_together_is_the_path_and_kills_nobody():
    h = House(limit=100, branches_max=3, calls_per_branch=20)
    h.join("a", 60)
    for name in h.state.branches:
        h.say(name, calls=5)
    h.mute |= {*h.state.branches, "a"}
    for _ in range(10):
        for ping in of(PingMember, h.live(3.0)):
            h.tell(PingUnanswered(h.at_s, ping.subject))
    assert of(PingMember, h.commands)
    assert of(KillMember, h.commands) == []


def test_silence_of_a_whole_node_is_its_path():
    h = House(limit=100, branches_max=4, calls_per_branch=20, nodes=("n0",))
    h.join("a", 40)
    h.nodes = ("n1",)
    h.tell(NodesChanged(h.at_s, ("n0", "n1")))
    h.join("a", 80)
    for name in h.state.branches:
        h.say(name, calls=5)
    h.mute |= {name for name, node in h.where.items() if node == "n0"}
    for _ in range(6):
        for ping in of(PingMember, h.live(3.0)):
            h.tell(PingUnanswered(h.at_s, ping.subject))
    assert of(KillMember, h.commands) == []


def test_a_cortex_that_was_itself_away_kills_nobody():
    h = House(limit=100, branches_max=3, calls_per_branch=20)
    h.join("a", 60)
    for name in h.state.branches:
        h.say(name, calls=5)
    h.live(2.0)
    h.mute.add("branch:1")
    h.tell(PingUnanswered(h.at_s, "branch:1"))
    h.at_s += 60.0  # nothing was heard, and nothing was looked at
    assert of(KillMember, h.tell(TimePassed(h.at_s))) == []
    h.say("branch:0", calls=5)
    h.say("branch:2", calls=5)
    h.join("a")
    assert of(KillMember, h.live(5.0)) == []


def test_a_kill_that_is_not_confirmed_is_ordered_again():
    h = House()
    h.join("a")
    h.overdue_s["branch:0"] = 30.0
    h.say("branch:0", calls=5)
    h.mute.add("branch:0")
    assert len(of(KillMember, h.live(25.0))) == 3


def test_an_idle_branch_is_asked_now_and_then_while_there_is_a_job():
    h = House()
    h.join("a")
    h.say("branch:0", calls=0)
    assert 1 <= len(of(PingMember, h.live(40.0))) <= 3
    h.tell(PingUnanswered(h.at_s, "branch:0"))
    assert len(of(KillMember, h.live(10.0))) == 1


# -- drains ------------------------------------------------------------------------------------------------------------


def test_a_drained_node_gets_no_new_calls_and_is_empty_in_the_end():
    h = House(limit=100, branches_max=2, calls_per_branch=20, nodes=("n0",))
    h.join("a", 40)
    for name in h.state.branches:
        h.say(name, calls=3)
    h.nodes = ("n1",)
    h.tell(NodesChanged(h.at_s, ("n0", "n1")))
    commands = h.tell(DrainMember(h.at_s, "ann", "n0"))
    assert of(MembersChanged, commands)[-1] == MembersChanged(("branch:2", "branch:3"), ())
    assert {start.avoid for start in of(StartMember, commands)} == {("n0",)}
    assert of(RetireMember, h.live(5.0)) == []
    h.say("branch:0", calls=0)
    h.say("branch:1", calls=0)
    assert {retire.name for retire in of(RetireMember, h.live(4.0))} == {"branch:0", "branch:1"}
    for name in ("branch:0", "branch:1"):
        assert of(StartMember, h.tell(MemberDied(h.at_s, name, "n0"))) == []


def test_a_drain_of_nothing_that_is_there():
    h = House()
    with pytest.raises(ValueError, match="there is no node, branch or worker called n9"):
        h.tell(DrainMember(h.at_s, "ann", "n9"))


def test_what_was_on_a_node_that_is_gone_is_started_elsewhere():
    h = House(nodes=("n0",))
    h.join("a")
    h.nodes = ("n1",)
    commands = h.tell(NodesChanged(h.at_s, ("n1",)))
    assert of(StartMember, commands) == [StartMember("branch", "branch:0")]
    assert h.where["branch:0"] == "n1"
    assert list(h.state.nodes) == ["n1"]


# -- a restart, and late news ------------------------------------------------------------------------------------------


def test_a_restarted_cortex_adopts_what_lives_and_starts_nothing_twice():
    h = House(limit=100, branches_max=2, calls_per_branch=20)
    h.join("a", 40)
    h.commands.clear()
    h.state = type(h.state)(h.settings)
    h.tell(SchedulerStarted(h.at_s, "cortex 2", again=True))
    h.tell(MemberStarted(h.at_s, "branch:1", "n0", "branch:1 1"))
    h.join("a", 40)
    h.say("branch:0", calls=3)
    h.after(3.0)
    assert of(StartMember, h.commands) == []
    assert h.state.branches == ("branch:0", "branch:1")


def test_a_report_that_comes_twice_or_from_one_that_was_retired_counts_once():
    h = House()
    h.join("a")
    h.say("branch:0", calls=4)
    report = ProgressReport(
        "branch:0", "branch:0 1", "n0", h.number, "calling", 9, routes=(RouteSignals(ROUTE, ROUTE, answered=5),)
    )
    h.tell(MemberReported(h.at_s, report))
    assert h.state.members["branch:0"].in_flight == 4
    assert h.state.pools[ROUTE].in_flight == 4
    h.leave("a")
    h.say("branch:0", calls=0)
    h.live(40.0)
    h.tell(MemberDied(h.at_s, "branch:0"))
    h.say("branch:0", calls=0)
    assert h.state.members == {}


# -- tools -------------------------------------------------------------------------------------------------------------


def test_a_tool_that_keeps_failing_waits_and_is_tried_with_one_run():
    h = House()
    h.join("a")
    asked = ToolRunRequested(h.at_s, "a", "grep")
    assert h.tell(asked)[-1] == AdmitToolRun("a", "grep", True)
    h.tell(MemberStarted(h.at_s, "worker:0", "n0", "w"))
    runs = ToolSignals("grep", failed={"faulty": 10})
    h.tell(MemberReported(h.at_s, ProgressReport("worker:0", "w", "n0", 1, "idle", tools=(runs,))))
    admit = h.tell(asked)[-1]
    assert not admit.go
    assert 1.0 < admit.wait_s <= 2.0
    h.after(2.1)
    admits = [h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1] for _ in range(3)]
    assert [admit.go for admit in admits] == [True, False, False]
    good = ToolSignals("grep", admits[0].generation, answered=1)
    h.tell(MemberReported(h.at_s, ProgressReport("worker:0", "w", "n0", 2, "idle", tools=(good,))))
    assert h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1].go
    assert [(m.subject, m.new) for m in of(BreakerMoved, h.commands)] == [
        ("tool:grep", "open"),
        ("tool:grep", "half-open"),
        ("tool:grep", "closed"),
    ]


def test_a_probe_that_no_worker_had_room_for_makes_room_for_another():
    h = House()
    h.join("a")
    asked = ToolRunRequested(h.at_s, "a", "grep")
    early = h.tell(asked)[-1]
    h.tell(MemberStarted(h.at_s, "worker:0", "n0", "w"))
    runs = ToolSignals("grep", failed={"faulty": 10})
    h.tell(MemberReported(h.at_s, ProgressReport("worker:0", "w", "n0", 1, "idle", tools=(runs,))))
    h.after(2.1)
    probe = h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1]
    assert probe.go and not h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1].go
    h.tell(ToolRunReturned(h.at_s, "grep", early.generation))
    assert not h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1].go, "admitted before the breaker opened: no probe"
    h.tell(ToolRunReturned(h.at_s, "grep", probe.generation))
    assert [h.tell(ToolRunRequested(h.at_s, "a", "grep"))[-1].go for _ in range(2)] == [True, False]
    h.tell(ToolRunReturned(h.at_s, "unknown", 3))
