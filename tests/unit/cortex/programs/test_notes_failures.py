"""``notes`` when things go wrong: malformed replies, prompts found too large, an M too small. It always ends."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex.journal import codec
from cortex.programs.notes import Notes
from cortex.state import events
from cortex.state.state import Status
from cortex.values.limits import Limits
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.support.scripted_notes_reader import QUESTION, Said, judged, note, reader, several, shown, task
from tests.support.synchronous_driver import Driver, by_bytes, by_fours, replied, spoken

SMALL = Limits(prompt_tokens_max=3_000)


def notes(count: int = 12, size: int = 1_200, relevant: int = 3, **more: int) -> Notes:
    return Notes(question=QUESTION, notes=several(count, size, relevant), **more)


@pytest.mark.parametrize("kind", ["plan", "filter", "summary", "answer"])
def test_one_malformed_reply_is_discarded_and_asked_for_again(kind: str) -> None:
    left = {kind: 1}
    bad = {"plan": "What is asked?", "filter": "relevant", "summary": "depth " * 5_000, "answer": "  "}[kind]
    plain = reader()

    def read(text: str) -> Said:
        if left.get(task(text)):
            left[task(text)] -= 1
            return bad
        return plain(text)

    program = notes(20, 2_000, 12)
    driver = Driver(program, read, limits=SMALL)
    driver.run()
    sound = Driver(program, reader(), limits=SMALL)
    sound.run()
    assert driver.answer == sound.answer
    assert len(driver.calls) == len(sound.calls) + 1
    assert [goal.resamples for goal in driver.k.goals.values() if goal.resamples] == [1]
    assert driver.k.tally.failures == {"malformed": 1}


@pytest.mark.parametrize(
    "plan",
    [
        "How deep is it?",  # no number
        "Here you are:\n1. how deep is it",  # something else
        "1. a\n2. b\n3. c\n4. d",  # more than asked for
        "1. " + "deep " * 80,  # no question any more
        "",
    ],
)
def test_a_plan_that_stays_malformed_does_not_hold_up_the_filters(plan: str) -> None:
    driver = Driver(notes(), reader(plan=lambda _: plan), limits=SMALL)
    driver.run()
    assert [goal.status for goal in driver.goals("plan")] == [Status.FAILED]
    assert driver.goals("plan")[0].resamples == SMALL.resamples_max + 1
    assert driver.answer["counts"]["sub_questions"] == 0
    assert driver.answer["notes"] == ["n000", "n001", "n002"]


@pytest.mark.parametrize(
    "judgement",
    [
        "yes",
        '{"relevant": true, "why": "so"}',  # no claims
        '{"relevant": true, "why": "so", "claims": []}',  # none of them
        '{"relevant": true, "why": "so", "claims": [" "]}',  # an empty one
        '{"relevant": true, "why": "so", "claims": ["a", "b", "c", "d"]}',  # more than asked for
        '{"relevant": true, "why": "so", "claims": ["' + "a" * 700 + '"]}',  # no claim any more
        '{"relevant": "true", "why": "so", "claims": ["a"]}',  # of another type
        '{"relevant": true, "why": "so", "claims": ["a"], "score": 3}',  # a key of its own
        '{"relevant": true, "why": "so", "says": "maybe", "claims": ["a"]}',
        'Sure! {"relevant": false, "why": "so", "claims": []}',
    ],
)
def test_a_note_that_cannot_be_judged_is_named_in_a_partial_answer(judgement: str) -> None:
    def read(text: str) -> str:
        return judgement if shown(text) == ["n001"] else judged(text)

    driver = Driver(notes(), reader(filter=read), limits=SMALL)
    driver.run()
    answer = driver.answer
    assert answer["notes"] == ["n000", "n002"]
    assert answer["unread"] == ["n001"]
    assert answer["partial"]
    assert answer["why"] == "1 of 12 notes could not be judged, or not whole"


def test_when_no_note_can_be_judged_the_job_has_failed_and_says_why() -> None:
    driver = Driver(notes(), reader(filter=lambda _: "yes"), limits=SMALL)
    driver.run()
    (top,) = driver.goals("analyse")
    assert driver.k.outcome == "failed"
    assert top.failure is not None
    assert top.failure.message.startswith("none of 12 notes could be judged; the first: malformed: expected")
    assert driver.answer["partial"] and driver.answer["text"] == ""


def test_a_cluster_that_cannot_be_summarised_is_left_out_by_name() -> None:
    plain = reader()

    def read(text: str) -> Said:
        return "depth " * 5_000 if task(text) == "summary" and "n004" in shown(text) else plain(text)

    driver = Driver(notes(20, 2_000, 12), read, limits=SMALL)
    driver.run()
    answer = driver.answer
    assert "n004" in answer["left_out"]
    assert sorted(answer["left_out"] + answer["notes"]) == [f"n{i:03}" for i in range(12)]
    assert answer["partial"] and "relevant notes are not in the answer" in answer["why"]
    assert answer["text"].startswith("Answered from")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (" ", "malformed: the reply is empty"),
        (replied("I cannot help with that.", "refusal"), "refused: the model declined"),
        (Failure(FailureKind.REFUSED, "no"), "refused: no"),
    ],
)
def test_without_a_synthesis_the_claims_found_are_the_labelled_part(said: Said, why: str) -> None:
    driver = Driver(notes(), reader(answer=lambda _: said), limits=SMALL)
    driver.run()
    answer = driver.answer
    assert answer["partial"]
    assert answer["why"] == f"no synthesis, {why}; these are the claims found"
    assert answer["text"].splitlines()[0] == "n000: The harbour of n000 has a n000 of its own"
    assert answer["notes"] == ["n000", "n001", "n002"]


def test_without_a_synthesis_and_without_claims_the_job_has_failed_typed() -> None:
    driver = Driver(notes(2, 200, 1), reader(answer=lambda _: Failure(FailureKind.REFUSED, "no")))
    driver.run()
    assert driver.k.outcome == "failed"
    failure = driver.goals("analyse")[0].failure
    assert failure is not None and failure.kind == FailureKind.REFUSED


@pytest.mark.parametrize("stop_reason", ["max_tokens", "model_context_window_exceeded", "length"])
def test_an_answer_cut_at_its_token_limit_is_kept_and_labelled(stop_reason: str) -> None:
    driver = Driver(notes(), reader(answer=lambda _: replied("The harbour is", stop_reason)), limits=SMALL)
    driver.run()
    assert driver.answer["text"] == "The harbour is"
    assert driver.answer["why"] == "the answer was cut at its token limit"


def test_a_cancelled_job_has_failed_though_claims_were_found() -> None:
    driver = Driver(notes(), reader(), limits=SMALL)
    while not any(driver.k.items_of("finding")):
        driver.advance()
    driver.turn(events.Stopped("someone", "cancel"))
    assert driver.k.outcome == "cancelled"
    assert driver.goals("analyse")[0].status == Status.FAILED


def test_before_there_is_an_answer_the_claims_found_so_far_are_told() -> None:
    driver = Driver(notes(), reader(), limits=SMALL, permits=1)
    assert (driver.answer["text"], driver.answer["counts"]["relevant"]) == ("", 0)
    for _ in range(3):
        driver.advance()
    answer = driver.answer
    assert [line.split(":")[0] for line in answer["text"].splitlines()] == answer["notes"] == ["n000", "n001"]
    assert answer["counts"]["relevant"] == 2 and answer["left_out"] == []
    assert answer["partial"] and answer["why"].startswith("no answer yet, only claims: goal 1 (analyse) is waiting")


# -- prompts found too large ---------------------------------------------------------------------------------------


def by_half_bytes(text: str) -> int:
    """A tokenizer denser than any prose, by which the first estimate is too hopeful."""
    return len(text.encode()) * 2 // 3 + 16


@pytest.mark.parametrize("counter", [by_fours, by_half_bytes, by_bytes])
@pytest.mark.parametrize("countable", [True, False])
def test_whatever_the_tokenizer_no_prompt_above_m_is_sent_and_the_answer_is_whole(
    counter: object, countable: bool
) -> None:
    driver = Driver(
        notes(60, 2_500, 40), reader(), limits=Limits(prompt_tokens_max=4_000), counter=counter, countable=countable  # type: ignore[arg-type]
    )  # fmt: skip
    driver.run()
    assert driver.k.outcome == "complete"
    answer = driver.answer
    assert not answer["partial"], answer["why"]
    assert answer["notes"] == [f"n{i:03}" for i in range(40)]
    assert driver.answered
    for call in driver.answered:
        assert counter(spoken(call.body)) <= call.prompt_tokens_max  # type: ignore[operator]


def test_a_note_that_was_thought_to_fit_is_divided_when_it_is_found_too_large() -> None:
    driver = Driver(notes(4, 6_000, 2), reader(), limits=Limits(prompt_tokens_max=4_000), counter=by_bytes)
    driver.run()
    asked = driver.goals("filter")
    assert {goal.too_large for goal in asked if not goal.depth > 1} == {1}, "by the first estimate they fit whole"
    for goal in asked[:4]:
        spans = [driver.k.goals[child].value for child in goal.children]
        assert [span["start"] for span in spans] == [0, *(span["end"] for span in spans)][:-1]
        assert spans[-1]["end"] == 6_000 and len(spans) > 1
    assert driver.answer["notes"] == ["n000", "n001"] and not driver.answer["partial"]


def test_a_provider_whose_window_is_smaller_than_was_thought() -> None:
    plain = reader()

    def read(text: str) -> Said:
        if by_fours(text) > 700:
            return Failure(FailureKind.TOO_LARGE, "prompt is too long", status=400)
        return plain(text)

    program = notes(10, 900, 6, summary_words_max=30)
    driver = Driver(program, read, limits=Limits(prompt_tokens_max=3_800))
    driver.run()
    assert driver.k.outcome == "complete"
    assert driver.k.tally.failures["too_large"] >= 2
    assert driver.answer["notes"] == [f"n{i:03}" for i in range(6)]
    assert not driver.answer["partial"]


def test_summaries_that_are_always_too_large_end_in_the_claims() -> None:
    too_large = Failure(FailureKind.TOO_LARGE, "prompt is too long", status=400)
    read = reader(summary=lambda _: too_large, answer=lambda _: too_large)
    driver = Driver(notes(20, 2_000, 12), read, limits=SMALL)
    driver.run()
    assert driver.answer["counts"]["rounds"] == 3
    assert driver.answer["why"].startswith("no synthesis, too_large: ")
    assert len(driver.answer["text"].splitlines()) == 12


def test_a_document_that_fits_in_no_form_is_left_out_and_named() -> None:
    claims = ["harbour " * 70] * 3
    long = json.dumps({"relevant": True, "why": "so", "says": "neither", "claims": claims})
    plain = reader(filter=lambda text: long if shown(text)[0] < "n005" else judged(text))

    def read(text: str) -> Said:
        if task(text) != "filter" and by_fours(text) > 400:
            return Failure(FailureKind.TOO_LARGE, "prompt is too long", status=400)
        return plain(text)

    driver = Driver(notes(10, 1_500, 7), read, limits=Limits(prompt_tokens_max=3_200))
    driver.run()
    answer = driver.answer
    assert answer["left_out"] == [f"n{i:03}" for i in range(5)]
    assert answer["notes"] == ["n005", "n006"], "of these the claims alone fit"
    assert answer["why"] == "5 of the relevant notes are not in the answer, or not whole"


@pytest.mark.parametrize("tokens_max", [50, 200, 350])
def test_an_m_too_small_for_anything_ends_typed(tokens_max: int) -> None:
    driver = Driver(notes(), reader(), limits=Limits(prompt_tokens_max=tokens_max))
    driver.run()
    (top,) = driver.goals("analyse")
    assert driver.k.outcome == "failed"
    assert top.failure is not None and "too_large" in top.failure.message
    assert driver.answer["partial"] and "too_large" in driver.answer["why"]


def test_when_no_two_documents_may_stand_in_a_prompt_the_claims_are_the_part() -> None:
    driver = Driver(notes(20, 2_000, 12), reader(), limits=Limits(prompt_tokens_max=3_000, parts_max=4))
    driver.run()
    assert driver.answer["partial"]
    assert driver.answer["why"].startswith("no synthesis, too_large: ")
    assert len(driver.answer["text"].splitlines()) == 12


WRONG: list[Said] = [
    "", "certainly", "depth " * 900, Reply(b"{}", "end_turn", "scripted", replied("").usage),
    Failure(FailureKind.REFUSED, "no"), Failure(FailureKind.TOO_LARGE, "too long", status=400),
    Failure(FailureKind.TOO_LARGE, "too long", sent=False), Failure(FailureKind.REJECTED, "bad request", status=400),
    replied("1. a part", "max_tokens"),
]  # fmt: skip


@settings(max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.integers(20, 9_000), st.booleans()), min_size=1, max_size=25),
    tokens_max=st.integers(300, 6_000),
    parts_max=st.integers(1, 40),
    summary_words=st.integers(1, 200),
    faults=st.integers(0, 60),
    seed=st.integers(0, 2**16),
    countable=st.booleans(),
)
def test_it_ends_whatever_happens(
    sizes: list[tuple[int, bool]], tokens_max: int, parts_max: int, summary_words: int, faults: int, seed: int,
    countable: bool,
) -> None:  # fmt: skip
    """Every round shrinks or ends: no notes, no bounds and no replies keep it going."""
    texts = tuple(note(f"n{i:03}", size, relevant) for i, (size, relevant) in enumerate(sizes))
    chance = random.Random(seed)
    plain = reader(summary_words)

    def read(text: str) -> Said:
        if chance.randrange(100) >= faults:
            return plain(text)
        return chance.choice(WRONG)

    program = Notes(question=QUESTION, notes=texts, summary_words_max=60, answer_words_max=60)
    driver = Driver(
        program, read, limits=Limits(prompt_tokens_max=tokens_max, parts_max=parts_max), countable=countable, order=seed
    )
    driver.run()
    assert driver.k.outcome in ("complete", "failed")
    answer = driver.answer
    lost = set(answer["unread"]) | set(answer["left_out"])
    assert answer["partial"] or not lost
    assert driver.k.outcome == "complete" or answer["partial"]
    relevant = {text.name for text, (_, bears) in zip(texts, sizes, strict=True) if bears}
    if not faults and not answer["partial"]:
        assert relevant <= set(answer["notes"])
    assert answer["counts"]["rounds"] <= 3 * (2 + len(texts).bit_length())
    assert codec.encode_state(driver.replayed()) == codec.encode_state(driver.k)
