"""ralph as a program: what a round's call sees, what becomes of its answer, and how the work ends."""

from __future__ import annotations

from typing import Any

import pytest

from cortex.journal import codec
from cortex.programs.parts.edits import edits_of
from cortex.programs.ralph import REFRAMED, Ralph
from cortex.state import commands, events
from cortex.values.limits import Limits
from tests.support.state_machine_harness import Stage, asked, reply

APPEND = '<append path="a.txt">\nx\n</append>'


def seen(
    left: int | None = 3, *, passed: bool = False, folder: str = "f0", said: str | None = None, **more: Any
) -> Any:
    """What a worker tells after a round; ``folder``: hash of its state."""
    words = f"{left} missing" if said is None and left is not None else said or ""
    found = {"passed": passed, "exit": 0 if passed else 1, "failing": left, "said": words, "found": words}
    view = {"digest": folder, "files": [["a.txt", "4 bytes"]], "more": 0, "texts": [["a.txt", "one\n", True]]}
    return {"folder": "work", "number": 1, "check": found, "view": view, "refused": "", "changed": []} | more


class Work:
    """A stage on which tools are answered by hand."""

    def __init__(
        self, *, limits: Limits | None = None, first: Any = None, window: int = 200_000, **params: Any
    ) -> None:
        program = Ralph(folder="work", task="Do it.", check="false", **params)
        self.stage = Stage(program, limits, window=window)
        self.tool("folder_opened", first or seen())

    def tool(self, name: str, value: Any) -> None:
        run = [each for each in self.stage.said if isinstance(each, commands.StartToolRun)][-1]
        assert run.tool == name
        self.stage.turn(events.Observed(run.goal, run.attempt, value, self.stage.k.at_s, None))

    @property
    def ran(self) -> Any:
        return [each for each in self.stage.said if isinstance(each, commands.StartToolRun)][-1].arguments

    def round(self, value: Any, answer: str = APPEND) -> str:
        """One round: what its call saw."""
        call = self.stage.call()
        self.stage.turn(self.stage.answered(call, answer))
        self.tool("folder_round", value)
        return asked(call)

    def over(self) -> Any:
        self.tool("folder_closed", None)
        assert self.stage.k.outcome == "complete"
        return self.stage.program.answer(self.stage.k)


def test_a_round_sees_the_task_the_folder_and_the_check_and_nothing_of_the_rounds_before():
    work = Work()
    first = work.round(seen(2, folder="f1"), APPEND.replace("x", "told in round one"))
    for text in ("Do it.", "a.txt (4 bytes)", "File a.txt\none", "Check: false\n3 missing"):
        assert text in first
    second = asked(work.stage.call())
    assert "told in round one" not in second and "2 missing" in second
    assert second.replace("2 missing", "3 missing") == first


def test_the_check_ends_the_work_and_nothing_else_does():
    work = Work()
    work.round(seen(3, folder="f0"), "<done/>")
    assert work.ran["edits"] == []
    again = asked(work.stage.call())
    assert "It said that nothing is left to do. The check does not pass." in again
    work.round(seen(1, folder="f1"))
    assert "nothing is left to do" not in asked(work.stage.call())
    work.round(seen(None, folder="f2", passed=True))
    assert work.over() == {"passed": True, "ended": "passed", "rounds": 3, "failing": None, "check": ""}
    assert work.stage.emitted == [work.stage.program.answer(work.stage.k)] and work.stage.k.tally.failed == 0


def test_a_check_that_passes_already_needs_no_round():
    work = Work(first=seen(None, passed=True))
    assert work.over()["rounds"] == 0 and not work.stage.calls and work.stage.k.tally.calls == 0


def test_edits_are_for_a_worker_as_they_were_written():
    work = Work()
    work.round(seen(2, folder="f1"))
    assert (work.ran["edits"], work.ran["number"]) == (edits_of(APPEND), 1)


def test_stagnation_is_read_from_the_folder_and_alters_the_framing_once_and_then_ends_it():
    work = Work(quiet_rounds=2)
    texts = [work.round(seen(3, folder=f"diary {number}"), APPEND) for number in range(4)]
    assert [REFRAMED in text for text in texts] == [False, False, True, True]
    answer = work.over()
    assert (answer["ended"], answer["rounds"], answer["passed"]) == ("stagnated", 4, False)
    assert work.stage.k.tally.failed == 1 and work.stage.emitted == [answer]


def test_progress_takes_the_altered_framing_back():
    work = Work(quiet_rounds=1)
    work.round(seen(3, folder="f1"))
    assert REFRAMED in work.round(seen(2, folder="f2"))
    assert REFRAMED not in work.round(seen(2, folder="f3"))
    assert REFRAMED in work.round(seen(2, folder="f4"))
    assert work.over()["ended"] == "stagnated"


def test_going_in_circles_is_no_progress():
    work = Work(quiet_rounds=3, reframes=0, first=seen(None, said="no x", folder="a"))
    for folder, text in (("b", "no y"), ("a", "no z"), ("b", "no w"), ("a", "no v")):
        work.round(seen(None, said=text, folder=folder))
    assert work.over()["rounds"] == 4


def test_rounds_are_bounded():
    work = Work(rounds=2)
    work.round(seen(2, folder="f1"))
    work.round(seen(1, folder="f2"))
    assert work.over()["ended"] == "rounds"


def test_equal_rounds_are_different_questions():
    work = Work(quiet_rounds=9)
    hashes = []
    for _ in range(3):
        hashes.append(work.stage.call().hash)
        work.round(seen(3, folder="f0"))
    assert len(set(hashes)) == 3


def test_an_answer_of_another_form_is_asked_again_with_the_reason_and_costs_no_round():
    work = Work()
    work.stage.turn(work.stage.answered(work.stage.call(), "I have done it all."))
    again = asked(work.stage.call())
    assert "Your last answer was refused: this line is no edit" in again
    work.round(seen(None, passed=True))
    assert work.over()["rounds"] == 1


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded", "pause_turn"])
def test_of_a_reply_that_was_cut_between_two_edits_none_is_made(stop_reason: str):
    work = Work()
    call = next(iter(work.stage.calls.values()))
    work.stage.calls.pop((call.goal, call.attempt))
    made = reply(APPEND, stop_reason=stop_reason)
    work.stage.turn(events.Answered(call.goal, call.sample, call.attempt, call.hash, made))
    again = asked(work.stage.call())
    assert f"Your last answer was refused: it was cut ({stop_reason}), and none of its edits was made" in again
    work.round(seen(None, passed=True))
    assert work.over()["rounds"] == 1


def test_a_round_without_a_usable_answer_is_a_round_without_progress():
    work = Work(limits=Limits(resamples_max=1), quiet_rounds=2, reframes=0)
    for _ in range(2):
        for _ in range(2):
            work.stage.turn(work.stage.answered(work.stage.call(), "I have done it all."))
    answer = work.over()
    assert (answer["ended"], answer["rounds"]) == ("stagnated", 2)


def test_refused_edits_are_told_to_the_next_round():
    work = Work()
    work.round(seen(3, folder="f0", refused="edit 1 (write way/x): way is a link"))
    assert "Its edits were refused, all of them: edit 1 (write way/x): way is a link" in asked(work.stage.call())


def test_a_folder_that_cannot_be_worked_on_ends_it_in_a_line():
    stage = Stage(Ralph(folder="work", task="Do it.", check="false"))
    run = next(each for each in stage.said if isinstance(each, commands.StartToolRun))
    from policies.failures.failure import Failure, FailureKind

    gone = Failure(FailureKind.FAULTY, "no folder work")
    stage.turn(events.Observed(run.goal, run.attempt, None, 1.0, gone))
    leaving = [each for each in stage.said if isinstance(each, commands.StartToolRun)][-1]
    assert (leaving.tool, leaving.arguments) == ("folder_closed", {"folder": "work"})
    stage.turn(events.Observed(leaving.goal, leaving.attempt, None, 2.0, None))
    answer = {"passed": False, "ended": "faulty", "rounds": 0, "failing": None, "check": "no folder work"}
    assert stage.program.answer(stage.k) == answer and stage.emitted == [answer]
    assert stage.k.outcome == "complete" and stage.k.tally.failed == 1


def test_what_does_not_fit_is_cut_the_least_wanted_first():
    texts = [[f"f{number}.txt", f"text {number} " * 100, True] for number in range(8)]
    first = seen()
    first["view"]["texts"] = texts
    work = Work(first=first, window=4_096 + 1_600)
    text = asked(work.stage.call())
    assert "text 0" in text and "Do it." in text and "3 missing" in text and "text 7" not in text


def test_of_very_many_files_no_more_are_shown_than_a_prompt_may_have_parts():
    first = seen()
    first["view"]["texts"] = [[f"f{number}.txt", f"text {number};", True] for number in range(300)]
    text = asked(Work(first=first).stage.call())
    assert "text 0;" in text and "text 299;" not in text and "3 missing" in text
    assert 150 < text.count("File f") < 200


def test_k_stays_as_small_as_it_begins():
    work = Work(quiet_rounds=99, rounds=99)
    sizes = set()
    for number in range(90):
        work.round(seen(3, folder=f"{number % 2:04}"))
        assert len(work.stage.k.goals) <= 2 and not work.stage.k.items
        if number >= 66:  # remembered states of the folder have their bound
            sizes.add(len(codec.encode_state(work.stage.k)))
    assert max(sizes) - min(sizes) < 50


@pytest.mark.parametrize(
    "params",
    [{"rounds": 0}, {"quiet_rounds": 0}, {"reframes": -1}, {"view_bytes": 0}, {"check_timeout_s": 0.0},
     {"check_timeout_s": 99_999.0}, {"folder": " "}, {"task": ""}, {"check": ""}],
)  # fmt: skip
def test_bounds_that_make_no_sense_are_refused_with_their_name(params):
    stage = Stage(Ralph(**({"folder": "work", "task": "t", "check": "c"} | params)))
    assert stage.k.outcome == "failed" and next(iter(params)) in stage.k.why
