"""What comes along with the answers of branches, as a channel hears it and tells of it."""

from __future__ import annotations

import asyncio

import pytest

from actors.channel.dispatch.branch_links import BranchLink
from actors.channel.dispatch.piggyback import ACK_S, WAITS_MAX, PiggybackedResults
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import flight_key
from policies.failures.failure import Failure, FailureKind
from tests.edge.channel.test_dispatcher import FakeBranch, Scene, call, until
from tests.edge.support.virtual_clock import in_virtual_time


@in_virtual_time
async def test_what_came_with_an_answer_is_for_the_next_turn_and_the_branch_hears_when_it_is_on_disk() -> None:
    branch = FakeBranch("branch:0")
    scene = Scene(branch)
    dispatch = await scene.meet()
    failed = events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "reset"), by="branch:0")
    branch.along = [codec.encode_batch([failed])]
    dispatch.send([call(1)])
    await until(lambda: bool(scene.brought))
    assert scene.brought[0].batch == (failed,) and scene.brought[0].blob == codec.encode_batch([failed])
    await asyncio.sleep(2 * ACK_S)
    assert branch.told == [], "nobody knows yet whether it is on disk"
    dispatch.send([call(2)])
    await until(lambda: len(branch.heard_of) == 2)
    dispatch.settled([flight_key(1, 1)])
    dispatch.settled([flight_key(2, 1)])
    dispatch.send([call(3)])
    await until(lambda: len(branch.heard_of) == 3)
    assert branch.heard_of == [(0, True), (0, True), (1, True)], "the next message after that says so"
    await asyncio.sleep(2 * ACK_S)
    assert branch.told == []
    await dispatch.close(forget=False)


@pytest.mark.parametrize("leaves", [False, True])
@in_virtual_time
async def test_a_branch_that_is_sent_nothing_hears_it_all_the_same(leaves: bool) -> None:
    """Also one that has left: it keeps what it brought until then, and does not end."""
    branch = FakeBranch("branch:0")
    scene = Scene(branch)
    dispatch = await scene.meet()
    branch.along = [codec.encode_batch([events.AttemptFailed(1, "0", 1, Failure(FailureKind.TRANSIENT, "reset"))])]
    dispatch.send([call(1)])
    await until(lambda: bool(scene.brought))
    if leaves:
        dispatch.staffed(())
    dispatch.settled([flight_key(1, 1)])
    assert tuple(dispatch.processes()) == (() if leaves else ("branch:0",))
    await asyncio.sleep(ACK_S * 0.9)
    assert branch.told == []
    await until(lambda: bool(branch.told))
    assert branch.told == [("on_disk", "j", 1, 1)]
    await dispatch.close(forget=False)


@in_virtual_time
async def test_only_a_message_that_is_very_large_waits_for_nothing() -> None:
    scene = Scene(FakeBranch("branch:0"))
    along, link = PiggybackedResults("j", scene.brought.append), BranchLink("branch:0", scene.runtime.peer("branch:0"))
    assert along.sent(link, WAITS_MAX) == (0, True) and along.sent(link, WAITS_MAX + 1) == (0, False)
