"""The functions that convexity is judged of: their labels, which CVXPY must share, and their depths."""

from __future__ import annotations

import pytest

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.convexity import compose
from benchmarks.claims.composed_functions import LABELS, applied, function, functions
from cortex.programs.convex import ATOMS, nodes_of, whole_prompt

DEPTHS = (2, 3, 5, 10, 20, 40, 70, 100)


def depth_of(text: str) -> int:
    deepest = depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


@pytest.mark.parametrize("depth", DEPTHS)
def test_they_have_the_depth_and_labels_that_were_asked_for(depth):
    made = functions(1, depth, 30)
    assert {depth_of(each.text) for each in made} == {depth}
    assert [each.curvature for each in made] == [LABELS[place % 3] for place in range(30)]
    assert len({each.text for each in made}) > (25 if depth > 3 else 15)


def test_the_same_seed_makes_the_same_functions():
    assert functions(7, 20, 9) == functions(7, 20, 9) != functions(8, 20, 9)


@pytest.mark.parametrize("depth", DEPTHS)
def test_cvxpy_says_the_same(depth):
    cvxpy = pytest.importorskip("cvxpy", reason="the extra `test` brings it")
    atoms = {
        "exp": cvxpy.exp, "log": cvxpy.log, "sqrt": cvxpy.sqrt, "square": cvxpy.square, "abs": cvxpy.abs,
        "pos": cvxpy.pos, "negpart": cvxpy.neg, "inverse": cvxpy.inv_pos, "logistic": cvxpy.logistic,
        "entropy": cvxpy.entr, "minus": lambda u: -u, "double": lambda u: 2 * u, "plus": lambda u, v: u + v,
        "max": cvxpy.maximum, "min": cvxpy.minimum,
    }  # fmt: skip
    assert atoms.keys() == ATOMS.keys()
    curvatures = {(True, False): "convex", (False, True): "concave", (True, True): "affine", (False, False): "neither"}
    for known in functions(3, depth, 45):
        values = {"x": cvxpy.Variable()}
        for node in nodes_of(known.text):
            values[node.name] = atoms[node.atom](*(values[each] for each in node.arguments))
        answer = values[nodes_of(known.text)[-1].name]
        curvature = curvatures[answer.is_convex(), answer.is_concave()]
        assert (curvature, int(answer.is_nonneg()) - int(answer.is_nonpos())) == (known.curvature, known.sign), (
            known.text
        )


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("depth", [2, 5, 20, 100])
def test_a_reader_without_error_reads_them_rightly(depth, tree):
    for known in functions(5, depth, 12):
        thought = compose(ParsedPrompt(whole_prompt(known.text, nodes_of(known.text), tree).user()))
        assert thought is not None
        sign = {1: "nonnegative", -1: "nonpositive", 0: "either"}[known.sign]
        assert thought.right == f"{known.curvature}, {sign}"
        assert thought.wrong[0] != thought.right


def test_the_rules_one_by_one():
    x = function(0, 2, "convex")
    assert applied("exp", x).curvature == "convex" and applied("minus", x).curvature == "concave"
    assert applied("log", x).curvature == "neither"


@pytest.mark.parametrize(
    "gone", ["\nexp: convex, increasing, nonnegative", "x: affine, either\n\n", "t1 = exp(x)", "Answer for t2"]
)
def test_what_is_not_in_the_text_cannot_be_used(gone):
    nodes = nodes_of("square(exp(x))")
    text = whole_prompt("square(exp(x))", nodes, tree=True).user()
    assert gone in text and compose(ParsedPrompt(text)) is not None
    assert compose(ParsedPrompt(text.replace(gone, "\n\n" if gone.endswith("\n\n") else ""))) is None
