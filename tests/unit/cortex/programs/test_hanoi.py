"""The Towers of Hanoi as a program: what a call sees, what is made of its reply, and that K stays small."""

from __future__ import annotations

import pytest

from benchmarks.harness.hanoi_verifier import solution, verified
from cortex.journal import codec
from cortex.programs.hanoi import Hanoi, move_of, moved, pegs_text
from cortex.values.limits import Limits
from cortex.values.reply import Malformed
from tests.support.state_machine_harness import Stage, asked


def said_of(stage: Stage) -> list[int]:
    """The right move for the goal that is asked, by an independent solver."""
    made = next(goal.value[0] for goal in stage.k.goals.values() if goal.kind == "move")
    return solution(stage.program.disks)[made]


def run(disks: int, k: int = 3, mistakes: dict[int, list[str]] | None = None) -> Stage:
    """Every move is answered rightly; ``mistakes``: what is said first, by the number of moves made."""
    stage = Stage(Hanoi(disks=disks, k=k))
    mistakes = {made: list(texts) for made, texts in (mistakes or {}).items()}
    right = solution(disks)
    while stage.calls:
        made = next(goal.value[0] for goal in stage.k.goals.values() if goal.kind == "move")
        wrong = mistakes.get(made)
        stage.answer(wrong.pop(0) if wrong else f"move = {right[made]}", goal=next(iter(stage.calls))[0])
    return stage


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 7])
def test_it_ends_with_all_disks_on_the_last_peg(disks):
    stage = run(disks)
    assert stage.emitted == solution(disks) and verified(disks, stage.emitted)
    moves = 2**disks - 1
    assert stage.program.answer(stage.k) == {"solved": True, "moves": moves, "samples": 3 * moves}


def test_a_call_sees_strategy_previous_move_and_configuration_and_nothing_else():
    stage = Stage(Hanoi(disks=3))
    for _ in range(2):
        stage.turn(*[stage.answered(call, f"move = {said_of(stage)}") for call in list(stage.calls.values())])
    text = asked(stage.call())
    paragraphs = text.split("\n\n")
    assert len(paragraphs) == 4 and "0 -> 2 -> 1 -> 0" in paragraphs[0]
    assert paragraphs[1] == "Previous move: disk 2 from peg 0 to peg 1"
    assert paragraphs[2] == "Peg 0: 3\nPeg 1: 2\nPeg 2: 1"
    assert all(call.output_tokens_max == 40 for call in stage.calls.values())


def test_mistakes_are_outvoted_and_what_is_no_move_is_discarded():
    wrong = {0: ["move = [1, 0, 1]"], 3: ["the move = [3, 0, 2]", "move = [1, 1, 0]", "move=[3,0,2]"]}
    stage = run(3, mistakes=wrong)
    assert verified(3, stage.emitted)
    assert stage.k.tally.failures == {"malformed": 2}
    assert stage.k.tally.calls == 21 + 2 + (2 + 2), "two more votes a wrong one, one more sample a red flag"


def test_a_wrong_move_that_wins_is_made_and_one_that_is_not_legal_ends_the_run():
    stage = run(2, k=1, mistakes={0: ["move = [1, 0, 2]"], 1: ["move = [2, 0, 2]"]})
    assert stage.emitted == [[1, 0, 2]] and not verified(2, stage.emitted)
    assert stage.program.answer(stage.k)["solved"] is False
    assert "move 2, [2, 0, 2], is not legal from 20" in stage.k.tally.failed_said


def test_k_stays_as_small_as_it_begins():
    sizes = set()
    stage = Stage(Hanoi(disks=6), Limits(window_rows=100))
    while stage.calls:
        stage.turn(*[stage.answered(call, f"move = {said_of(stage)}") for call in list(stage.calls.values())])
        assert len(stage.k.goals) <= 1 + 3 and not stage.k.goals_by_kind
        if stage.calls:
            sizes.add(len(codec.encode_state(stage.k)))
    assert max(sizes) - min(sizes) < 50, "numbers grow, and nothing else"


@pytest.mark.parametrize(
    "text",
    ["", "move = [1, 0, 3]", "move = [0, 0, 1]", "move = [1, 0, 1].", "move = [1,0,1]", "Move = [1, 0, 1]",
     "move = [1, 0, 1] or so", " move = [1, 0, 1]", "move = [1, 0]", "move = [01, 0, 1]", "[1, 0, 1]"],
)  # fmt: skip
def test_a_reply_is_a_move_and_nothing_else(text):
    with pytest.raises(Malformed):
        move_of(text)


def test_a_move_is_read():
    assert move_of("move = [20, 0, 2]") == [20, 0, 2]


# configuration, move -> configuration
MOVED = [
    ("000", [1, 0, 2], "200"),
    ("200", [2, 0, 1], "210"),
    ("210", [1, 2, 1], "110"),
    ("110", [3, 0, 2], "112"),
    ("000", [2, 0, 1], None),  # not on top
    ("200", [2, 0, 2], None),  # onto a smaller one
    ("200", [1, 0, 1], None),  # not there
    ("200", [1, 2, 2], None),  # nowhere
    ("000", [4, 0, 1], None),  # no such disk
]


@pytest.mark.parametrize(("places", "move", "after"), MOVED)
def test_what_a_move_makes_of_a_configuration(places, move, after):
    assert moved(places, move) == after


def test_a_configuration_is_said_from_bottom_to_top():
    assert pegs_text("0000") == "Peg 0: 4 3 2 1\nPeg 1:\nPeg 2:"
    assert pegs_text("2100") == "Peg 0: 4 3\nPeg 1: 2\nPeg 2: 1"


def test_how_many_disks_there_may_be():
    for given, text in (({"disks": 0}, "disks must be 1 to 64, not 0"), ({"k": 0}, "k must be 1 or more, not 0")):
        with pytest.raises(ValueError, match=text):
            Hanoi(**given)
