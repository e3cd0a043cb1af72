"""The scheduler in a conversation, and the same task with the scheduler in code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from cortex.programs.chatloop import NUDGE, NUDGES_MAX, chatloop, turns_max
from cortex.programs.parts import label_task
from cortex.programs.toolloop import toolloop
from tests.support.scripted_conversation import Talker, ran, results, scripted

EXACT = {"missed": 0, "twice": 0, "refused": 0, "ended": "answered", "right": True}
ANSWER = "bug: 0, praise: 1, wish: 1"


def told(answer: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(answer[name] for name in names)


@pytest.mark.parametrize(("form", "turns"), [("chat", 2 * 9 + 1), ("clean", 9)])
def test_without_errors_both_come_to_the_right_counts(form: Any, turns: int, tmp_path: Path) -> None:
    model = SimulatedModel(SimulatorSettings(error=0))
    done = ran(chatloop(count=9, form=form), model, tmp_path)
    assert {name: done.answer[name] for name in EXACT} == EXACT
    assert done.answer["counts"] == label_task.truth(label_task.names(9))
    assert done.answer["turns"] == done.calls == turns


def test_the_conversation_holds_all_that_was_done_and_the_clean_call_one_note(tmp_path: Path) -> None:
    """The same notes and tools: what differs is what stands in each prompt."""
    largest = {}
    for form in ("chat", "clean"):
        model = SimulatedModel(SimulatorSettings(error=0))
        ran(chatloop(count=20, form=form), model, tmp_path / form)  # type: ignore[arg-type]
        largest[form] = model.provider.tally.largest_prompt_tokens
    assert largest["clean"] < 100 < 1_500 < largest["chat"]


@pytest.mark.parametrize("program", [chatloop(count=0), toolloop(count=-1), toolloop(at_most=0)])
def test_what_cannot_be_counted_is_one_line(program: Any, tmp_path: Path) -> None:
    done = ran(program, SimulatedModel(SimulatorSettings(error=0)), tmp_path)
    assert (done.outcome, done.calls) == ("failed", 0) or done.answer is None
    k = last_state(StateFolder(tmp_path), StateFolder(tmp_path).jobs()[0])
    (failure,) = [goal.failure for goal in k.goals.values() if goal.failure is not None]
    assert "must be 1 or more" in failure.message and "\n" not in failure.message


def test_ones_own_notes(tmp_path: Path) -> None:
    notes = {"a": "Praise for this.", "b": "Just a wish."}
    for form in ("chat", "clean"):
        done = ran(chatloop(form=form, notes=notes), SimulatedModel(SimulatorSettings(error=0)), tmp_path / form)  # type: ignore[arg-type]
        assert done.answer["counts"] == {"bug": 0, "praise": 1, "wish": 1}
        assert "right" not in done.answer


def test_what_the_model_does_wrongly_is_told_to_it_and_counted(tmp_path: Path) -> None:
    model = scripted(
        ("erase", {"item": "a"}),
        ("read", {}),
        ("record", {"item": "a", "label": "poem"}),
        ("read", {"item": "a", "why": "so"}),
        [("read", {"item": "a"}), ("record", {"item": "a", "label": "bug"})],
        ("record", {"item": "a", "label": "praise"}),
        ANSWER,
    )
    done = ran(chatloop(notes={"a": "Praise.", "b": "A wish."}), model, tmp_path)
    assert told(done.answer, "missed", "twice", "refused", "turns", "ended") == (1, 1, 4, 7, "answered")
    lines = results(model.asked[-1])
    assert lines[0] == "there is no tool erase"
    assert "item" in lines[1] and "poem" in lines[2] and "why" in lines[3]
    assert lines[4:] == ["Praise.", "recorded: a is bug", "recorded: a is praise"]
    failed = [block.get("is_error", False) for turn in model.asked[-1]["messages"] for block in turn["content"]
              if block["type"] == "tool_result"]  # fmt: skip
    assert failed == [True] * 4 + [False] * 3


def test_words_that_are_no_answer_are_told_so_and_end_it_labelled(tmp_path: Path) -> None:
    model = scripted("I will read it now.", *["Still thinking."] * NUDGES_MAX)
    done = ran(chatloop(count=2), model, tmp_path)
    assert (done.outcome, *told(done.answer, "counts", "ended")) == (
        "complete",
        None,
        "no answer in the form asked for",
    )
    assert model.asked[-1]["messages"][-1]["content"] == [{"type": "text", "text": NUDGE}]


def test_a_loop_that_comes_to_no_end_is_stopped_and_labelled(tmp_path: Path) -> None:
    model = Talker(lambda request: ("read", {"item": "a"}))
    done = ran(chatloop(notes={"a": "A bug."}), model, tmp_path)
    assert told(done.answer, "counts", "ended", "turns") == (None, "it came to no end", turns_max(1))


def test_a_conversation_over_m_is_never_sent_and_ends_it_labelled(tmp_path: Path) -> None:
    model = SimulatedModel(SimulatorSettings(error=0))
    done = ran(chatloop(count=20), model, tmp_path, prompt_tokens_max=900)
    assert told(done.answer, "counts", "ended") == (None, "its conversation is too large")
    assert model.provider.tally.largest_prompt_tokens <= 900
    assert 0 < done.answer["missed"] < 20
