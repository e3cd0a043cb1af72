"""A message to a branch is taken once, by the incarnation it was meant for; a call is lost only with its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actors.branch.branch import DRAINING
from actors.channel.dispatch import dispatcher
from actors.channel.dispatch.branch_links import LATE_S, TOGETHER_MAX, BranchLink, BranchLinks
from actors.channel.dispatch.dispatcher import ANSWER_S, AUDIT_BEATS, BEAT_S, Dispatch
from actors.messaging.inbox import InboxEntry
from actors.ports.runtime import PeerGone, PeerUnavailable
from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.state import flight_key
from cortex.values.limits import Limits
from tests.edge.support.virtual_clock import in_virtual_time, virtually


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "AWAY_S", 0.001)
    monkeypatch.setattr(dispatcher, "BEAT_S", 0.005)
    monkeypatch.setattr(dispatcher, "MEET_S", 0.003)


class FakeBranch:
    """Takes messages as a branch does; ``trouble`` may raise before or after a message is taken."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = 1
        self.armed = True
        self.silent = False
        self.heard: set[int] = set()
        self.taken: list[tuple[int, int]] = []
        self.before: list[Exception] = []
        self.after: list[Exception] = []
        self.told: list[Any] = []
        self.heard_of: list[tuple[int, bool]] = []
        """What each message said is on disk, and whether its answer may wait."""
        self.along: list[bytes] = []
        """What goes with the next answers."""
        self.helped: list[tuple[str, ...]] = []
        """Peers that were named to it with each beat."""
        self.holds: list[tuple[int, int]] = []
        self.epoch = 0
        """Highest epoch of the job that it has heard of."""
        self.staff: tuple[str, ...] = ()
        self.draining = False
        self.gone: asyncio.Event | None = None
        """A message that is there until then never arrives."""
        self.met = asyncio.Event()
        self.met.set()

    @property
    def incarnation(self) -> str:
        return f"{self.name}.{self.life}"

    def die(self) -> None:
        self.life += 1
        self.heard.clear()

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "staff":
            return self.staff, ()
        if method == "held":
            if self.silent:
                await asyncio.Event().wait()
            await self.met.wait()
            known, self.epoch = self.epoch, max(self.epoch, args[1])
            return self.incarnation, self.armed, tuple(self.holds), known
        if method == "beat":
            self.helped.append(args[1])
            if self.silent:
                await asyncio.Event().wait()
            if self.before:
                raise self.before.pop()
            return {"incarnation": self.incarnation, "armed": self.armed}
        assert method == "work"
        _, _, meant_for, number, blob, _, on_disk, waits = args
        self.heard_of.append((on_disk, waits))
        if self.gone is not None and not self.gone.is_set():
            await self.gone.wait()
            raise PeerGone
        if self.before:
            raise self.before.pop()
        if meant_for == self.incarnation and number not in self.heard:
            if self.draining:
                return DRAINING
            self.heard.add(number)
            self.taken += [(c.goal, self.life) for c in msgspec.msgpack.decode(blob, type=list[commands.Call])]
        if self.after:
            raise self.after.pop()
        return (self.incarnation, self.along.pop(0)) if self.along else self.incarnation

    def tell(self, method: str, *args: Any) -> None:
        self.told.append((method, *args))


class FakeRuntime:
    def __init__(self, *branches: FakeBranch) -> None:
        self.peers = {branch.name: branch for branch in branches}
        self.cortex = FakeBranch("cortex")
        self.dead: set[str] = set()

    async def is_dead(self, name: str, incarnation: str) -> bool:
        return incarnation in self.dead

    def peer(self, name: str) -> Any:
        return self.peers.get(name, self.cortex)


def call(goal: int) -> commands.Call:
    return commands.Call(goal, "0", 1, b"", b"{}", 1, 100, 10.0)


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110 - the fake has no event to wait for
            await asyncio.sleep(0.001)


class Scene:
    def __init__(self, *branches: FakeBranch) -> None:
        self.runtime = FakeRuntime(*branches)
        self.lost: list[events.AttemptFailed] = []
        self.brought: list[InboxEntry] = []
        self.dispatch = Dispatch("j", self.runtime, Limits(), self.lost.extend, self.brought.append)  # type: ignore[arg-type]
        self.names = tuple(branch.name for branch in branches)

    async def meet(self) -> Dispatch:
        await self.dispatch.meet(self.names, 1)
        return self.dispatch


@in_virtual_time
async def test_a_message_that_was_heard_but_not_answered_is_not_taken_twice() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.after = [PeerUnavailable(), PeerUnavailable()]
    dispatch.send([call(1)])
    await until(lambda: not branch.after)
    dispatch.send([call(2)])
    await until(lambda: len(branch.taken) == 2)
    assert branch.taken == [(1, 1), (2, 1)]
    assert scene.lost == []
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_message_to_another_process_sets_out_in_the_next_round_of_the_loop_and_the_sender_knows() -> None:
    """So that a channel can let it go, and do the rest of its turn meanwhile."""
    branch = FakeBranch("a")
    dispatch = await Scene(branch).meet()
    assert dispatch.send([call(1)])
    await asyncio.sleep(0)
    assert branch.taken == [(1, 1)]
    await until(lambda: not any(link.carrying for link in dispatch._links))
    branch.near = True  # type: ignore[attr-defined]
    near = await Scene(branch).meet()
    assert not near.send([call(2)])  # within one process nothing is under way meanwhile
    for each in (dispatch, near):
        await each.close(forget=False)


@in_virtual_time
async def test_a_message_that_nobody_heard_is_sent_again() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.before = [PeerUnavailable(), PeerUnavailable()]
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    assert scene.lost == []
    await dispatch.close(forget=False)


@in_virtual_time
async def test_what_a_dead_branch_held_is_lost_and_what_it_never_got_is_not() -> None:
    """It died between two messages: the second finds its successor, which takes it once it is meant."""
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    branch.die()
    dispatch.send([call(2)])
    await until(lambda: (2, 2) in branch.taken)
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(1, True)]
    assert branch.taken == [(1, 1), (2, 2)]
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_message_that_a_dead_branch_may_have_heard_is_lost_and_not_sent_again() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.after = [PeerUnavailable()]
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    branch.die()
    await until(lambda: bool(scene.lost))
    dispatch.send([call(2)])
    await until(lambda: (2, 2) in branch.taken)
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(1, True)]
    assert (1, 2) not in branch.taken
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_dead_branch_is_noticed_by_its_beat() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    branch.die()
    await until(lambda: bool(scene.lost))
    assert [e.goal for e in scene.lost] == [1]
    await dispatch.close(forget=False)


@pytest.mark.parametrize("noticed", ["by its successor", "by the cluster"])
def test_calls_behind_a_message_that_a_dead_branch_never_answers_go_to_its_successor(noticed: str) -> None:
    """They would wait until the message is given up: beyond the deadline of their job."""

    async def played() -> float:
        branch = FakeBranch("a")
        scene = Scene(branch)
        dispatch = await scene.meet()
        branch.gone = asyncio.Event()
        dispatch.send([call(1)])
        await asyncio.sleep(0.001)
        scene.runtime.dead.add(branch.incarnation)
        branch.die()
        branch.silent = noticed == "by the cluster"
        await until(lambda: bool(scene.lost))
        branch.gone, branch.silent = None, False
        dispatch.send([call(2)])
        async with asyncio.timeout(ANSWER_S + 5):
            while not branch.taken:  # noqa: ASYNC110 - the fake has no event to wait for
                await asyncio.sleep(0.001)
        assert [each.goal for each in scene.lost] == [1] and branch.taken == [(2, 2)]
        await dispatch.close(forget=False)
        return asyncio.get_running_loop().time()

    assert virtually(played()) < 2 * LATE_S


def test_results_that_a_branch_has_sent_before_it_ended_arrive() -> None:
    """The news of its end may overtake them."""

    async def played() -> None:
        branch = FakeBranch("a")
        scene = Scene(branch)
        dispatch = await scene.meet()
        await until(lambda: not any(link.carrying for link in dispatch._links))
        real, came = branch.ask, codec.encode_batch([events.GivenBack(1, "0", 1)])

        async def ask(method: str, *args: Any) -> Any:
            answer = await real(method, *args)
            if method == "work":
                branch.die()
                await asyncio.sleep(LATE_S / 2)
                return answer, came
            return answer

        branch.ask = ask  # type: ignore[method-assign]
        dispatch.send([call(1)])
        await until(lambda: bool(scene.lost))
        assert not scene.brought
        await until(lambda: bool(scene.brought))
        await dispatch.close(forget=False)

    virtually(played())


def test_a_branch_that_never_says_what_it_holds_does_not_stop_the_beats() -> None:
    async def played() -> int:
        branch = FakeBranch("a")
        scene = Scene(branch)
        dispatch = await scene.meet()
        dispatch.send([call(1)])
        await asyncio.sleep(0.1)
        branch.met.clear()
        await asyncio.sleep(10 * AUDIT_BEATS * BEAT_S)
        beats = len(branch.helped)
        await dispatch.close(forget=False)
        return beats

    assert virtually(played()) > 5 * AUDIT_BEATS


def test_a_scheduler_that_never_names_the_staff_is_asked_again() -> None:
    async def played() -> list[tuple[int, int]]:
        late, asked = FakeBranch("b"), []
        scene = Scene()
        scene.runtime.peers["b"] = late
        answer = scene.runtime.cortex.ask

        async def silent_once(method: str, *args: Any) -> Any:
            asked.append(method)
            return await (asyncio.Event().wait() if len(asked) == 1 else answer(method, *args))

        scene.runtime.cortex.ask = silent_once  # type: ignore[method-assign]
        scene.runtime.cortex.staff = ("b",)
        dispatch = await scene.meet()
        dispatch.send([call(1)])
        await asyncio.sleep(60)
        await dispatch.close(forget=False)
        return late.taken

    assert virtually(played()) == [(1, 1)]


def test_of_many_branches_so_many_are_asked_at_each_beat_in_turn_and_those_that_may_be_gone_each_time() -> None:
    links = BranchLinks()
    many = [BranchLink(f"b{place:02}", FakeBranch(f"b{place:02}")) for place in range(40)]
    for link in many:
        links.add(link)
        link.out[1] = call(1)
    asked = [[link.name for link in links.to_ask(beat, 10)] for beat in range(1, 9)]
    assert {len(names) for names in asked} == {10}
    assert sorted(name for names in asked for name in names) == sorted(2 * [link.name for link in many]), (
        "each in its turn, twice in eight beats"
    )
    many[0].leaving = True
    many[1].up = False
    assert [link.name for link in links.to_ask(9, 10)][:2] == ["b00", "b01"]
    assert [link.name for link in links.to_ask(10, 10)][:2] == ["b00", "b01"]
    assert {link.name for beat in range(4) for link in links.to_audit(beat + 1, 10)} == {link.name for link in many}


@in_virtual_time
async def test_one_of_many_that_died_is_noticed_when_its_turn_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "BEAT_LINKS", 2)
    many = [FakeBranch(f"b{place}") for place in range(9)]
    dispatch = await (scene := Scene(*many)).meet()
    dispatch.send([call(goal) for goal in range(1, 9 * TOGETHER_MAX)])
    await until(lambda: all(branch.taken for branch in many))
    many[8].die()
    await until(lambda: bool(scene.lost))
    assert {e.by for e in scene.lost} == {"b8"}
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_says_nothing_keeps_no_channel_from_beginning() -> None:
    silent, well = FakeBranch("a"), FakeBranch("b")
    silent.silent = True
    well.holds = [(7, 1)]
    scene = Scene(silent, well)
    async with asyncio.timeout(5):
        assert await scene.dispatch.meet(scene.names, 1) == ((7, 1),)
    assert scene.dispatch.unmet, "it may hold replies that this channel knows nothing of"
    scene.dispatch.send([call(1)])
    await until(lambda: well.taken == [(1, 1)])
    await scene.dispatch.close(forget=False)


@in_virtual_time
async def test_calls_go_to_the_branch_that_answers() -> None:
    dead, alive = FakeBranch("a"), FakeBranch("b")
    scene = Scene(dead, alive)
    dispatch = await scene.meet()
    dead.before = [PeerUnavailable() for _ in range(1_000)]
    dispatch.send([call(1)])
    await until(lambda: len(dead.before) < 1_000)
    dispatch.send([call(goal) for goal in range(2, 12)])
    await until(lambda: len(alive.taken) == 10)
    assert [goal for goal, _ in alive.taken] == list(range(2, 12))
    assert scene.lost == []
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_left_and_came_back_takes_what_is_new() -> None:
    """It lives on and knows the numbers that it has heard: what it took for told before would be lost."""
    scene = Scene(one := FakeBranch("one"), FakeBranch("two"))
    dispatch = await scene.meet()
    dispatch.staffed(("one",))
    dispatch.send([call(1), call(2)])
    await until(lambda: len(one.taken) == 2)
    for goal in (1, 2):
        dispatch.settled([flight_key(goal, 1)])
    dispatch.staffed(("two",))
    dispatch.staffed(("one",))
    dispatch.send([call(3)])
    await until(lambda: (3, 1) in one.taken)
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_is_gone_for_good_is_replaced() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.before = [PeerGone()]
    dispatch.send([call(1)])
    await until(lambda: bool(scene.lost))
    assert [e.goal for e in scene.lost] == [1]
    await until(lambda: ("missed", "a") in scene.runtime.cortex.told)
    await dispatch.close(forget=False)


@in_virtual_time
async def test_what_is_not_sent_yet_is_taken_back_when_nobody_waits_for_it() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    dispatch.send([call(1)])
    await until(lambda: branch.taken == [(1, 1)])
    dispatch.send([call(2)])
    dispatch.abandon([(1, 1), (2, 1)])
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(2, False)]
    assert branch.told == [("abandon", "j", 1, ((1, 1),))]
    await dispatch.close(forget=False)
    assert branch.taken == [(1, 1)]


@in_virtual_time
async def test_neighbours_travel_together_and_no_branch_is_left_without() -> None:
    one, two = FakeBranch("a"), FakeBranch("b")
    scene = Scene(one, two)
    dispatch = await scene.meet()
    dispatch.send([call(goal) for goal in range(1, 101)])
    await until(lambda: len(one.taken) + len(two.taken) == 100)
    assert len(one.taken) == len(two.taken) == 50
    dispatch.send([call(goal) for goal in range(101, 111)])
    await until(lambda: len(one.taken) + len(two.taken) == 110)
    assert sorted([len(one.taken), len(two.taken)]) == [50, 60]
    assert len(one.heard) + len(two.heard) == 3
    await dispatch.close(forget=False)


@pytest.mark.parametrize("kind", [None, PeerUnavailable, PeerGone])
@pytest.mark.parametrize("others", [0, 1])
@in_virtual_time
async def test_what_is_on_the_way_to_a_branch_that_was_not_met_yet_is_neither_lost_nor_an_attempt(
    others: int, kind: type[Exception] | None
) -> None:
    """Nobody has taken it, for it waits until the branch is met: it goes to whoever is there, and nothing has failed."""
    new, old = FakeBranch("b"), FakeBranch("a")
    new.met.clear()
    ask, trouble = new.ask, [kind()] * 2 if kind else []

    async def troubled(method: str, *args: Any) -> Any:
        if method == "held" and trouble:
            raise trouble.pop()
        return await ask(method, *args)

    new.ask = troubled  # type: ignore[method-assign]
    scene = Scene(*[old, new][1 - others :])
    dispatch = scene.dispatch
    await dispatch.meet(("a",)[:others], 1)
    dispatch.staffed(scene.names)
    dispatch.send([call(goal) for goal in range(1, 6)])
    asyncio.get_running_loop().call_later(0.002, new.met.set)
    await until(lambda: len(old.taken) + len(new.taken) == 5)
    await asyncio.sleep(0.02)
    assert scene.lost == []
    assert sorted(goal for goal, _ in old.taken + new.taken) == [1, 2, 3, 4, 5]
    await dispatch.close(forget=False)


@in_virtual_time
async def test_what_is_sent_to_a_branch_that_is_gone_waits_for_its_successor() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.before = [PeerGone()]
    dispatch.send([call(1)])
    await until(lambda: bool(scene.lost))
    branch.before = [PeerGone() for _ in range(8)]
    branch.die()
    dispatch.send([call(2)])
    await until(lambda: branch.taken == [(2, 2)])
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(1, True)]
    await dispatch.close(forget=False)


@in_virtual_time
async def test_word_that_a_branch_is_gone_does_not_end_its_successor() -> None:
    branch = FakeBranch("a")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.gone = asyncio.Event()
    dispatch.send([call(1)])
    branch.die()
    await until(lambda: bool(scene.lost))  # a beat has told of the next one
    dispatch.send([call(2)])
    branch.gone.set()
    await until(lambda: branch.taken == [(2, 2)])
    assert [(e.goal, e.failure.sent) for e in scene.lost] == [(1, True)]
    await dispatch.close(forget=False)


def test_a_message_within_one_process_is_never_put_into_bytes_and_one_to_another_is() -> None:
    """Nobody would read them; how large it may be is bounded all the same."""
    for near in (True, False):
        branch = FakeBranch("a")
        branch.near = near  # type: ignore[attr-defined]
        link = BranchLink("a", branch)  # type: ignore[arg-type]
        link.queue = {flight_key(goal, 1): call(goal) for goal in (1, 2)}
        blob, keys = link.packed(Limits())
        assert (blob.content, keys) == ([call(1), call(2)], [flight_key(1, 1), flight_key(2, 1)])
        if near:
            assert bytes(blob) == b""
        else:
            assert msgspec.msgpack.decode(blob, type=list[commands.Call]) == blob.content


class ClusterTrouble(Exception):
    """Error that no interface names, as Ray's while its head is away."""


@in_virtual_time
async def test_a_branch_that_died_while_the_cluster_could_not_tell_is_noticed_once_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The question may raise at any look, at the beat's and at the sender's; neither of them ends by it."""
    monkeypatch.setattr(dispatcher, "SILENT_S", 0.003)
    a = FakeBranch("a")
    scene = Scene(a)
    dispatch = await scene.meet()
    dispatch.send([call(1), call(2)])
    await until(lambda: len(a.taken) == 2)
    tells: list[bool | Exception] = [ClusterTrouble() for _ in range(2 * dispatcher.LOOKS)]

    async def is_dead(name: str, incarnation: str) -> bool:
        answer = tells.pop() if tells else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    scene.runtime.is_dead = is_dead  # type: ignore[method-assign]
    a.silent = True
    a.before = [PeerUnavailable("a") for _ in range(100)]
    dispatch.send([call(3)])
    await until(lambda: len(scene.lost) >= 2)
    assert not tells
    assert {event.goal for event in scene.lost} >= {1, 2}
    await dispatch.close(forget=False)


@pytest.mark.parametrize("method", ["beat", "held", "work", "staff"])
@in_virtual_time
async def test_an_error_that_no_interface_names_ends_neither_the_beats_nor_a_queue(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Calls of a message that met the error, and that the branch has not taken, are lost as an audit finds."""
    monkeypatch.setattr(dispatcher, "AUDIT_BEATS", 2)
    a = FakeBranch("a")
    asked, troubles = a.ask, [ClusterTrouble()]

    async def ask(what: str, *args: Any) -> Any:
        if what == method and troubles:
            await asyncio.sleep(0)
            raise troubles.pop()
        return await asked(what, *args)

    scene = Scene(a)
    a.staff = ("a",)
    a.ask = scene.runtime.cortex.ask = ask  # type: ignore[method-assign]
    dispatch = await scene.meet()
    a.holds = [(2, 1)] if method == "work" else [(1, 1), (2, 1)]
    if method == "staff":
        dispatch.staffed(())
    dispatch.send([call(1)])
    await asyncio.sleep(0)
    dispatch.send([call(2)])  # while the first message is under way
    await until(lambda: not troubles and len(a.taken) + len({event.goal for event in scene.lost}) >= 2)
    assert {event.goal for event in scene.lost} == ({1} if method == "work" else set())
    a.die()
    scene.runtime.dead.add("a.1")
    await until(lambda: {event.goal for event in scene.lost} == {1, 2})
    await dispatch.close(forget=False)
