"""The reasoner's next move: worked out of the text alone."""

from __future__ import annotations

import pytest

from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.hanoi import move

TEXT = """Strategy: disk 1 goes round {cycle}.

Previous move: {last}

Peg 0:{0}
Peg 1:{1}
Peg 2:{2}"""

# the cycle, the last move, the pegs -> the right move, the wrong one
MOVES = [
    ("0 -> 1 -> 2 -> 0", "none", (" 2 1", "", ""), "[1, 0, 1]", "[1, 0, 2]"),
    ("0 -> 2 -> 1 -> 0", "none", (" 2 1", "", ""), "[1, 0, 2]", "[1, 0, 1]"),
    ("0 -> 1 -> 2 -> 0", "disk 1 from peg 0 to peg 1", (" 2", " 1", ""), "[2, 0, 2]", "[1, 1, 2]"),
    ("0 -> 1 -> 2 -> 0", "disk 2 from peg 0 to peg 2", ("", " 1", " 2"), "[1, 1, 2]", "[1, 1, 0]"),
    ("0 -> 1 -> 2 -> 0", "disk 1 from peg 0 to peg 1", (" 4 3", " 1", " 2"), "[2, 2, 0]", "[1, 1, 2]"),
    ("0 -> 1 -> 2 -> 0", "disk 1 from peg 2 to peg 0", (" 4 1", " 2", " 3"), "[2, 1, 2]", "[1, 0, 1]"),
    ("0 -> 1 -> 2 -> 0", "disk 1 from peg 2 to peg 0", (" 2 1", "", ""), "[1, 0, 1]", "[1, 0, 2]"),
]


@pytest.mark.parametrize(("cycle", "last", "pegs", "right", "wrong"), MOVES)
def test_the_move_that_the_stated_strategy_asks_for(cycle, last, pegs, right, wrong):
    thought = move(ParsedPrompt(TEXT.format(*pegs, cycle=cycle, last=last)))
    assert thought is not None
    assert (thought.right, thought.wrong) == (f"move = {right}", (f"move = {wrong}",))


WHOLE = TEXT.format(" 2 1", "", "", cycle="0 -> 1 -> 2 -> 0", last="none")


@pytest.mark.parametrize("gone", ["0 -> 1 -> 2 -> 0", "Previous move: none", "Peg 0: 2 1\n", "Peg 1:\n", " 2 1"])
def test_what_is_not_in_the_text_cannot_be_used(gone):
    assert move(ParsedPrompt(WHOLE)) is not None
    assert move(ParsedPrompt(WHOLE.replace(gone, ""))) is None


def test_of_a_whole_history_the_last_move_counts():
    history = "Moves so far: disk 1 from peg 2 to peg 0; disk 2 from peg 1 to peg 2"
    text = WHOLE.replace("Previous move: none", history)
    assert move(ParsedPrompt(text)).right == "move = [1, 0, 1]"
