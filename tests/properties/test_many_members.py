"""What is told, and looked up, only now and then of many branches and nodes is in the end what a look at all would show.

``FEW`` is made small here, so that a handful are many.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.scheduler import autoscaling, health
from cortex.scheduler.protocol import Command, DrainMember, Event, MemberDied, MembersChanged, NodesChanged, TimePassed
from cortex.scheduler.state import NEVER
from tests.support.fake_members import House, of

NODES = tuple(f"n{place}" for place in range(6))
DEEDS = st.lists(
    st.tuples(
        st.sampled_from(("dies", "drains", "work", "fails", "little", "much", "node lost", "node back", "time", "time")),
        st.integers(0, 9),
    ),
    max_size=30,
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _few() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoscaling, "FEW", 3)
        yield


class Many(House):
    """Twelve branches on six nodes, and what was told of them, with its times."""

    def __init__(self) -> None:
        self.told: list[tuple[float, MembersChanged]] = []
        super().__init__(limit=120, nodes=NODES, branches_min=1, branches_max=12, calls_per_branch=10)
        self.join("a", 120)

    def tell(self, event: Event) -> list[Command]:
        for node in self.state.nodes if hasattr(self, "state") else ():
            if node not in self.nodes:
                self.nodes = (*self.nodes, node)
        commands = super().tell(event)
        known = {id(order) for _, order in self.told}  # who starts one hears what came of that as well
        self.told += [(self.at_s, order) for order in of(MembersChanged, commands) if id(order) not in known]
        return commands

    def do(self, what: str, place: int) -> None:
        names = sorted(self.state.members)
        name = names[place % len(names)] if names else ""
        if what == "dies" and name:
            self.tell(MemberDied(self.at_s, name))
        elif what == "drains" and name:
            self.tell(DrainMember(self.at_s, "who", name))
        elif what == "work" and name in self.life and self.state_of(name) == "up":
            self.say(name, calls=place % 2)
        elif what in ("little", "much"):
            self.join("a", 20 if what == "little" else 120)
        elif what == "node lost":
            self.tell(NodesChanged(self.at_s, tuple(node for node in NODES if node != NODES[place % 6])))
        elif what == "node back":
            self.tell(NodesChanged(self.at_s, NODES))
        elif what == "time":
            self.after(0.3 * (1 + place))


@settings(max_examples=60, deadline=None)
@given(DEEDS)
def test_who_takes_work_is_told_in_the_end_and_not_with_each_change(deeds: list[tuple[str, int]]) -> None:
    h = Many()
    for what, place in deeds:
        h.do(what, place)
        for role, lines in (("branch", h.state.branches), ("worker", h.state.workers)):
            if lines != autoscaling.up(h.state, role):
                assert h.state.due_s <= h.state.announced_s + autoscaling.ANNOUNCE_S, "nobody will come back to it"
    for _ in range(10):
        if h.state.due_s < NEVER:
            h.at_s = max(h.at_s, h.state.due_s)
            h.tell(TimePassed(h.at_s))
    h.after(autoscaling.ANNOUNCE_S)
    h.tell(TimePassed(h.at_s))
    assert h.state.branches == autoscaling.up(h.state, "branch")
    for (before_s, _), (at_s, order) in zip(h.told, h.told[1:], strict=False):
        assert len(order.branches) <= 3 or at_s >= before_s + autoscaling.ANNOUNCE_S or before_s == h.told[0][0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from((0.1, 0.1, 5.0)), st.floats(0.001, 0.02)), min_size=1))
def test_which_nodes_are_worse_is_what_a_look_at_all_shows_of_a_moment_ago(
    told: list[tuple[int, float, float]],
) -> None:
    h = Many()
    looks = {h.state.worse_s: h.state.worse}
    for place, seconds, wait_s in told:
        h.state.at_s += wait_s
        if NODES[place] in h.state.nodes:
            health.record(h.state.nodes[NODES[place]].seen, h.state.at_s, answered=25, samples=((seconds, 1),) * 16)
        looks[h.state.at_s] = autoscaling.worse(h.state)
        lines, as_of_s = autoscaling._worse(h.state), h.state.worse_s
        assert h.state.at_s - as_of_s < len(h.state.nodes) * autoscaling.WORSE_PACE_S
        assert lines == looks[as_of_s]
