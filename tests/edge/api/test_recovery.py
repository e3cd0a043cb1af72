"""Ways back from a scheduler in a conversation: what each sees, what each costs, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.simulator.frontends.in_memory import SimulatedModel
from actors.simulator.settings import SimulatorSettings
from benchmarks.claims import recovery as claims_recovery
from cortex.programs import recovery as recoveries
from cortex.programs.parts import label_task
from cortex.programs.recovery import MOVES, RECORDED, SO_FAR, recovery
from tests.support.scripted_conversation import Talker, ran, results

N, PART = 12, 4
# replies of a run without a mistake
TURNS = {
    "none": 2 * N + 1,
    "compaction": 2 * N + 1 + N // PART,
    "externalisation": 2 * N + 1,
    "re-derivation": 3 * (2 * N + N // PART),
    "recursion": 2 * N + 4,
    "frontloading": N + 1,
}


@pytest.mark.parametrize("move", ["none", *MOVES])
def test_without_errors_each_move_comes_to_the_right_counts(move: Any, tmp_path: Path) -> None:
    model = SimulatedModel(SimulatorSettings(error=0))
    done = ran(recovery(move=move, count=N, part=PART), model, tmp_path)
    assert done.answer["counts"] == label_task.truth(label_task.names(N)) and done.answer["right"]
    assert (done.answer["ended"], done.answer["missed"], done.answer["refused"]) == ("answered", 0, 0)
    assert done.answer["turns"] == model.provider.tally.worked == TURNS[move]


def asked(move: Any, folder: Path) -> list[Any]:
    """Every request of a run, answered by the simulated provider."""
    model = SimulatedModel(SimulatorSettings(error=0))
    bodies: list[bytes] = []
    real = model.call

    async def call(body: bytes, **bounds: Any) -> Any:
        bodies.append(body)
        return await real(body, **bounds)

    model.call = call  # type: ignore[method-assign]
    ran(recovery(move=move, count=N, part=PART), model, folder)
    return [msgspec.json.decode(body) for body in bodies]


def first(request: Any) -> str:
    """The text with which its conversation began."""
    answer = request["messages"][0]["content"]
    return answer if isinstance(answer, str) else answer[0]["text"]


def test_compaction_begins_afresh_with_what_the_model_wrote_down(tmp_path: Path) -> None:
    requests = asked("compaction", tmp_path)
    begun = [request for request in requests if len(request["messages"]) == 1]
    assert ["Done so far:" in first(request) for request in begun] == [False, True, True, True]
    assert first(begun[1]).count(": bug") + first(begun[1]).count(": praise") + first(begun[1]).count(": wish") >= PART
    assert sum(SO_FAR in str(request["messages"][-1]) for request in requests) == N // PART
    assert max(len(request["messages"]) for request in requests) <= 4 * PART + 1


def test_externalisation_reads_back_what_is_left_and_at_the_end_what_was_recorded(tmp_path: Path) -> None:
    begun = [first(request) for request in asked("externalisation", tmp_path) if len(request["messages"]) == 1]
    items = label_task.names(N)
    assert [begin.count("note-") for begin in begun] == [N, N - PART, N - 2 * PART, 2 * N]
    assert [RECORDED in begin for begin in begun] == [False, False, False, True]
    assert all(item in begun[-1] for item in items)


def test_rederivation_asks_the_same_again_and_is_not_served_from_memory(tmp_path: Path) -> None:
    begun = [first(request) for request in asked("re-derivation", tmp_path) if len(request["messages"]) == 1]
    parts = N // PART
    assert len(begun) == 3 * parts and begun[:parts] == begun[parts : 2 * parts] == begun[2 * parts :]


def test_recursion_gives_each_half_a_conversation_of_its_own(tmp_path: Path) -> None:
    begun = [first(request) for request in asked("recursion", tmp_path) if len(request["messages"]) == 1]
    assert sorted(begin.count("note-") for begin in begun) == [3, 3, 3, 3]


def test_frontloading_puts_the_texts_into_the_prompt_and_takes_the_reading_out(tmp_path: Path) -> None:
    requests = asked("frontloading", tmp_path)
    assert all([tool["name"] for tool in request["tools"]] == ["record"] for request in requests)
    begun = first(requests[0])
    assert all(label_task.note(item) in begun for item in label_task.names(N)) and "call read" not in begun
    assert not any("We moved" in text for text in results(requests[-1]))


def test_a_conversation_that_grows_too_large_is_a_labelled_end(tmp_path: Path) -> None:
    small = {"prompt_tokens_max": 700, "max_output_tokens": 64}
    ended = {}
    for move in ("none", "recursion"):
        program = recovery(move=move, count=N, part=2)  # type: ignore[arg-type]
        ended[move] = ran(program, SimulatedModel(SimulatorSettings(error=0)), tmp_path / move, **small).answer
    assert (ended["none"]["ended"], ended["none"]["right"]) == ("a conversation is too large", False)
    assert ended["recursion"]["right"]


@pytest.mark.parametrize("move", ["none", *MOVES])
def test_a_model_that_never_answers_comes_to_an_end(move: Any, tmp_path: Path) -> None:
    model = Talker(lambda request: "I will do it now.")
    done = ran(recovery(move=move, count=4, part=2), model, tmp_path)
    assert done.answer["counts"] is None or not done.answer["right"]
    assert len(model.asked) < 200


# -- the claim -----------------------------------------------------------------------------------------------------


def test_the_claim_on_frontloading_holds_in_each_pair_and_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_recovery, "PAIR_LENGTHS", (1, 3, 8))
    assert claims_recovery.never_dearer(claims_recovery.pairs(2, 1))
    monkeypatch.setattr(recoveries, "_ONE_STEP", recoveries._TWO_STEPS)  # the text, and the procedure as well
    monkeypatch.setattr(recoveries, "RECORD", label_task.RECORD)
    real = recoveries.Conversation

    def both(name: str, tools: Any) -> Any:
        return real(name, tools=(label_task.READ, label_task.RECORD))

    monkeypatch.setattr(recoveries, "Conversation", both)
    assert not claims_recovery.never_dearer(claims_recovery.pairs(2, 1))


def test_the_claims_hold_for_figures_like_these_and_fail_for_others() -> None:
    def row(notes: int, **more: Any) -> dict[str, Any]:
        usual = {"tokens": 100 * notes, "calls": 2.0 * notes, "largest_prompt_tokens": 800, "success": 0.9}
        plain = {**usual, "tokens": 40 * notes**2, "largest_prompt_tokens": 100 * notes, "success": 1 - notes / 50}
        moves = {move: dict(usual) for move in MOVES}
        moves["re-derivation"]["calls"] = 6.0 * notes
        return {"notes": notes, "none": plain, **moves} | more

    paired = [{"tokens": [9, 8], "calls": [3, 2], "largest_prompt_tokens": [5, 5]}]
    rows = [row(8), row(24), row(48)]
    assert all(claims_recovery.holds(rows, paired).values())
    worse = [row(8), row(24), row(48, compaction=row(48)["none"])]
    assert list(claims_recovery.holds(worse, paired).values()).count(False) == 2
    assert not all(claims_recovery.holds(rows, [{**paired[0], "tokens": [8, 9]}]).values())
