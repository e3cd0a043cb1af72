"""Claims about compositional judgement: F1 against depth for four ways to ask, and with votes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

from actors.simulator import tokenizer
from actors.simulator.api.reasoner import FORM_SHARE, error_share
from actors.simulator.reasoning.skills.convexity import MISTAKEN
from actors.simulator.request import TOKENS_PER_MESSAGE
from actors.simulator.settings import SimulatorSettings
from benchmarks.claims.composed_functions import LABELS, Known, X, applied, functions
from benchmarks.claims.core_run import Ended, run
from cortex.programs.convex import Convex, node_prompt, nodes_of
from policies.decisions.voting import k_min

DEPTHS = (2, 3, 5, 10, 20, 40, 70, 100)
COUNT = 51
"""Functions a depth: 17 of each label."""
WINDOW = 4_000
"""Tokens of M and of a reply."""
TARGET = 0.999
"""Planned probability that no node of any function of a depth is judged wrongly, with votes."""
REPEATS = 10
"""Readings of the same functions, by reasoners of other seeds, over which the F1 without votes is averaged."""
METHODS = ("one-shot", "tree", "history", "focused")
_SIGNS = {1: "nonnegative", 0: "either", -1: "nonpositive"}

State = tuple[str, int]
"""Belief about a node: curvature and sign."""


def f1(pairs: Sequence[tuple[str, str, float]]) -> float:
    """Return macro F1 over the three labels from (truth, judgement, weight). The judgement "affine" is wrong for
    each.
    """
    scores = []
    for label in LABELS:
        hit = sum(weight for truth, text, weight in pairs if truth == text == label)
        wrong = sum(weight for truth, text, weight in pairs if (truth == label) != (text == label))
        scores.append(2 * hit / (2 * hit + wrong) if hit else 0.0)
    return sum(scores) / len(scores)


def node_errors(known: Known) -> dict[str, float]:
    """Return for each node of a function the share of wrong counted replies when the node is asked about alone."""
    believed = {"x": X}
    errors = {}
    for node in nodes_of(known.text):
        facts = {name: f"{each.curvature}, {_SIGNS[each.sign]}" for name, each in believed.items()}
        text = node_prompt(node, facts, ()).user()
        error = error_share(text, tokenizer.count(text) + TOKENS_PER_MESSAGE)
        errors[node.name] = error * (1 - FORM_SHARE) / (1 - error * FORM_SHARE)
        believed[node.name] = applied(node.atom, *(believed[each] for each in node.arguments))
    return errors


def expected(known: Known) -> dict[str, float]:
    """Return the probability of each judgement of a function, one call a node without votes: beliefs carried up the
    tree.

    Nodes with a common ancestor are taken as independent, which is nearly true while errors are rare.
    """
    errors = node_errors(known)
    beliefs: dict[str, dict[State, float]] = {"x": {(X.curvature, X.sign): 1.0}}
    name = ""
    for node in nodes_of(known.text):
        name = node.name
        names = list(dict.fromkeys(node.arguments))
        made: dict[State, float] = {}
        for states in itertools.product(*(beliefs[each].items() for each in names)):
            chance = 1.0
            for _, share in states:
                chance *= share
            held = {each: Known(each, *state) for each, (state, _) in zip(names, states, strict=True)}
            right = applied(node.atom, *(held[each] for each in node.arguments))
            wrong = (MISTAKEN[right.curvature], right.sign)
            made[right.curvature, right.sign] = made.get((right.curvature, right.sign), 0) + chance * (1 - errors[name])
            made[wrong] = made.get(wrong, 0) + chance * errors[name]
        beliefs[name] = {state: chance for state, chance in made.items() if chance > 1e-9}
    judged: dict[str, float] = {}
    for (curvature, _), chance in beliefs[name].items():
        judged[curvature] = judged.get(curvature, 0) + chance
    return judged


def _scored(known: Sequence[Known], method: str, k: int, seed: int) -> tuple[float, Ended]:
    program = Convex(functions=tuple(each.text for each in known), method=method, k=k)  # type: ignore[arg-type]
    ended = run(program, SimulatorSettings(seed=seed, context_window=WINDOW))
    judged = dict(ended.emitted)
    return f1([(each.curvature, judged.get(place, ""), 1.0) for place, each in enumerate(known)]), ended


def measure(small: bool = False, seed: int = 1) -> dict[str, Any]:
    """Return F1, calls and largest prompts for each depth and method, and whether the claims hold."""
    depths, count = ((2, 10, 30), 12) if small else (DEPTHS, COUNT)
    rows = []
    for depth in depths:
        known = functions(seed, depth, count)
        errors = [error for each in known for error in node_errors(each).values()]
        k = k_min(1 - max(errors), TARGET, len(errors))
        row: dict[str, Any] = {
            "depth": depth, "functions": count, "nodes": len(errors), "k": k, "error_min": min(errors),
            "error_max": max(errors),
            "expected": f1([(each.curvature, *pair) for each in known for pair in expected(each).items()]),
        }  # fmt: skip
        for method in (*METHODS, "voted"):
            name, ahead = ("focused", k) if method == "voted" else (method, 1)
            score, ended = _scored(known, name, ahead, seed)
            row[method] = {
                "f1": score, "calls": ended.samples, "largest_prompt_tokens": ended.largest_prompt_tokens,
                "largest_request_tokens": ended.provider.tally.largest_request_tokens,
                "input_tokens": ended.provider.tally.input_tokens,
            }  # fmt: skip
        scores = [_scored(known, "focused", 1, seed + place)[0] for place in range(REPEATS)]
        row["focused"] |= {"f1": statistics.fmean(scores), "error": statistics.stdev(scores) / math.sqrt(REPEATS)}
        rows.append(row)
    last = rows[-1]
    return {
        "window_tokens": WINDOW, "target": TARGET, "repeats": REPEATS, "rows": rows,
        "holds": {
            "one-atom prompts err, at every depth": all(row["error_min"] > 0 for row in rows),
            "focused with planned votes stays at 1.0": all(row["voted"]["f1"] == 1.0 for row in rows),
            "focused without votes falls as predicted": all(
                abs(row["focused"]["f1"] - row["expected"]) < 3 * row["focused"]["error"] + 0.01 for row in rows
            ) and last["focused"]["f1"] < rows[0]["focused"]["f1"],
            "one shot falls, though within M": last["one-shot"]["f1"] < min(0.9, rows[0]["one-shot"]["f1"])
            and all(row["one-shot"]["largest_request_tokens"] <= WINDOW for row in rows),
            "the largest focused prompt is bounded": max(row["voted"]["largest_prompt_tokens"] for row in rows)
            < 1.25 * rows[0]["voted"]["largest_prompt_tokens"],
        },
    }  # fmt: skip
