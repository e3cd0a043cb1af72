"""What the cortex has heard decides: nodes that are worse than others are avoided, a tool is asked for as its runs take."""

from __future__ import annotations

import pytest

from cortex.scheduler.protocol import (
    DrainMember,
    MemberReported,
    MemberStarted,
    NodesChanged,
    StartMember,
    ToolRunRequested,
)
from cortex.scheduler.reports import ProgressReport, RouteSignals, ToolSignals
from tests.support.fake_job_channels import OTHER, ROUTE, Town, settings
from tests.support.fake_members import House, of

WELL = (0.1,) * 20
PACES = [
    # seconds of calls of ten tokens each on the third node, whether it is avoided
    (WELL, False),
    ((0.29,) * 20, False),
    ((0.31,) * 20, True),
    ((*WELL[:18], 9.0, 9.0), True),
    ((*WELL[:19], 9.0), True),
    ((0.01,) * 20, False),
    ((), False),
]


@pytest.mark.parametrize(("third", "avoided"), PACES)
def test_a_node_that_is_slow_always_or_now_and_then_is_avoided(third, avoided):
    t = Town(settings(10, branches_max=9, calls_per_branch=1))
    t.after(1.0)
    t.tell(NodesChanged(t.at_s, ("n0", "n1", "n2")))
    t.join("a", 3)
    for number, seconds in enumerate((WELL, WELL, third)):
        t.tell(MemberStarted(t.at_s, f"branch:{number}", f"n{number}", f"b{number}"))
        for each in seconds:
            counts = RouteSignals(ROUTE, ROUTE, answered=1, latency_s=each, samples=((each, 10),))
            t.number += 1
            t.tell(
                MemberReported(
                    t.at_s,
                    ProgressReport(f"branch:{number}", f"b{number}", f"n{number}", t.number, "idle", routes=(counts,)),
                )
            )
    start = _more(t)
    assert ("n2" in start.avoid) == avoided


@pytest.mark.parametrize(("good", "bad", "avoided"), [(10, 10, True), (11, 9, False), (0, 19, False), (0, 20, True)])
def test_a_node_whose_calls_fail_is_avoided_once_there_were_enough_of_them(good, bad, avoided):
    t = Town(settings(10, branches_max=9, calls_per_branch=1))
    t.after(1.0)
    t.tell(NodesChanged(t.at_s, ("n0", "n1")))
    t.join("a", 2)
    for number, counts in enumerate(({"answered": 20}, {"answered": good, "failed": {"timed_out": bad}})):
        t.tell(MemberStarted(t.at_s, f"branch:{number}", f"n{number}", f"b{number}"))
        signals = RouteSignals(OTHER, OTHER, **counts)
        t.tell(
            MemberReported(
                t.at_s, ProgressReport(f"branch:{number}", f"b{number}", f"n{number}", 1, "idle", routes=(signals,))
            )
        )
    assert ("n1" in _more(t).avoid) == avoided


def _more(town: Town) -> StartMember:
    before = len(town.commands)
    town.join("a", 4)
    return of(StartMember, town.commands[before:])[0]


@pytest.mark.parametrize(("takes_s", "wait_s"), [(0.0, 1.0), (0.02, 0.1), (3.0, 3.0), (300.0, 10.0)])
def test_while_a_probe_of_a_tool_is_out_the_others_ask_again_after_about_the_time_of_a_run(takes_s, wait_s):
    t = Town()
    t.after(1.0)
    own = t.state.settings.tool.volume_min

    def told(**counts) -> None:
        t.number += 1
        tools = (ToolSignals("grep", **counts),)
        t.tell(MemberReported(t.at_s, ProgressReport("worker:0", "w", "n0", t.number, "idle", tools=tools)))

    if takes_s:
        told(answered=2, latency_s=2 * takes_s)
    told(failed={"faulty": 3 * own})
    t.after(t.state.tools["grep"].breaker.until_s - t.at_s + 0.01)
    (first,) = t.tell(ToolRunRequested(t.at_s, "a", "grep"))
    (second,) = t.tell(ToolRunRequested(t.at_s, "a", "grep"))
    assert (first.go, second.go) == (True, False)
    assert second.wait_s == pytest.approx(wait_s)


def test_who_drained_a_branch_is_remembered_as_long_as_it_is_there():
    h = House(limit=100, branches_max=2, calls_per_branch=20, nodes=("n0",))
    h.join("a", 40)
    for name in h.state.branches:
        h.say(name, calls=3)
    h.tell(DrainMember(h.at_s, "ann", "branch:0"))
    assert (h.state.members["branch:0"].state, h.state.members["branch:0"].drained) == ("draining", "ann")
    assert (h.state.members["branch:1"].state, h.state.members["branch:1"].drained) == ("up", "")
