"""A channel and a branch within one process, as they meet: each call is made once, and one bad reply is in nobody's way."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.channel.dispatch.dispatcher import Dispatch
from cortex.values.limits import Limits
from tests.edge.support.branch_fixture import Model, Scene, call, on_stage
from tests.edge.support.in_process_job import reply


@pytest.mark.parametrize("how", ["homeless", "same round", "later"])
def test_what_is_sent_to_a_branch_as_it_is_met_is_made_once(how: str) -> None:
    async def play(scene: Scene) -> None:
        scene.runtime._actors["branch:0"] = scene.branch
        dispatch = _alone(scene, [])
        await dispatch.meet((), 1)
        if how == "homeless":
            dispatch.send([call(1, "one"), call(2, "two")])
        dispatch.staffed(("branch:0",))
        if how == "later":
            await asyncio.sleep(0.01)
        if how != "homeless":
            dispatch.send([call(1, "one"), call(2, "two")])
        await asyncio.sleep(0.3)
        assert sorted(scene.models[0].asked) == ["one", "two"]
        await dispatch.close(forget=True)
        await asyncio.sleep(0.01)

    on_stage(play, Model(pause_s=0.05))


def test_what_is_told_as_lost_is_not_made() -> None:
    """A beat comes back in the round in which a message could not go at once: the branch is another by then."""

    async def play(scene: Scene) -> None:
        scene.runtime._actors["branch:0"] = scene.branch
        lost: list[Any] = []
        dispatch = _alone(scene, lost)
        await dispatch.meet(("branch:0",), 1)
        (link,) = dispatch._links
        link.incarnation = "branch:0.dead"
        dispatch.send([call(1, "one")])
        dispatch._liveness.renewed(link, "branch:0.dead", scene.branch.incarnation)
        await asyncio.sleep(0.3)
        assert len(lost) + len(scene.models[0].asked) == 1
        await dispatch.close(forget=True)
        await asyncio.sleep(0.01)

    on_stage(play, Model(pause_s=0.05))


def test_a_reply_that_cannot_be_put_into_bytes_holds_up_nothing() -> None:
    bad = msgspec.structs.replace(reply("ok"), stop_reason="\ud800")

    async def play(scene: Scene) -> None:
        scene.runtime._actors["branch:0"] = scene.branch
        dispatch = _alone(scene, [])
        await dispatch.meet(("branch:0",), 1)
        dispatch.send([call(1, "one")])
        await asyncio.sleep(0.02)
        dispatch.send([call(2, "bad")])  # quick by now
        dispatch.send([call(3, "three")])  # waits for it
        await asyncio.sleep(2.0)
        assert scene.models[0].asked == ["one", "bad", "three"]
        await dispatch.close(forget=True)
        await asyncio.sleep(0.01)

    on_stage(play, Model(lambda text: bad if text == "bad" else reply("ok")))


def _alone(scene: Scene, lost: list[Any]) -> Dispatch:
    return Dispatch("j", scene.runtime, Limits(), lost.append, lambda entry: None)  # type: ignore[arg-type]
