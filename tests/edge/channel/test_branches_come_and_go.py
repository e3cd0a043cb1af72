"""Branches come and go while a job runs: no call is lost on the way, and none waits for a branch that is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.channel.dispatch import dispatcher
from actors.channel.dispatch.branch_links import LEVEL_BITS_MAX, BranchLink, BranchLinks
from actors.ports.runtime import PeerGone, PeerUnavailable
from cortex.state.state import flight_key
from policies.failures.failure import FailureKind
from tests.edge.channel.test_dispatcher import FakeBranch, Scene, call, until
from tests.edge.support.virtual_clock import in_virtual_time


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "AWAY_S", 0.001)
    monkeypatch.setattr(dispatcher, "BEAT_S", 0.005)
    monkeypatch.setattr(dispatcher, "SILENT_S", 0.005)
    monkeypatch.setattr(dispatcher, "MEET_S", 0.003)


@in_virtual_time
async def test_a_branch_that_joins_later_gets_its_part() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one)
    dispatch = await scene.meet()
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(one.taken) == 100)
    scene.runtime.peers["b"] = two
    dispatch.staffed(("a", "b"))
    dispatch.send([call(goal) for goal in range(101, 151)])
    await until(lambda: len(one.taken) + len(two.taken) == 150)
    assert len(two.taken) == 50
    assert scene.lost == []
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_without_a_key_is_told_who_has_one() -> None:
    """Nobody else may be there to arm it: its job may have no driver any more."""
    one, two = FakeBranch("a"), FakeBranch("b")
    two.armed = False
    scene = Scene(one, two)
    dispatch = await scene.meet()
    await until(lambda: ("a",) in two.helped)
    assert () in one.helped or one.helped == []
    two.armed = True
    await until(lambda: dispatch.without_credential() == [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_leaves_finishes_what_it_has_and_gets_nothing_more() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    one.before = [PeerUnavailable() for _ in range(3)]
    dispatch.send([call(goal) for goal in range(1, 61)])
    await until(lambda: bool(two.taken))
    dispatch.staffed(("b",))
    await until(lambda: len(one.taken) + len(two.taken) == 60)
    before = len(one.taken)
    dispatch.send([call(goal) for goal in range(61, 161)])
    await until(lambda: len(two.taken) == 160 - before)
    assert len(one.taken) == before
    assert scene.lost == []
    for goal, _ in one.taken:
        dispatch.settled([flight_key(goal, 1)])
    assert [link.name for link in dispatch._links] == ["b"], "nobody to us once it has brought back all"
    await dispatch.close(forget=False)


@in_virtual_time
async def test_what_a_draining_branch_leaves_alone_goes_to_another() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    one.draining = True
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(two.taken) == 100)
    assert (one.taken, scene.lost) == ([], [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_message_that_was_sent_twice_and_left_alone_goes_to_another() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    one.before, one.draining = [PeerUnavailable()], True
    dispatch.send([call(1)])
    await until(lambda: two.taken == [(1, 1)])
    assert (one.taken, scene.lost) == ([], [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_late_word_from_a_dead_branch_changes_nothing() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    link = dispatch._links.get("a")
    assert link is not None
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    old = branch.incarnation
    branch.die()
    await until(lambda: len(scene.lost) == 1)
    dispatch.send([call(2)])
    await until(lambda: (2, 2) in branch.taken)
    dispatch._liveness.renewed(link, branch.incarnation, old)
    assert (link.incarnation, len(scene.lost)) == (branch.incarnation, 1)
    await dispatch.close(forget=False)


class LateBranch(FakeBranch):
    """Keeps its first answer to one method back until ``release`` is set; later answers overtake it."""

    def __init__(self, name: str, late: str) -> None:
        super().__init__(name)
        self.late = late
        self.kept = False
        self.release = asyncio.Event()

    async def ask(self, method: str, *args: Any) -> Any:
        answer = await super().ask(method, *args)
        if method == self.late and not self.kept:
            self.kept = True
            await self.release.wait()
        return answer


@in_virtual_time
async def test_the_answer_to_a_message_that_a_later_process_has_overtaken_is_no_news() -> None:
    branch = LateBranch("a", "work")
    scene = Scene(branch)
    dispatch = await scene.meet()
    (link,) = dispatch._links
    dispatch._liveness.renewed(link, "a.1", "")
    branch.die()
    dispatch.send([call(1)])
    await until(lambda: branch.kept)
    branch.die()
    await until(lambda: link.incarnation == "a.3")  # by a sign of life
    branch.release.set()
    await until(lambda: branch.taken == [(1, 3)])
    assert (link.incarnation, scene.lost) == ("a.3", [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_sign_of_life_that_a_later_process_has_overtaken_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "SILENT_S", 5.0)
    branch = LateBranch("a", "beat")
    scene = Scene(branch)
    dispatch = await scene.meet()
    (link,) = dispatch._links
    dispatch._liveness.renewed(link, "a.1", "")
    branch.die()
    dispatch._liveness.down(link)
    dispatch._watch()
    await until(lambda: branch.kept)
    branch.die()
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 3)])
    branch.release.set()
    await until(lambda: len(branch.helped) > 1)
    assert (link.incarnation, scene.lost) == ("a.3", [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_calls_that_an_earlier_process_told_of_too_late_are_not_counted_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "MEET_S", 5.0)
    one, branch = FakeBranch("a"), LateBranch("b", "held")
    scene = Scene(one)
    dispatch = await scene.meet()
    scene.runtime.peers["b"] = branch
    branch.holds = [(7, 1)]
    dispatch.staffed(("a", "b"))
    await until(lambda: branch.kept)
    branch.die()
    branch.holds = []
    link = dispatch._links.get("b")
    assert link is not None
    dispatch._liveness.renewed(link, "", "b.2")
    branch.release.set()
    await until(lambda: not dispatch._tasks)
    assert (link.incarnation, link.out) == ("b.2", {})
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_message_that_a_draining_branch_had_heard_is_not_sent_to_another() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    one.after = [PeerUnavailable()]
    dispatch.send([call(1)])
    await until(lambda: one.taken == [(1, 1)])
    one.draining = True
    await until(lambda: not one.after and not dispatch._links.get("a").carrying)  # type: ignore[union-attr]
    assert (two.taken, scene.lost) == ([], [])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_calls_without_a_branch_wait_for_one_and_ask_for_it() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one)
    dispatch = await scene.meet()
    one.draining = True
    dispatch.send([call(1), call(2), call(3)])
    await until(lambda: len(dispatch._unassigned) == 3)
    dispatch.abandon([(2, 1)])
    assert [e.goal for e in scene.lost] == [2]
    scene.runtime.peers["b"] = two
    scene.runtime.cortex.staff = ("b",)
    await until(lambda: [goal for goal, _ in two.taken] == [1, 3])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_name_that_comes_back_is_another_branch() -> None:
    one = FakeBranch("a")
    scene = Scene(one)
    dispatch = await scene.meet()
    dispatch.send([call(1)])
    await until(lambda: one.taken == [(1, 1)])
    one.draining = True
    dispatch.send([call(2)])
    await until(lambda: len(dispatch._unassigned) == 1)
    one.draining = False
    one.die()
    dispatch.staffed(("a",))
    await until(lambda: (2, 2) in one.taken)
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(1, True)]
    await dispatch.close(forget=False)


@pytest.mark.parametrize("trouble", ["away", "silent"])
@in_virtual_time
async def test_a_branch_whose_end_the_cluster_has_seen_is_not_waited_for(trouble: str) -> None:
    """Its successor is not up yet. What it held is lost now; a call on its way to it, too."""
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(one.taken) + len(two.taken) == 100)
    held = [goal for goal, _ in one.taken]
    if trouble == "away":
        one.before = [PeerUnavailable() for _ in range(10_000)]
    one.silent = trouble == "silent"
    await asyncio.sleep(0.02)
    assert scene.lost == [], "silence proves nothing"
    scene.runtime.dead.add(one.incarnation)
    await until(lambda: bool(scene.lost))
    assert [e.goal for e in scene.lost] == held
    assert {e.failure.kind for e in scene.lost} == {FailureKind.LOST}
    dispatch.send([call(goal) for goal in range(101, 105)])
    await until(lambda: [goal for goal, _ in two.taken][-4:] == [101, 102, 103, 104])
    one.before, one.silent = [], False
    one.die()
    await until(lambda: dispatch._links.get("a").up)  # type: ignore[union-attr]
    assert len(scene.lost) == len(held), "told once"
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_call_of_which_its_branch_knows_nothing_any_more_is_told() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    dispatch.send([call(1), call(2), call(3)])
    await until(lambda: len(branch.taken) == 3)
    branch.holds = [(1, 1), (2, 1)]
    await until(lambda: bool(scene.lost))
    assert [(e.goal, e.failure.kind, e.failure.sent) for e in scene.lost] == [(3, FailureKind.LOST, True)]
    await asyncio.sleep(2 * dispatcher.AUDIT_BEATS * 0.006)
    assert len(scene.lost) == 1
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_call_on_its_way_is_not_taken_for_a_forgotten_one() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    link = dispatch._links.get("a")
    assert link is not None
    branch.before = [PeerUnavailable() for _ in range(1_000_000)]
    dispatch.send([call(1)])
    for _ in range(3):
        await dispatch._audit(link)
    await asyncio.sleep(0.01)
    for _ in range(3):
        await dispatch._audit(link)
    assert scene.lost == []
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_is_gone_while_it_leaves_is_forgotten() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(one.taken) + len(two.taken) == 100)
    dispatch.staffed(("b",))
    one.before = [PeerGone()]
    await until(lambda: bool(scene.lost))
    assert len(dispatch._links) == 1
    assert ("missed", "a") not in scene.runtime.cortex.told
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_falls_silent_while_it_leaves_is_told_to_the_cortex() -> None:
    """The cortex may have forgotten it: nobody else would ever end its calls."""
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(one.taken) + len(two.taken) == 100)
    one.silent = two.silent = True
    await asyncio.sleep(0.02)
    assert ("missed", "a") not in scene.runtime.cortex.told, "the cortex watches those that it counts on"
    dispatch.staffed(("b",))
    await until(lambda: ("missed", "a") in scene.runtime.cortex.told)
    assert ("missed", "b") not in scene.runtime.cortex.told
    await dispatch.close(forget=False)


def _linked(count: int, concurrency: int = 100) -> tuple[BranchLinks, list[BranchLink]]:
    links = BranchLinks(concurrency)
    some = [BranchLink(f"branch:{place}", FakeBranch(f"branch:{place}")) for place in range(count)]  # type: ignore[arg-type]
    for link in some:
        links.add(link)
    return links, some


def test_the_least_burdened_are_chosen_in_their_turn() -> None:
    links, (a, b, c) = _linked(3)
    assert [links.least() for _ in range(4)] == [a, b, c, a]
    b.out = {goal: call(goal) for goal in range(1 << LEVEL_BITS_MAX)}
    links.look(b)
    assert [links.least() for _ in range(4)] == [c, a, c, a]
    a.up = c.has_credential = False
    links.look(a)
    links.look(c)
    assert [links.least() for _ in range(2)] == [b, b]
    b.leaving = True
    links.look(b)
    assert links.least() in (a, c), "one that will work, where none can now"
    for link in (a, b, c):
        links.remove(link)
    assert links.least() is None


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (8, 1), (16, 2), (32, 4), (64, 8), (10_000, 8)])
def test_one_that_is_silent_has_hardly_more_than_its_share(concurrency: int, most: int) -> None:
    """Two branches; of one nothing comes back any more. As many calls are out as may be, until the other has none."""
    links, (silent, other) = _linked(2, concurrency)
    goals = iter(range(50 * concurrency))
    while silent.burden() < concurrency:
        while silent.burden() + other.burden() < concurrency:
            if (goal := next(goals, None)) is None:
                assert silent.burden() <= concurrency // 2 + most
                return
            link = links.least()
            assert link is not None
            link.out[goal] = call(goal)
            links.look(link)
        if other.out:
            del other.out[next(iter(other.out))]
            links.look(other)
    assert concurrency == 1, "all calls are with the one that is silent"


def test_choosing_costs_the_same_for_any_number_of_branches() -> None:
    """Steps taken, not time: the levels that are looked at, and the branches."""

    def steps(count: int) -> int:
        links, some = _linked(count)
        taken = 0

        class Counting(dict):  # type: ignore[type-arg]
            def __contains__(self, key: object) -> bool:
                nonlocal taken
                taken += 1
                return super().__contains__(key)

        links._levels = Counting(links._levels)
        for goal in range(2_000):
            link = links.least()
            assert link is not None
            link.out[goal] = call(goal)
            links.look(link)
        assert max(map(BranchLink.burden, some)) - min(map(BranchLink.burden, some)) <= 1 << LEVEL_BITS_MAX
        return taken

    assert steps(400) <= steps(4) + 400
