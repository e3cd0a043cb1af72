"""``notes``: which calls are made, in which order, from what, and what the answer says of them."""

from __future__ import annotations

import msgspec
import pytest

from cortex.journal import codec
from cortex.programs.notes import Notes, NoteText, notes_from
from cortex.state.program import build, params_of
from cortex.state.state import Status
from cortex.values.limits import Limits
from tests.support.scripted_notes_reader import QUESTION, note, reader, several, shown, task, words_max
from tests.support.synchronous_driver import Driver, by_bytes, by_fours, spoken


def limits(tokens_max: int, **more: int) -> Limits:
    return Limits(prompt_tokens_max=tokens_max, **more)  # type: ignore[arg-type]


def tasks(driver: Driver) -> list[str]:
    return [task(text) for text in driver.texts()]


def assert_bounded(driver: Driver) -> None:
    assert driver.calls
    for call in driver.calls:
        assert by_fours(spoken(call.body)) <= call.prompt_tokens_max


def test_what_fits_at_once_is_answered_by_one_call() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(3, 300, 1)), reader())
    driver.run()
    assert tasks(driver) == ["answer"]
    assert driver.constructors() == ["synthesis of documents"]
    assert driver.k.outcome == "complete"
    answer = driver.answer
    assert answer["text"] == "Answered from 3 texts."
    assert answer["notes"] == ["n000", "n001", "n002"]
    assert (answer["partial"], answer["why"]) == (False, "")


def test_what_fits_after_the_filter_is_answered_from_the_notes_themselves() -> None:
    notes = several(12, 1_200, 3)
    driver = Driver(Notes(question=QUESTION, notes=notes), reader(), limits=limits(3_000))
    driver.run()
    assert tasks(driver) == ["plan", *["filter"] * 12, "answer"]
    last = driver.texts()[-1]
    for each in notes[:3]:  # the lossy findings point to their notes, and select went back to them
        assert each.text in last
        assert f'<about name="{each.name}">' in last
    assert "The question has these parts: how deep is the harbour; how deep do the ships go." in last
    answer = driver.answer
    assert answer["notes"] == ["n000", "n001", "n002"]
    assert answer["counts"] == {"notes": 12, "relevant": 3, "rounds": 0, "sub_questions": 2, "summaries": 0}
    assert not answer["partial"]
    assert_bounded(driver)


def test_a_finding_says_which_call_made_it_and_from_what() -> None:
    notes = several(8, 3_000, 2)
    driver = Driver(Notes(question=QUESTION, notes=notes), reader(), limits=limits(3_000))
    k = driver.run()
    findings = list(k.items_of("finding"))
    assert [item.value["relevant"] for item in findings] == [True, True, *[False] * 6]
    for item, goal in zip(findings, driver.goals("filter"), strict=True):
        assert item.lossy
        assert k.items[item.sources[0]].value == notes[item.value["place"]].text
        assert item.call == f"job/{goal.id}/0"


def test_relevant_notes_that_do_not_fit_are_clustered_once() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(20, 2_000, 12)), reader(), limits=limits(3_000))
    k = driver.run()
    answer = driver.answer
    assert answer["counts"]["rounds"] == 1
    assert answer["counts"]["summaries"] == tasks(driver).count("summary") > 1
    assert answer["framing"] == "synthesis of summaries"
    assert answer["notes"] == [f"n{i:03}" for i in range(12)]
    assert not answer["partial"]
    last = driver.texts()[-1]
    assert "<summary name=" in last
    assert "<about name=" in last, "where there is room, select goes back to the claims beneath the summaries"
    for item in k.items_of("summary"):
        assert item.lossy and item.call
        assert {k.items[source].kind for source in item.sources} == {"finding"}
    assert_bounded(driver)


def test_summaries_that_do_not_fit_are_clustered_again() -> None:
    program = Notes(question=QUESTION, notes=several(90, 2_000, 90), summary_words_max=100)
    driver = Driver(program, reader(summary_words=99), limits=limits(2_600), permits=64)
    k = driver.run()
    answer = driver.answer
    assert answer["counts"]["rounds"] >= 2
    assert len(answer["notes"]) == 90, "every note stands beneath the last summaries"
    assert not answer["partial"]
    kinds = [{k.items[source].kind for source in item.sources} for item in k.items_of("summary")]
    assert {"finding"} in kinds and {"summary"} in kinds
    assert_bounded(driver)


def test_summaries_as_large_as_they_may_be_still_shrink() -> None:
    longest = " ".join(["d" * 15] * 200)
    read = reader(summary=lambda text: longest[: words_max(text) * 16 - 1])
    program = Notes(question=QUESTION, notes=several(70, 2_000, 70))
    driver = Driver(program, read, limits=limits(2_400), permits=64, counter=by_bytes, countable=False)
    driver.run()
    answer = driver.answer
    assert 2 <= answer["counts"]["rounds"] <= 1 + (70).bit_length()
    assert len(answer["notes"]) == 70 and not answer["partial"]


def test_a_note_over_m_is_divided_without_loss_and_its_claims_are_merged() -> None:
    parts = [f"The harbour is {i} fathoms deep here." + " It rained on the hill." * 60 for i in range(9)]
    text = "\n\n".join(parts)
    driver = Driver(Notes(question=QUESTION, notes=(NoteText("log", text),)), reader(), limits=limits(2_000))
    k = driver.run()
    whole, *pieces = driver.goals("filter")
    spans = [(goal.value["start"], goal.value["end"]) for goal in pieces]
    assert len(pieces) > 2
    assert "".join(text[start:end] for start, end in spans) == text
    claims = [claim for goal in pieces for claim in goal.answer["claims"]]
    assert whole.answer["claims"] == list(dict.fromkeys(claims))
    assert len(whole.answer["claims"]) == 9
    assert all(goal.depth == whole.depth + 1 for goal in pieces)
    answer = driver.answer
    assert answer["notes"] == ["log"] and answer["counts"]["relevant"] == 1
    assert not answer["partial"]
    assert {item.value["place"] for item in k.items_of("finding")} == {0}
    assert_bounded(driver)


def test_nothing_relevant_is_said_without_a_synthesis() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(9, 3_000, 0)), reader(), limits=limits(3_000))
    driver.run()
    assert "answer" not in tasks(driver)
    answer = driver.answer
    assert answer["text"] == "None of the 9 notes bears on the question."
    assert answer["notes"] == [] and not answer["partial"]


def test_an_empty_note_is_not_asked_about() -> None:
    notes = (*several(6, 3_000, 2), NoteText("blank", " \n"))
    driver = Driver(Notes(question=QUESTION, notes=notes), reader(), limits=limits(3_000))
    driver.run()
    assert tasks(driver).count("filter") == 6
    assert not driver.answer["partial"]


def test_more_notes_than_one_plan_may_add_are_taken_in_windows() -> None:
    bounds = limits(3_000, plan_goals_max=5)
    driver = Driver(Notes(question=QUESTION, notes=several(12, 3_000, 2)), reader(), limits=bounds)
    driver.run()
    assert tasks(driver).count("filter") == 12
    assert driver.answer["notes"] == ["n000", "n001"]
    assert driver.answer["counts"]["sub_questions"] == 2, "the plan itself stayed within its bound"


def test_filters_run_side_by_side_up_to_the_permits() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(40, 1_500, 4)), reader(), limits=limits(3_000), permits=16)
    driver.run()
    assert driver.in_flight_max == 16


# -- framing -------------------------------------------------------------------------------------------------------


def test_select_chooses_the_framing_from_what_was_found_and_the_journal_keeps_it() -> None:
    filler = several(8, 2_000, 0)
    plain = (note("a1", 600), note("b2", 600))
    connected = (note("a1", 600, word="shipwright"), note("b2", 600, word="shipwright"), note("c3", 600))
    opposed = (note("a1", 600, says="yes"), note("b2", 600, says="no"))
    framings = {}
    for name, notes in {"plain": plain, "connected": connected, "opposed": opposed}.items():
        driver = Driver(Notes(question=QUESTION, notes=(*filler, *notes)), reader(), limits=limits(3_000))
        driver.run()
        framings[name] = driver.answer["framing"]
        assert driver.replayed().goals[driver.goals("analyse")[0].id].constructor == framings[name]
        last = driver.texts()[-1]
        assert ("These answer yes: a1.\nThese answer no: b2." in last) == (name == "opposed")
        assert ("These belong together: a1; b2." in last) == (name == "connected")
        assert ("speak of: shipwright" in last) == (name == "connected")
    assert framings == {
        "plain": "synthesis of documents",
        "connected": "synthesis of connected documents",
        "opposed": "synthesis of opposed documents",
    }


def test_an_open_question_asks_for_no_side() -> None:
    program = Notes(question="How deep is the harbour?", notes=several(8, 3_000, 2))
    driver = Driver(program, reader(), limits=limits(3_000))
    driver.run()
    filters = [text for text in driver.texts() if task(text) == "filter"]
    assert not any('"says"' in text for text in filters)


def test_annotations_give_way_before_documents() -> None:
    bounds = limits(3_000, parts_max=7)  # three of the frame, four documents: no place for an annotation
    driver = Driver(Notes(question=QUESTION, notes=several(12, 1_200, 4)), reader(), limits=bounds)
    driver.run()
    last = driver.texts()[-1]
    assert shown(last) == ["n000", "n001", "n002", "n003"]
    assert "<about" not in last


def test_one_document_more_than_parts_allow_is_clustered() -> None:
    bounds = limits(3_000, parts_max=7)
    driver = Driver(Notes(question=QUESTION, notes=several(20, 700, 5)), reader(), limits=bounds)
    driver.run()
    assert driver.answer["framing"] == "synthesis of summaries"
    assert driver.goals("analyse")[0].too_large == 0, "it was seen beforehand"


# -- order and replay ----------------------------------------------------------------------------------------------


def finished(order: int | None, together: int) -> Driver:
    program = Notes(question=QUESTION, notes=several(30, 2_000, 20), summary_words_max=100)
    driver = Driver(
        program, reader(summary_words=99), limits=limits(2_600), permits=8, order=order, together=together
    )
    driver.run()
    return driver


def test_the_order_in_which_replies_arrive_changes_nothing() -> None:
    straight = finished(None, 1)
    assert straight.answer["counts"]["rounds"] >= 1
    for order in range(4):
        other = finished(order, 1)
        assert other.answer == straight.answer
        assert codec.encode_state(other.k) == codec.encode_state(straight.k)
    assert finished(7, 5).answer == straight.answer


def test_the_same_journal_gives_the_same_k() -> None:
    driver = finished(3, 3)
    assert codec.encode_state(driver.replayed()) == codec.encode_state(driver.k)


# -- parameters ----------------------------------------------------------------------------------------------------


def test_parameters_survive_the_journal() -> None:
    program = Notes(question=QUESTION, notes=notes_from([("a", "one"), ("b", "two")]), claims_max=2)
    assert build(Notes, params_of(program)) == program


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"question": " "}, "question must not be empty"),
        ({"notes": ()}, "there are none"),
        ({"notes": [{"name": "a", "text": " "}]}, "all of them are empty"),
        ({"notes": [{"name": "a", "text": "x"}, {"name": "a", "text": "y"}]}, "notes 1 and 2 are both named 'a'"),
        ({"claims_max": 0}, "claims_max must be above zero, not 0"),
    ],
)
def test_parameters_that_make_no_sense_are_named(fields: dict[str, object], said: str) -> None:
    good: dict[str, object] = {"question": QUESTION, "notes": [{"name": "a", "text": "x"}]}
    with pytest.raises(ValueError, match=said):
        build(Notes, msgspec.json.encode(good | fields))


def test_the_top_goal_ends_resolved() -> None:
    driver = Driver(Notes(question=QUESTION, notes=several(2, 100, 1)), reader())
    driver.run()
    assert [goal.status for goal in driver.goals("analyse")] == [Status.RESOLVED]


def test_what_small_notes_teach_of_the_tokens_spares_larger_ones_from_being_divided() -> None:
    small = [note(f"s{i:02}", 700, relevant=False) for i in range(25)]
    large = [note(f"l{i}", 4_000, relevant=False) for i in range(3)]  # some 1,000 tokens; without usage, thought 2,000
    driver = Driver(Notes(question=QUESTION, notes=(*large, *small)), reader(), limits=limits(1_900))
    driver.run()
    assert tasks(driver).count("filter") == 28
    assert_bounded(driver)
