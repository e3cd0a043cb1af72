"""Convexity as a program: four ways to ask, and what a call of each may see."""

from __future__ import annotations

import pytest

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.convexity import compose
from benchmarks.claims.composed_functions import functions
from cortex.programs.convex import RULES, Convex, judgement_of, nodes_of
from cortex.values.reply import Malformed
from tests.support.state_machine_harness import Stage, asked

DEEP = "plus(exp(square(log(x))), exp(square(log(x))))"
METHODS = ("one-shot", "tree", "history", "focused")


def read(call) -> str:
    thought = compose(ParsedPrompt(asked(call)))
    assert thought is not None, asked(call)
    return thought.right


def judged(stage: Stage) -> list[str]:
    return [label for _, label in sorted(stage.emitted)]


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_reader_without_error_judges_rightly_by_every_method(method, k):
    known = functions(2, 6, 9)
    stage = Stage(Convex(functions=tuple(each.text for each in known), method=method, k=k))
    stage.answer_all(read)
    assert stage.k.outcome == "complete"
    assert judged(stage) == [each.curvature for each in known]
    assert not stage.k.goals, "what is judged leaves memory"


def prompts(method: str, text: str = DEEP) -> list[str]:
    """What the calls see, in their order, without the rules."""
    stage = Stage(Convex(functions=(text,), method=method))
    seen = []
    while stage.calls:
        call = next(iter(stage.calls.values()))
        assert asked(call).startswith(RULES)
        seen.append(asked(call).removeprefix(RULES).strip())
        stage.turn(stage.answered(call, read(call)))
    return seen


def test_one_shot_sees_the_whole_function():
    (seen,) = prompts("one-shot")
    assert f"f = {DEEP}" in seen and "Answer for f with" in seen and "t1" not in seen


def test_with_the_tree_code_has_taken_it_apart():
    (seen,) = prompts("tree")
    assert "t1 = log(x)\nt2 = square(t1)\nt3 = exp(t2)\nt4 = plus(t3, t3)" in seen and DEEP not in seen


def test_focused_sees_direct_dependencies_and_nothing_else():
    *_, third, fourth = prompts("focused")
    assert "t3 = exp(t2)\nt2: neither, nonnegative\n" in third
    assert "t1" not in third and "log" not in third and "x:" not in third
    assert "t4 = plus(t3, t3)\nt3: neither, nonnegative\n" in fourth and fourth.count("t3:") == 1


def test_with_history_every_question_before_is_there():
    *_, last = prompts("history")
    assert last.count("Question:") == last.count("Answer: ") == 3
    assert "what is exp of t2, named t3?" in last


def test_focused_asks_at_once_for_all_that_is_known_enough():
    stage = Stage(Convex(functions=("plus(exp(x), log(x))",), method="focused"))
    assert len(stage.calls) == 2
    assert len(Stage(Convex(functions=("plus(exp(x), log(x))",), method="history")).calls) == 1


def test_equal_parts_are_asked_for_once():
    assert [str(node) for node in nodes_of(DEEP)] == [
        "t1 = log(x)", "t2 = square(t1)", "t3 = exp(t2)", "t4 = plus(t3, t3)",
    ]  # fmt: skip


def test_the_focused_prompt_does_not_grow_with_depth():
    longest = {
        depth: max(len(seen) for seen in prompts("focused", functions(4, depth, 1)[0].text)) for depth in (5, 60)
    }
    assert longest[60] < longest[5] + 150


@pytest.mark.parametrize(
    "text", ["", "x", "exp", "exp()", "exp(x", "exp(x))", "sin(x)", "exp(y)", "exp(x) x", "exp(x;)"]
)
def test_what_is_no_function_is_refused_at_the_beginning(text):
    with pytest.raises(ValueError, match="no function"):
        nodes_of(text)
    assert "no function" in Stage(Convex(functions=(text,))).k.why


@pytest.mark.parametrize("text", ["convex", "Convex, either", "convex, either.", "convex,either", "flat, either", ""])
def test_a_reply_is_a_judgement_and_nothing_else(text):
    with pytest.raises(Malformed):
        judgement_of(text)
