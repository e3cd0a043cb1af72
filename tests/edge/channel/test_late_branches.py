"""Branches that a channel could not meet at its start: they may know of later epochs of its job, or hold replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from actors.ports.runtime import PeerUnavailable
from tests.edge.channel.test_dispatcher import FakeBranch, Scene, _quick, call, until  # noqa: F401 - a fixture
from tests.edge.support.virtual_clock import in_virtual_time


@pytest.mark.parametrize("known", [0, 1, 5])
@in_virtual_time
async def test_one_that_was_silent_is_asked_what_it_knows_before_it_is_given_calls(known: int) -> None:
    """The journal may have lost its end: the branch would take calls of an epoch that it knows for old ones."""
    branch = FakeBranch("branch:0")
    branch.silent, branch.epoch = True, known
    scene = Scene(branch)
    dispatch = await scene.meet()
    dispatch.send([call(1)])
    await asyncio.sleep(0.01)
    assert not branch.heard_of and not dispatch.outdated.is_set()
    branch.silent = False
    if not known:
        await until(lambda: branch.taken == [(1, 1)])
        return
    await asyncio.wait_for(dispatch.outdated.wait(), 5)
    await asyncio.sleep(0.01)
    assert not branch.heard_of and dispatch.acknowledged == known
    await dispatch.meet(scene.names, known + 1)  # as the channel does that begins anew
    assert not dispatch.outdated.is_set()
    await until(lambda: branch.taken == [(1, 1)])
    assert not scene.lost


@in_virtual_time
async def test_an_idle_one_is_asked_what_it_knows_at_its_first_sign_of_life() -> None:
    """Orders about message batches are no calls, and a branch leaves old ones alone."""
    branch = FakeBranch("branch:0")
    branch.silent, branch.epoch = True, 5
    dispatch = await Scene(branch).meet()
    branch.silent = False
    await asyncio.wait_for(dispatch.outdated.wait(), 5)


@in_virtual_time
async def test_a_later_channel_of_which_a_branch_tells_is_heard_of() -> None:
    branch = FakeBranch("branch:0")
    dispatch = await Scene(branch).meet()
    branch.ask = answering(branch.ask, "work", "")  # type: ignore[method-assign]
    dispatch.send([call(1)])
    await asyncio.wait_for(dispatch.outdated.wait(), 5)


def answering(ask: Callable[..., Any], to: str, answer: Any) -> Callable[..., Any]:
    """Return ``ask`` with this answer to one method."""

    async def answered(method: str, *args: Any) -> Any:
        return answer if method == to else await ask(method, *args)

    return answered


@in_virtual_time
async def test_replies_of_a_process_that_was_replaced_before_it_was_asked_are_compared_by_their_questions() -> None:
    """Its successor holds nothing; where the journal has lost its end, its replies have the numbers of later calls."""
    branch = FakeBranch("a")
    scene = Scene(branch)
    scene.dispatch.recognise("a", "old", asks=True)  # no process is known yet: it is asked soon
    dispatch, begun = await scene.meet(), []
    dispatch.begin_anew = lambda: begun.append(True)  # type: ignore[method-assign]
    for sender, process in (("a", branch.incarnation), ("worker:0", "old")):
        dispatch.recognise(sender, process, asks=True)
    dispatch.recognise("a", "old", asks=False)
    assert not begun and not dispatch.unmet
    for _ in range(2):  # until then, too
        with pytest.raises(PeerUnavailable):
            dispatch.recognise("a", "old", asks=True)
    assert len(begun) == 1
    await dispatch.meet(scene.names, 2)
    assert dispatch.unmet, "the channel that begins anew compares the questions"
    dispatch.recognise("a", "old", asks=True)
    first = branch.incarnation
    branch.die()
    dispatch.send([call(1)])
    await until(lambda: branch.incarnation != first and dispatch.processes()["a"] == branch.incarnation)
    dispatch.unmet = False
    dispatch.recognise("a", first, asks=True)  # it was asked, before it died
    assert len(begun) == 1
    await dispatch.close(forget=False)
