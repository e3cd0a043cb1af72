"""Votes at the command line: planned before, and a chain of them killed on the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.claims.composed_functions import LABELS, function
from benchmarks.harness.hanoi_verifier import verified
from policies.decisions.voting import at_least, plan
from tests.cli.cli_runner import ended, started, until

PLAN = ("program", "plan-votes")
SLOW = ("--sim", "latency_spread=0", "--sim", "latency_ms=100")
"""So slow that whoever is to kill a run in its middle is in time, though he waits for a processor."""


def test_a_plan_from_a_rate(cortex):
    done = cortex(*PLAN, "--steps", 2**20 - 1, "--success", 0.9978, "--json")
    assert done.code == 0
    made = json.loads(done.out)
    assert (made["k"], round(made["votes_per_step"], 3), round(made["rounds_per_step"], 3)) == (3, 3.013, 1.007)
    answer = cortex(*PLAN, "--steps", 2**20 - 1, "--success", 0.9978).out
    assert "k 3" in answer and "1,048,575 steps" in answer and "0.988824" in answer


def test_a_plan_from_a_measurement_is_made_with_the_lower_end(cortex):
    done = cortex(*PLAN, "--steps", 1_000, "--right", 990, "--of", 1_000, "--target", 0.99, "--flagged", 0.1, "--json")
    made = plan(at_least(990, 1_000), 0.99, 1_000, flagged=0.1)
    assert json.loads(done.out) == {name: getattr(made, name) for name in made.__struct_fields__}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--success P, or --right N --of M"),
        (("--success", 0.9, "--right", 3, "--of", 4), "--success P, or --right N --of M"),
        (("--right", 3), "belong together"),
        (("--right", 5, "--of", 4), "5 right of 4"),
        (("--success", 0.5), "above 0.5"),
        (("--success", 0.9, "--target", 1), "between 0 and 1"),
        (("--success", 0.9, "--flagged", 1), "below 1"),
    ],
)
def test_what_cannot_be_planned(cortex, given, said):
    cortex(*PLAN, "--steps", 10, *given).refused(said)


def test_towers_killed_twice_come_to_the_same_end(cortex):
    """Errors are made, outvoted and discarded; nothing of it depends on where the run was killed."""
    run = (
        "run",
        "hanoi",
        "-p",
        "disks=7",
        "-p",
        "k=5",
        "--model",
        "sim",
        "-o",
        "moves.jsonl",
        "--job",
        "towers",
        "--json",
    )
    run = (*run, "--sim", "error=0.05")
    moves = Path("moves.jsonl")
    for some in (1, 10):
        with started(*run, *SLOW) as child:
            until(lambda some=some: moves.exists() and moves.read_text().count("\n") >= some)
            child.kill()
            ended(child)
    assert 0 < moves.read_text().count("\n") < 127
    done = cortex(*run, "--sim", "latency_ms=0")
    assert (done.code, done.last["outcome"]) == (0, "complete")
    assert verified(7, [json.loads(line) for line in moves.read_text().splitlines()])
    answer = done.last["answer"]
    assert (answer["solved"], answer["moves"]) == (True, 127)
    assert done.last["failures"]["malformed"] > 0 and answer["samples"] > 5 * 127


def test_judgements_killed_in_the_middle_come_to_the_same_end(cortex):
    """Functions of several depths, so that some are judged when the others are half way."""
    known = [function(1, depth, LABELS[depth % 3]) for depth in (4, 8, 16, 32)]
    run = (
        "run",
        "convex",
        "-p",
        f"functions={json.dumps([each.text for each in known])}",
        "-p",
        "k=4",
        "--model",
        "sim",
    )
    run = (*run, "--sim", "error=0.02", "-o", "labels.jsonl", "--job", "labels", "--json")
    labels = Path("labels.jsonl")
    with started(*run, *SLOW[:-1], "latency_ms=300") as child:
        until(lambda: labels.exists() and labels.read_text().count("\n") >= 1)
        child.kill()
        ended(child)
    assert labels.read_text().count("\n") < len(known)
    done = cortex(*run, "--sim", "latency_ms=0")
    assert (done.code, done.last["outcome"]) == (0, "complete")
    judged = dict(json.loads(line) for line in labels.read_text().splitlines())
    assert judged == {place: each.curvature for place, each in enumerate(known)}
    assert done.last["failures"]["lost"] > 0
