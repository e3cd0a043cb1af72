"""A flow that asks something else when it is replayed is named, from a snapshot and from its journal."""

from __future__ import annotations

import re

import pytest

import cortex
from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.program import build, params_of
from tests.support.state_machine_harness import Stage
from tests.support.synchronous_driver import Driver

OUTSIDE = {"word": "one"}


@cortex.flow
async def reads_the_world(ctx):
    """What it asks hangs on something outside of it."""
    first = await ctx.ask("first")
    await ctx.ask(f"then {OUTSIDE['word']}")
    if OUTSIDE["word"] != "three":
        await ctx.ask("last")
    return first


@pytest.mark.parametrize(("word", "said"), [
    ("two", r"it now asks test_replay.py:\d+ 'then two' where its journal has test_replay.py:\d+ 'then one'"),
    ("three", r"it now asks test_replay.py:\d+ 'then three' where its journal has test_replay.py:\d+ 'then one'"),
])  # fmt: skip
def test_a_flow_that_is_not_deterministic_is_named_from_a_snapshot_and_from_its_journal(word, said, monkeypatch):
    stage = Stage(reads_the_world())
    for _ in range(2):
        stage.turn(*_made_last(stage), stage.answered(stage.call()))
    stage.turn(*_made_last(stage))
    blob = codec.encode_state(stage.k)
    anew = build(reads_the_world, params_of(stage.program))
    assert anew.remade(codec.decode_state(blob)) == ""
    assert codec.replay(None, stage.turns, anew).differs == ""
    monkeypatch.setitem(OUTSIDE, "word", word)
    changed = build(reads_the_world, params_of(stage.program))
    assert re.search(said, changed.remade(codec.decode_state(blob)))
    assert re.search(said, codec.replay(None, stage.turns, changed).differs)


def _made_last(stage: Stage) -> list[events.Event]:
    """What a channel writes down with its next turn."""
    made = [command for command in stage.said if isinstance(command, commands.RecordGoal)][-1]
    return [events.GoalMade(made.goal, made.kind, made.value)]


@pytest.mark.parametrize("how", ["text", "answer"])
def test_what_is_not_awaited_is_never_asked_about_nor_kept(how):
    @cortex.flow
    async def forgets(ctx):
        answer = ctx.ask("Say something")
        return await ctx.ask(f"And more than {answer}") if how == "text" else answer

    driver = Driver(forgets(), lambda text: "ok")
    driver.run()
    assert driver.k.outcome == "failed"
    assert "write await before it" in driver.k.why
