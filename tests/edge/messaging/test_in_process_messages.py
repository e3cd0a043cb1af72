"""A message within one process has nobody wait for its answer, where calls are quick: all else is as it always is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.branch.branch import Branch
from actors.branch.reply_outbox import QUICK_S, ReplyOutbox
from actors.channel.dispatch.dispatcher import NOW_MAX, Dispatch
from actors.jobs.spec import JobSpec
from actors.journal.journal import StateFolder
from actors.messaging.payload import decoded, of_calls, of_events
from actors.ports.runtime import PeerGone
from benchmarks.harness import counting
from benchmarks.harness.chains import Chain
from benchmarks.harness.models import Oracle
from cortex.programs.hanoi import Hanoi
from cortex.state import commands, events
from cortex.state.program import Program
from cortex.state.state import flight_key
from cortex.values.limits import Limits
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.in_process_job import reply
from tests.edge.support.virtual_clock import in_virtual_time, virtually


@pytest.mark.parametrize("program", [Hanoi(disks=4, k=3), Chain(calls=12)])
def test_whether_one_waits_or_is_told_the_journal_tells_the_same(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[bool] = []

    def journalled(place: str, may: bool) -> list[Any]:
        now = Branch.fast_work

        def asked(self: Branch, *args: Any) -> bool:
            taken.append(may and now(self, *args))
            return taken[-1]

        with monkeypatch.context() as patch:
            patch.setattr(Branch, "fast_work", asked)
            state = str(tmp_path / place)
            model = Oracle() if isinstance(program, Hanoi) else Model()
            order = JobSpec(program=program, job="j", state=state, cluster="inline")
            unwatched = lambda work: nullcontext()  # noqa: E731
            virtually(counting.session(counting.Work(1), order, model, 1, 0.0, profiled=unwatched))
        journal = StateFolder(state).journal("j")
        turns = [(turn.at_s, [e for batch in turn.batches for e in batch]) for _, turn in journal.turns()]
        journal.close()
        named = (events.Opened, events.PermitsGranted)  # the one names the folder, the other who granted it
        return [(at_s, [e for e in happened if type(e) not in named]) for at_s, happened in turns]

    waited = journalled("waited", may=False)
    assert not any(taken)
    taken.clear()
    assert journalled("told", may=True) == waited
    assert taken.count(True) == len(taken) - 1 >= 10, "all but the first: nobody knew yet how quick calls are"


# -- a courier ---------------------------------------------------------------------------------------------------------


class Channel:
    """One of this very process, as it has to be."""

    name = "channel:j"
    near = True

    def __init__(self) -> None:
        self.goals: list[int] = []

    async def ask(self, method: str, *args: Any) -> None:
        self.goals += [goal for _, goal, *_ in msgspec.msgpack.decode(args[2])]

    def tell(self, method: str, *args: Any) -> None:
        raise AssertionError("a courier asks")


def _event(goal: int) -> events.Answered:
    return events.Answered(goal, "0", 1, b"", reply("ok"), 0.0, 0.0, "branch:1")


def _courier() -> tuple[ReplyOutbox, Channel, list[list[int]], Callable[[bytes], None]]:
    channel, entries = Channel(), []
    courier = ReplyOutbox("branch:1", "1", channel, lambda: True)
    courier.quick = True
    return courier, channel, entries, lambda blob: entries.append([e.goal for e in blob.content] if blob else [])  # type: ignore[attr-defined]


@in_virtual_time
async def test_it_hears_what_came_of_its_calls_from_whoever_brings_the_last_and_that_is_kept() -> None:
    courier, channel, entries, tell = _courier()
    courier.expect(1, 1, 2, tell)
    assert courier.asked
    courier.add(_event(1))
    assert entries == []
    courier.add(_event(2))
    assert entries == [[1, 2]]
    assert (courier.asked, courier.quick, courier.keys()) == (False, True, ((1, 1), (2, 1)))
    courier.on_disk(1, 1)
    assert not courier.busy
    assert channel.goals == []


@pytest.mark.parametrize("ready", [0, 1])
@in_virtual_time
async def test_it_hears_what_there_is_when_it_takes_too_long(ready: int) -> None:
    courier, channel, entries, tell = _courier()
    courier.expect(1, 1, 3, tell)
    for goal in range(ready):
        courier.add(_event(goal))
    async with asyncio.timeout(5):
        while not entries:  # noqa: ASYNC110
            await asyncio.sleep(QUICK_S)
    assert (entries, courier.quick) == ([list(range(ready))], bool(ready))
    courier.add(_event(7))
    await asyncio.sleep(QUICK_S)
    assert channel.goals == [7], "what comes later goes by itself"


@in_virtual_time
async def test_where_nobody_knows_what_was_heard_it_hears_nothing_and_all_goes_by_itself() -> None:
    courier, channel, entries, tell = _courier()
    courier.expect(1, 1, 2, tell)
    courier.add(_event(1))
    courier.again()
    assert entries == [[]]
    await asyncio.sleep(QUICK_S)
    assert (channel.goals, courier.busy) == ([1], False)


@in_virtual_time
async def test_what_does_not_fit_goes_by_itself() -> None:
    courier, channel, entries, tell = _courier()
    courier._events_max = 2
    courier.expect(1, 1, 3, tell)
    for goal in (1, 2, 3):
        courier.add(_event(goal))
    assert entries == [[1, 2]]
    await asyncio.sleep(QUICK_S)
    assert channel.goals == [3]
    await courier.close()


@pytest.mark.parametrize("near", [True, False])
@in_virtual_time
async def test_only_within_a_process_is_it_known_what_the_bytes_say(near: bool) -> None:
    channel = Channel()
    channel.near = near
    courier = ReplyOutbox("branch:1", "1", channel)
    courier.expect(1, 1, 2, lambda blob: None)
    courier.add(_event(1))
    some, blob = courier._taken_out()
    assert (some, decoded(blob)) == ([_event(1)], (_event(1),))
    assert blob.content == ((_event(1),) if near else None)
    await courier.close()


@pytest.mark.parametrize("how", ["closed", "another message waits"])
@in_virtual_time
async def test_it_hears_that_nothing_will_come(how: str) -> None:
    courier, _, entries, tell = _courier()
    courier.expect(1, 1, 2, tell)
    if how == "closed":
        await courier.close()
    else:
        waiting = asyncio.create_task(courier.answer(2, 1, 1))
        await asyncio.sleep(0)
        courier.add(_event(1))
        assert await waiting
    assert entries == [[]]


@in_virtual_time
async def test_one_that_cannot_hear_it_is_in_nobodys_way() -> None:
    courier, _, _, _ = _courier()

    def deaf(blob: bytes) -> None:
        raise RuntimeError("its own")

    courier.expect(1, 1, 1, deaf)
    courier.add(_event(1))
    assert courier.keys() == ((1, 1),), "it is kept, and told again"
    await courier.close()


# -- a branch ----------------------------------------------------------------------------------------------------------

UNUSUAL = ["usual", "slow", "heard", "older", "newer", "another", "draining", "unarmed", "asked", "unknown"]


@pytest.mark.parametrize("how", UNUSUAL)
def test_a_branch_takes_a_message_so_where_all_is_as_usual_and_else_does_nothing(how: str) -> None:
    async def play(scene: Scene) -> None:
        branch = scene.branch
        await scene.ask(call(1))
        await asyncio.sleep(1)
        await scene.ask(call(2))
        entries: list[bytes] = []
        epoch, number, incarnation, job = 1, scene.number + 1, branch.incarnation, "j"
        if how == "slow":
            branch._outboxes["j"].quick = False
        elif how == "heard":
            number = scene.number
        elif how in ("older", "newer"):
            epoch = 0 if how == "older" else 2
        elif how == "another":
            incarnation = "another"
        elif how == "draining":
            branch._draining = True
        elif how == "unarmed":
            await branch._keys.drop("j")
        elif how == "asked":
            branch._outboxes["j"].expect(1, 1, 1, lambda blob: None)
        elif how == "unknown":
            job = "other"
        parcel = of_calls(b"", [call(3), call(4)])
        took = branch.fast_work(job, epoch, incarnation, number, parcel, scene.number, entries.append)
        assert took is (how == "usual")
        await asyncio.sleep(QUICK_S / 2)
        assert [len(blob.content) for blob in entries] == ([2] if took else [])  # type: ignore[attr-defined]
        assert len(scene.models[0].asked) == (4 if took else 2)
        held = set(dict(branch._outboxes["j"].keys()))
        assert held == ({3, 4} if took else {2}), "and what was on disk is not kept any more"
        if took:
            assert not branch.fast_work("j", 1, incarnation, number, parcel, 0, entries.append), (
                "a message is taken once"
            )
        branch._draining = False

    on_stage(play)


# -- a channel ---------------------------------------------------------------------------------------------------------


class Near:
    """A branch within this process that takes what it is told to take, and tells when it is told to."""

    name, near = "a", True

    def __init__(self) -> None:
        self.takes, self.gone = True, False
        self.now_numbers: list[int] = []
        self.asked: list[int] = []
        self.tells: list[Callable[[bytes], None]] = []

    def now(self, method: str, *args: Any) -> bool:
        assert method == "fast_work"
        if self.gone:
            raise PeerGone(self.name)
        if self.takes:
            self.now_numbers.append(len(args[4].content))
            self.tells.append(args[-1])
        return self.takes

    async def ask(self, method: str, *args: Any) -> Any:
        if method == "held":
            return "a.1", True, (), 0
        assert method == "work"
        self.asked.append(len(args[4].content))
        return "a.1"

    def tell(self, method: str, *args: Any) -> None:
        pass


class Around:
    def __init__(self, branch: Near) -> None:
        self.branch = branch

    def peer(self, name: str) -> Near:
        return self.branch


def _calls(*goals: int) -> list[commands.Call]:
    return [call(goal) for goal in goals]


async def _dispatch(branch: Near) -> tuple[Dispatch, list[Any]]:
    brought: list[Any] = []
    dispatch = Dispatch("j", Around(branch), Limits(), lambda lost: None, brought.append)  # type: ignore[arg-type]
    await dispatch.meet(("a",), 1)
    return dispatch, brought


@in_virtual_time
async def test_a_channel_sends_at_once_and_what_waits_meanwhile_goes_next() -> None:
    branch = Near()
    dispatch, brought = await _dispatch(branch)
    dispatch.send(_calls(1, 2))
    assert branch.now_numbers == [2], "before anything else is done"
    dispatch.send(_calls(3))
    await asyncio.sleep(0)
    assert (branch.now_numbers, branch.asked) == ([2], []), "one message at a time"
    parcel = of_events(b"-", [_event(1), _event(2)])
    branch.tells[0](parcel)
    assert [each.batch for each in brought] == [parcel.content]
    await asyncio.sleep(0)
    assert branch.asked == [1]
    dispatch.send(_calls(4))
    assert branch.now_numbers == [2, 1]
    await dispatch.close(forget=False)


@in_virtual_time
async def test_many_calls_are_asked_by_a_task() -> None:
    branch = Near()
    dispatch, _ = await _dispatch(branch)
    dispatch.send(_calls(*range(1, NOW_MAX + 2)))
    await asyncio.sleep(0)
    assert (branch.now_numbers, branch.asked) == ([], [NOW_MAX + 1])
    dispatch.send(_calls(*range(100, 100 + NOW_MAX)))
    assert branch.now_numbers == [NOW_MAX]
    await dispatch.close(forget=False)


@pytest.mark.parametrize("gone", [True, False])
@in_virtual_time
async def test_what_is_not_taken_so_is_asked_as_ever(gone: bool) -> None:
    branch = Near()
    dispatch, _ = await _dispatch(branch)
    branch.takes, branch.gone = False, gone
    dispatch.send(_calls(1, 2))
    await asyncio.sleep(0)
    assert (branch.now_numbers, branch.asked) == ([], [2])
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_raises_has_taken_nothing_and_is_asked_with_the_next() -> None:
    branch = Near()
    dispatch, _ = await _dispatch(branch)
    (link,) = dispatch._links
    link.on_disk = 7
    branch.tells = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        dispatch.send(_calls(1))
    assert (list(link.queue), list(link.out), link.acknowledged) == ([flight_key(1, 1)], [], 0), (
        "it has not heard of the disk"
    )
    branch.tells = []
    dispatch.send(_calls(2))
    assert branch.now_numbers[1:] == [2]
    assert link.acknowledged == 7
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_branch_that_has_told_is_there() -> None:
    branch = Near()
    dispatch, _ = await _dispatch(branch)
    (link,) = dispatch._links
    dispatch._liveness.down(link)
    dispatch.send(_calls(1))
    branch.tells[0](b"")
    assert link.up
    assert not link.carrying
    await dispatch.close(forget=False)


@in_virtual_time
async def test_a_channel_that_has_closed_is_brought_nothing_and_sends_nothing() -> None:
    branch = Near()
    dispatch, brought = await _dispatch(branch)
    dispatch.send(_calls(1))
    dispatch.send(_calls(2))
    await dispatch.close(forget=False)
    branch.tells[0](of_events(b"-", [_event(1)]))
    await asyncio.sleep(0)
    assert (brought, branch.asked) == ([], [])
