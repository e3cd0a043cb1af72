"""Loops with tools, turn by turn: the stage replays every turn from a snapshot, and compares K to the byte."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actors.simulator.api import wire
from actors.simulator.api.provider import SimulatedProvider
from actors.simulator.settings import SimulatorSettings
from cortex.control import ControlBounds, DispatchRules
from cortex.programs.chatloop import chatloop
from cortex.programs.toolloop import toolloop
from cortex.state import commands, events
from cortex.values.reply import Reply, Usage
from tests.support.state_machine_harness import Stage

TURNS_MAX = 2_000


def played(stage: Stage, error: float | None = 0.0, seed: int = 1, steps: int = TURNS_MAX) -> Stage:
    """What it asks is answered by the simulated provider and its own tools, one at a time, until nothing is asked."""
    provider = SimulatedProvider(SimulatorSettings(seed=seed, error=error))
    waiting = [command for command in stage.said if isinstance(command, (commands.Call, commands.StartToolRun))]
    stage.said.clear()
    for _ in range(steps):
        if not waiting or stage.k.outcome:
            return stage
        out = stage.turn(came_of(provider, stage, waiting.pop(0)))
        waiting += [command for command in out if isinstance(command, (commands.Call, commands.StartToolRun))]
    return stage


def came_of(provider: SimulatedProvider, stage: Stage, command: Any) -> events.Event:
    if isinstance(command, commands.StartToolRun):
        value = stage.program.tools[command.tool](**command.arguments)
        return events.Observed(command.goal, command.attempt, value, stage.k.at_s)
    outcome = provider.decide(command.body, 0.0)
    assert outcome.ask is not None and outcome.answer is not None, outcome.refusal
    usage = Usage(outcome.ask.input_tokens, outcome.answer.output_tokens)
    reply = Reply(wire.encoded(outcome.message()), outcome.answer.stop_reason, "sim", usage)
    return events.Answered(command.goal, command.sample, command.attempt, command.hash, reply)


def approved(stage: Stage, name: str, later_s: float = 1) -> None:
    """A job at rest is told, and resumed."""
    stage.said.clear()
    stage.turn(events.AnswerGiven("ann", f"approve:{name}", True), at_s=stage.k.at_s + later_s)
    stage.turn(events.Resumed("ann"))
    stage.turn(events.PermitsGranted(8))
    played(stage)


def answer(stage: Stage) -> Any:
    return stage.program.answer(stage.k)


PROGRAMS = [
    chatloop(count=4), chatloop(count=4, form="clean"), toolloop(count=5, at_most=2),
    toolloop(count=5, at_most=2, bounds=ControlBounds(tokens_max=3_000)),
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("error", [0.0, 0.2])
def test_killed_at_any_turn_it_is_the_same(program: Any, error: float) -> None:
    """With errors too: wrong tools, wrong arguments, ends too early, words instead of uses."""
    stage = played(Stage(program), error)
    assert stage.k.outcome == "complete", stage.k.why
    if not error and program.__class__ is chatloop:
        assert answer(stage)["right"]


def test_k_stays_small_however_many_turns_there_are() -> None:
    """Each turn ends in a checkpoint: K holds the state and the conversations of what lives, and no ended turn."""
    stage = Stage(toolloop(count=8, at_most=2))
    most = []
    turn = stage.turn
    stage.turn = lambda *happened, **more: (turn(*happened, **more), most.append(len(stage.k.goals)))[0]  # type: ignore[method-assign]
    played(stage)
    assert answer(stage)["right"]
    assert max(most) <= 4


def test_a_persons_time_is_not_the_runs() -> None:
    """A budget of seconds holds for the run; who approves may take a day."""
    program = toolloop(count=1, bounds=ControlBounds(seconds_max=60), rules=DispatchRules(approve=("record",)))
    stage = played(Stage(program))
    assert stage.k.awaited() == ["approve:record-1"]
    approved(stage, "record-1", later_s=86_400)
    assert (stage.k.outcome, answer(stage)["ended"]) == ("complete", "answered")


def test_a_slow_model_uses_up_the_seconds() -> None:
    stage = Stage(toolloop(count=1, bounds=ControlBounds(seconds_max=60)))
    stage.turn(events.Ticked(), at_s=stage.k.at_s + 100)
    assert answer(played(stage))["ended"].startswith("over budget: seconds")


def test_two_approvals_are_given_in_any_order() -> None:
    """Two subtasks wait; the second is approved first, and the first is still there."""
    program = toolloop(count=2, at_most=1, rules=DispatchRules(approve=("record",)))
    stage = played(Stage(program))
    assert stage.k.awaited() == ["approve:record-1", "approve:record-2"]
    for name in ("record-2", "record-1"):
        approved(stage, name)
    assert (stage.k.outcome, answer(stage)["right"]) == ("complete", True)


def test_state_in_k_is_plain_data() -> None:
    stage = played(Stage(toolloop(count=4, at_most=2)), steps=9)
    (kept,) = (goal.kept for goal in stage.k.goals.values() if goal.kept)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(kept), strict=False) == kept
