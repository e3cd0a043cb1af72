"""What an author sees of a flow: answers, failures, types, and one clear line for what a flow cannot do."""

from __future__ import annotations

import asyncio
import math
import random
import time
from datetime import datetime
from random import choice as pick
from typing import Any, Literal

import msgspec
import pydantic
import pytest

import cortex
from cortex.flows.answer_types import returns_of
from cortex.flows.determinism import violations
from cortex.journal import codec
from cortex.state import commands, events
from cortex.state.program import build, params_of
from cortex.values.reply import Reply, Usage, canonical_reply
from policies.failures.failure import Failure, FailureKind
from tests.support.state_machine_harness import Stage
from tests.support.synchronous_driver import Driver, replied

Side = Literal["left", "right"]


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Person(pydantic.BaseModel):
    name: str
    age: int


@cortex.tool(repeatable=True)
def area(point: Point, times: int = 1) -> int:
    """A tool."""
    return point.x * point.y * times


def ran(program: cortex.Program, model: Any = "ok", **more: Any) -> Driver:
    driver = Driver(program, model if callable(model) else lambda text: model, **more)
    driver.run()
    return driver


# -- asking ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("returns", "said", "value"), [
    (None, " some words ", "some words"),
    (str, "words", "words"),
    (Side, "Left.", "left"),
    (int, "41", 41),
    (bool, "True.", True),
    (list[int], "[1, 2]", [1, 2]),
    (Point, '```json\n{"x": 1, "y": 2}\n```', Point(1, 2)),
    (Person, '{"name": "Ann", "age": 3}', Person(name="Ann", age=3)),
    (list[Point], '[{"x": 5}]', [Point(5)]),
])  # fmt: skip
def test_an_answer_is_of_the_type_that_was_asked_for(returns, said, value):
    got = []

    @cortex.flow
    async def ask(ctx):
        got.append(await ctx.ask("what?", returns=returns))

    driver = ran(ask(), said)
    assert got == [value]
    assert driver.k.outcome == "complete"
    assert returns in (None, str) or returns_of(returns).instruction in driver.texts()[0]


def test_a_schema_is_said_to_the_model_and_what_does_not_fit_is_asked_again_with_the_error():
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("where?", returns=Point)

    driver = ran(ask(), lambda text: '{"x": 3}' if "refused" in text else '{"x": "three"}')
    assert driver.answer == {"x": 3, "y": 0}
    first, second = driver.texts()
    assert '"required":["x"]' in first
    assert "refused: Expected `int`, got `str` - at `$.x`" in second


def test_it_is_asked_again_so_often_and_then_the_failure_names_the_line():
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("which?", returns=Side, again=2)

    driver = ran(ask(), "neither")
    assert len(driver.calls) == 3
    failure = driver.k.goals[1].failure
    assert failure.kind == FailureKind.MALFORMED
    assert failure.message.startswith("test_flow.py:")


@pytest.mark.parametrize("on_failure", ["raise", "keep"])
def test_a_failure_is_raised_or_is_a_value(on_failure):
    @cortex.flow
    async def ask(ctx):
        try:
            got = await ctx.ask("what?", on_failure=on_failure)
        except cortex.CallFailed as failed:
            return ["raised", failed.kind, failed.story]
        return ["kept", got.kind, got.story]

    driver = ran(ask(), Failure(FailureKind.REFUSED, "no", status=400))
    how, kind, story = driver.answer
    assert (how, kind) == ("raised" if on_failure == "raise" else "kept", "refused")
    assert story.endswith(": no")


def test_samples_are_separate_questions_also_when_one_is_asked_again():
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("which?", returns=Side, samples=3)

    driver = ran(ask(), lambda text: "left" if "refused" in text else "?")
    assert driver.answer == ["left"] * 3
    assert sorted(call.sample for call in driver.calls) == ["0", "1", "2", "3", "4", "5"]


def said(label: str, **chances: float) -> Reply:
    """Reply of one token, with the probabilities of the labels."""
    logs = [[each, math.log(chance)] for each, chance in chances.items()]
    tokens = [[label, math.log(chances[label]), logs]] if chances else None
    content = [{"type": "text", "text": label}]
    return canonical_reply(content, stop_reason="end_turn", model="m", usage=Usage(5, 1), logprobs=tokens)


@pytest.mark.parametrize(("by", "answer"), [("count", "right"), ("probability", "left")])
def test_samples_are_votes_counted_or_weighed_by_their_probabilities(by: str, answer: str) -> None:
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("which?", returns=Side, samples=3, votes_by=by)

    replies = [said("right", left=0.45, right=0.55), said("left", left=0.9, right=0.1), said("Right", Left=0.45, Right=0.55)]
    driver = ran(ask(), lambda text: replies.pop(0))
    assert (driver.answer, len(driver.calls)) == (answer, 3)
    asked = [msgspec.json.decode(call.body) for call in driver.calls]
    assert [each.get("top_logprobs") for each in asked] == [20 if by == "probability" else None] * 3
    assert codec.encode_state(driver.replayed()) == codec.encode_state(driver.k)


def test_votes_without_probabilities_are_counted_and_those_of_any_type_by_what_is_equal() -> None:
    @cortex.flow
    async def ask(ctx):
        sides = await ctx.ask("which?", returns=Side, samples=3, votes_by="probability")
        point = await ctx.ask("where?", returns=Point, samples=3, votes_by="count")
        return [sides, point.x, await ctx.ask("any?", returns=Side, samples=2, votes_by="count", on_failure="drop")]

    answers = ["left", "right", "right", '{"x": 1}', '{"x": 2}', '{"x": 2, "y": 0}']
    driver = ran(ask(), lambda text: answers.pop(0) if answers else Failure(FailureKind.REJECTED, "no", status=400))
    assert driver.answer == ["right", 2, None]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"samples": 3, "votes_by": "odd"}, "one of count, probability"),
        ({"votes_by": "count"}, "samples of 2 or more"),
        ({"samples": 3, "votes_by": "count", "on_failure": "keep"}, "no on_failure='keep'"),
        ({"samples": 3, "votes_by": "probability", "returns": Point}, "needs listed choices"),
    ],
)
def test_votes_that_cannot_decide_are_refused(arguments: dict[str, Any], text: str) -> None:
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("which?", **({"returns": Side} | arguments))

    assert text in ran(ask(), "left").k.why


@pytest.mark.parametrize(("on_failure", "answer"), [("keep", ["1", {"failed": "rejected"}, "3"]), ("drop", ["1", "3"])])
def test_map_keeps_or_drops_what_failed(on_failure, answer):
    @cortex.flow
    async def each(ctx):
        return await ctx.map(lambda n: ctx.ask(f"{n}"), [1, 2, 3], on_failure=on_failure)

    driver = ran(each(), lambda text: Failure(FailureKind.REJECTED, "so", status=400) if text == "2" else text)
    for facts in driver.answer:
        if isinstance(facts, dict):
            facts.pop("story")
    assert driver.answer == answer


def test_map_raises_the_first_failure_and_lets_the_others_go():
    @cortex.flow
    async def each(ctx):
        await ctx.map(lambda n: ctx.ask(f"{n}"), range(5))

    driver = ran(each(), lambda text: Failure(FailureKind.REJECTED, "so", status=400) if text == "1" else text)
    assert driver.k.goals[1].failure.kind == FailureKind.REJECTED
    assert [goal.status.name for goal in driver.goals("ask")].count("ABANDONED") == 3
    assert driver.k.outcome == "failed"
    assert driver.k.why.startswith("rejected: test_flow.py:") and driver.k.why.endswith(": so")


def test_map_has_so_many_under_way_at_once():
    @cortex.flow
    async def each(ctx):
        return await ctx.map(lambda n: ctx.ask(f"{n}"), range(40), at_once=4)

    driver = ran(each(), lambda text: text, order=5)
    assert driver.answer == [str(n) for n in range(40)]
    assert driver.in_flight_max == 4


def test_a_join_ends_at_its_quorum_and_lets_the_rest_go():
    @cortex.flow
    async def race(ctx):
        answer = await ctx.join(*(ctx.ask(f"{n}") for n in range(5)), quorum=2)
        return [list(answer), answer.partial, answer.missing]

    driver = ran(race(), lambda text: text)
    assert driver.answer == [["0", "1"], False, [2, 3, 4]]


def test_a_join_ends_at_its_deadline_and_is_labelled():
    @cortex.flow
    async def slow(ctx):
        began = ctx.now()
        answer = await ctx.join(ctx.sleep(5), ctx.sleep(50), deadline_s=20)
        return [len(answer), answer.partial, answer.missing, ctx.now() - began]

    assert ran(slow()).answer == [1, True, [1], 20.0]


def test_tools_are_typed_both_ways_and_checked_where_they_are_called():
    seen = []

    @cortex.flow
    async def measure(ctx):
        seen.append(await ctx.run(area, Point(2, 3), times=4))
        await ctx.run(area, nothing=1)

    stage = Stage(measure())
    (run,) = [command for command in stage.said if isinstance(command, commands.StartToolRun)]
    assert (run.tool, run.arguments) == ("area", {"point": {"x": 2, "y": 3}, "times": 4})
    stage.turn(events.Observed(run.goal, run.attempt, 24, 1.0))
    assert seen[0] == 24
    assert "TypeError: area: missing a required argument: 'point'" in stage.k.goals[1].failure.message


def test_a_tool_that_returns_another_type_than_it_says_fails_its_goal():
    @cortex.flow
    async def measure(ctx):
        return await ctx.run(area, Point(2, 3))

    stage = Stage(measure())
    stage.turn(events.Observed(2, 1, "many", 1.0))
    assert "area: its return value does not fit its return annotation" in stage.k.goals[1].failure.message


# -- rows, checkpoints, people -------------------------------------------------------------------------------------------


@cortex.flow
async def label(ctx, text: str, loud: bool = False):
    """One row."""
    answer = await ctx.ask(text)
    return answer.upper() if loud else answer


def test_each_row_is_a_run_and_a_bad_one_fails_alone():
    stage = Stage(label(loud=True), streams=True)
    rows = [b'{"text": "a"}', b'{"text": "b", "loud": false}', b'{"txt": "c"}', b'{"text": 7}', b"{}", b"[]"]
    stage.turn(events.RowsRead(tuple(events.Row(str(n), body) for n, body in enumerate(rows)), 0, 100, True))
    stage.answer_all("ok")
    lines = {line.pop("row"): line for line in stage.emitted}
    assert (lines[0], lines[1]) == ({"answer": "OK"}, {"answer": "ok"})
    assert [lines[row]["failed"]["kind"] for row in (2, 3, 4, 5)] == ["rejected"] * 4
    texts = [goal.failure.message for goal in stage.k.goals_of("run") if goal.failure is not None]
    assert texts == [
        "row 2: label has no parameter 'txt'", "row 3: text: Expected `str`, got `int`", "row 4: label needs text",
        "row 5: a row is a JSON object whose fields are parameters",
    ]  # fmt: skip
    assert [lines[row]["failed"]["message"] for row in (2, 3, 4, 5)] == texts


def test_without_its_parameters_a_flow_says_which():
    assert Stage(label()).k.why.endswith("label needs text")


def test_a_checkpoint_begins_the_function_anew_with_its_value_and_drops_what_came_between():
    begun = []

    @cortex.flow
    async def count(ctx):
        begun.append(1)
        plan = await ctx.ask("plan")
        state, beside = Point(0), 0
        while True:
            state = await ctx.checkpoint(state)
            if state.x == 5:
                return [plan, state.x, beside]
            await ctx.ask(f"round {state.x}")
            state, beside = Point(state.x + 1), beside + 1

    driver = ran(count())
    assert driver.answer == ["ok", 5, 0]  # what is not in the state is as it was the first time
    assert len(begun) == 6
    assert len(driver.goals("ask")) == 1  # the plan


def test_a_person_answers_and_what_does_not_fit_is_still_waited_for():
    @cortex.flow
    async def approve(ctx):
        return await ctx.wait("approved", bool)

    stage = Stage(approve())
    assert (stage.k.outcome, stage.k.why) == ("partial", "waits for an answer: approved")
    stage.turn(events.AnswerGiven("ann", "approved", "perhaps"))
    assert stage.k.awaited() == ["approved"]
    stage.turn(events.AnswerGiven("ann", "aproved", True), events.AnswerGiven("ann", "approved", "yes"))
    assert stage.k.awaited() == []
    stage.turn(events.Resumed("ann"))
    assert (stage.k.outcome, stage.program.answer(stage.k)) == ("complete", True)


def test_a_program_survives_as_its_parameters():
    program = label(text="a")
    assert build(type(program), params_of(program)) == program
    assert params_of(label(loud=True)) == b'{"loud":true}'
    assert replied("x").text == "x"


# -- what a flow cannot do -----------------------------------------------------------------------------------------------


async def _clock(ctx):
    return time.time()


async def _clock_in_a_lambda(ctx):
    await ctx.map(lambda n: ctx.ask(f"{datetime.now()} {n}"), [1])  # noqa: DTZ005


async def _chance(ctx):
    return random.random()


async def _chance_by_another_name(ctx):
    return pick([1, 2])


async def _loop(ctx):
    await asyncio.gather(ctx.ask("a"))


async def _in_another_function(ctx):
    return _beside()


def _beside() -> float:
    return time.monotonic()


@pytest.mark.parametrize(("function", "said"), [
    (_clock, "uses time.time: ask ctx.now()"),
    (_clock_in_a_lambda, "uses datetime.now: ask ctx.now()"),
    (_chance, "uses random.random: ask ctx.random()"),
    (_chance_by_another_name, "uses pick: ask ctx.random()"),
    (_loop, "uses asyncio.gather: await ctx.sleep(seconds), ctx.join(...) or ctx.map(...)"),
    (_in_another_function, "uses time.monotonic: ask ctx.now()"),
])  # fmt: skip
def test_a_clock_chance_or_an_event_loop_is_one_clear_line(function, said):
    (line,) = violations(function)
    assert line.startswith("test_flow.py:")
    assert line.endswith(said)
    assert line in Stage(cortex.flow(function)()).k.why


def test_ordinary_functions_are_not_complained_about():
    assert violations(label.function) == []
    assert violations(ran) == []


class _Foreign:
    def __await__(self):
        return (yield 7)


async def _awaits_foreign(ctx):
    await _Foreign()


async def _awaits_twice(ctx):
    once = ctx.ask("a")
    await once
    await once


async def _no_tool(ctx):
    await ctx.run(len, "a")


async def _checkpoint_in_a_map(ctx):
    await ctx.map(lambda n: ctx.checkpoint(n), [1])


async def _checkpoint_in_a_mapped_function(ctx):
    async def one(n: int) -> None:
        await ctx.checkpoint(n)

    await ctx.map(one, [1])


async def _raises(ctx):
    return {}["nothing"]


async def _answers_an_object(ctx):
    return object()


@pytest.mark.parametrize(("function", "said"), [
    (_awaits_foreign, "awaits a int, which only an event loop answers"),
    (_awaits_twice, "awaits a second time what was awaited before"),
    (_no_tool, "len is no tool: mark it with @cortex.tool"),
    (_checkpoint_in_a_mapped_function, "is a checkpoint inside map or join"),
    (_raises, "KeyError: 'nothing'"),
    (_answers_an_object, "its return value cannot be an answer: object cannot be kept"),
])  # fmt: skip
def test_what_goes_wrong_in_a_flow_is_one_line(function, said):
    driver = ran(cortex.flow(function)())
    failure = driver.k.goals[1].failure
    assert failure.kind == FailureKind.FAULTY
    assert said in failure.message
    assert "\n" not in failure.message


@pytest.mark.parametrize("bad", [
    lambda: cortex.flow(lambda ctx: None), lambda: cortex.flow(_beside), lambda: cortex.flow(_varied),
])  # fmt: skip
def test_what_is_no_flow_is_refused_at_once(bad):
    with pytest.raises(TypeError):
        bad()


async def _varied(ctx, *many):
    """Parameters of a program have names."""


# -- replies that are no whole answer ----------------------------------------------------------------------------------


def ended(program: cortex.Program, content: list[dict[str, Any]], stop_reason: str) -> Any:
    stage = Stage(program)
    while stage.calls:
        call = next(iter(stage.calls.values()))
        stage.calls.pop((call.goal, call.attempt))
        reply = cortex.Reply(msgspec.json.encode({"content": content}), stop_reason, "m", Usage(3, 3))
        stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, reply))
    return stage.k.goals[1].answer


WORDS: list[dict[str, Any]] = [{"type": "text", "text": "half a"}]
OBJECT: list[dict[str, Any]] = [{"type": "text", "text": '{"x": 1, "y": 2}'}]
TOOL: list[dict[str, Any]] = [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]


@pytest.mark.parametrize(("content", "stop_reason", "returns", "kind"), [
    (WORDS, "max_tokens", None, "cut"),
    (WORDS, "model_context_window_exceeded", None, "cut"),
    (WORDS, "pause_turn", None, "paused"),
    ([], "end_turn", None, "empty"),
    ([{"type": "thinking", "thinking": "hm"}], "max_tokens", None, "cut"),
    (TOOL, "tool_use", None, "tool_use"),
    (OBJECT, "max_tokens", Point, ""),
    ([{"type": "text", "text": "12"}], "max_tokens", int, "cut"),
    (WORDS, "", None, ""),
    (WORDS, "end_turn", None, ""),
])  # fmt: skip
def test_a_reply_that_is_no_whole_answer_is_never_returned_silently(content, stop_reason, returns, kind):
    @cortex.flow
    async def ask(ctx):
        try:
            return str(await ctx.ask("what?", returns=returns))
        except cortex.CallFailed as failed:
            return f"raised {failed.kind}"

    answer = ended(ask(), content, stop_reason)
    assert answer == f"raised {kind}" if kind else not answer.startswith("raised")


def test_an_author_may_keep_what_came():
    @cortex.flow
    async def ask(ctx):
        return await ctx.ask("what?", on_cut="keep")

    assert ended(ask(), WORDS, "max_tokens") == "half a"


def test_a_turn_of_a_conversation_may_ask_for_a_tool_and_is_not_cut():
    @cortex.flow
    async def talk(ctx):
        try:
            return len((await ctx.ask(cortex.Conversation("c").said("go"))).uses)
        except cortex.CallFailed as failed:
            return failed.kind

    assert ended(talk(), TOOL, "tool_use") == 1
    assert ended(talk(), WORDS, "max_tokens") == "cut"
    assert ended(talk(), [{"type": "thinking", "thinking": "hm"}], "end_turn") == "empty"
