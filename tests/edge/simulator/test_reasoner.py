"""The bounded reasoner: what it answers, that nothing but the text decides it, and how it errs."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.simulator import random_draws, tokenizer
from actors.simulator.api.reasoner import SHARE_MAX, Reasoner, SimulatedAnswer, error_share, nesting
from actors.simulator.reasoning.skills import SKILLS, Thought
from actors.simulator.request import BadRequest, read

EXACT = Reasoner(0, 0.0)


def request(text: str, **more: Any) -> bytes:
    plain = {"model": "sim", "max_tokens": 400, "messages": [{"role": "user", "content": text}]}
    return msgspec.json.encode(plain | more)


def answer(text: str, **more: Any) -> SimulatedAnswer:
    return EXACT.answer(read(request(text, **more)), 0)


# ------------------------------------------------------------------------------------------ skills

NOTE = "Cats eat fish. They sleep a lot. The sky is blue. Cats also eat mice."


@pytest.mark.parametrize(
    ("text", "skill", "said"),
    [
        (
            "Classify the text. Answer with one of: sports, politics, cooking\n\n"
            "Text: The chef is cooking a soup with onions.\n\nAnswer:",
            "choice",
            "cooking",
        ),
        ("Answer billing or shipping.\n\nMessage: my billing address is wrong", "choice", "billing"),
        ("Classify this as spam or ham: “Win money now, a spam offer”", "choice", "spam"),
        ("Is this review positive, negative or neutral?\n\nA negative experience, awful.", "choice", "negative"),
        ("Label (urgent/normal). Answer urgent/normal.\n\nText: this is urgent!", "choice", "urgent"),
        (
            "Choose one of these categories:\n- billing: invoices and payments\n- login: passwords and accounts\n\n"
            "Message: I forgot my password again",
            "choice",
            "login",
        ),
        ("<labels>\nred\ngreen\n</labels>\n<text>a green leaf</text>\nWhich label fits?", "choice", "green"),
        (
            "What colour is the sky?\nA) green\nB) blue\nC) red\n\nText: The sky is blue.\nAnswer with the letter.",
            "choice",
            "B",
        ),
        ("Is it relevant? Answer yes or no.\n\nQuestion: What do cats eat?\n\nNote: " + NOTE, "choice", "yes"),
        ("Is it relevant? Answer yes or no.\n\nQuestion: What do engines burn?\n\nNote: " + NOTE, "choice", "no"),
        ("Reply with one of: relevant, irrelevant.\n\nGoal: cats and fish\n\nNote: " + NOTE, "choice", "relevant"),
        ("Reply with one of: relevant, not relevant.\n\nGoal: trains\n\nNote: " + NOTE, "choice", "not relevant"),
        ("Rate the relevance from 0 to 10.\n\nQuestion: cats and fish\n\nNote: " + NOTE, "rating", "10"),
        ("Rate the relevance from 0 to 10.\n\nQuestion: trains\n\nNote: " + NOTE, "rating", "0"),
        (
            "Description: a web framework\nCategory: web\n\nDescription: fast arrays\nCategory: numeric\n\n"
            "Description: an HTTP web client\nCategory:",
            "examples",
            "web",
        ),
        ("great film -> good\nbad film -> poor\na really bad one ->", "examples", "poor"),
        ("What is 12 * (3+4)?", "arithmetic", "84"),
        ("Compute 2^10 - 24", "arithmetic", "1000"),
        ("7 / 2 = ?", "arithmetic", "3.5"),
        ('Reply with exactly "pong"', "echo", "pong"),
        ("Say hello", "echo", "hello"),
        (
            "Extract up to 2 claims that bear on the question, one per line.\n\nQuestion: What do cats eat?\n\n"
            "Note: " + NOTE,
            "claims",
            "Cats eat fish.\nCats also eat mice.",
        ),
        (
            "Extract the claims. If nothing bears on the question, answer NONE.\n\nQuestion: What burns in engines?\n\n"
            "Note: " + NOTE,
            "claims",
            "NONE",
        ),
        (
            "Write a plan of 2 steps.\n\nQuestion: How do agents store memory, and how do they forget?\n\nNotes: a.",
            "plan",
            "1. How do agents store memory\n2. how do they forget",
        ),
        ("List two topics of this text.\n\nMemory of agents. Agents lose memory.", "list", "- Memory\n- agents"),
        (
            "In one sentence, what is the capital of France?\n\nParis is the capital of France. It is big.",
            "extract",
            None,
        ),
        ("Summarise in at most 6 words.\n\nQuestion: mice\n\nNote: " + NOTE, "extract", "Cats also eat mice."),
    ],
)
def test_follows_general_instructions(text: str, skill: str, said: str | None) -> None:
    got = answer(text)
    assert got.skill == skill
    assert got.text == (said if said is not None else "Paris is the capital of France.")
    assert got.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "not_options",
    [
        "Answer in one or two sentences.\n\nWhat do cats eat?\n\n" + NOTE,
        "Write as little or as much as you need.\n\nQuestion: cats\n\nNote: " + NOTE,
        "Write a summary of facts, figures and quotes.\n\nText: " + NOTE,
    ],
)
def test_takes_no_phrase_for_a_set_of_labels(not_options: str) -> None:
    assert answer(not_options).skill != "choice"


def test_instructions_are_read_from_the_system_prompt_too() -> None:
    assert answer("The chef is cooking.", system="Answer with one of: sports, cooking.").text == "cooking"


def test_json_by_template() -> None:
    got = answer(
        'Return JSON: {"relevant": true or false, "kind": "food|sleep", "why": "at most 5 words", "claims": ["…"]}\n\n'
        f"<question>What do cats eat as food?</question>\n<note>{NOTE}</note>"
    )
    text = msgspec.json.decode(got.text)
    assert list(text) == ["relevant", "kind", "why", "claims"]
    assert text["relevant"] is True
    assert text["kind"] in ("food", "sleep")
    assert 0 < len(text["why"].split()) <= 5
    assert text["claims"] and all(claim in NOTE for claim in text["claims"])


def test_json_by_named_keys() -> None:
    got = answer(
        "Answer in JSON with the keys label, score (0-1) and reasons. Label is one of: spam, ham.\n\nText: spam!"
    )
    text = msgspec.json.decode(got.text)
    assert text["label"] == "spam"
    assert 0 <= text["score"] <= 1
    assert isinstance(text["reasons"], list)


def test_json_by_schema_and_forced_tool() -> None:
    schema = {
        "type": "object",
        "properties": {
            "relevant": {"type": "boolean"},
            "label": {"type": "string", "enum": ["cats", "dogs"]},
            "facts": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "note": {"type": ["string", "null"]},
            "inner": {"type": "object", "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}}},
        },
    }
    text = "Question: What do cats eat?\n\nNote: " + NOTE
    by_schema = answer(text, output_config={"format": {"type": "json_schema", "schema": schema}})
    tools = [{"name": "record", "input_schema": schema}]
    by_tool = answer(text, tools=tools, tool_choice={"type": "tool", "name": "record"})
    assert (by_schema.stop_reason, by_tool.stop_reason) == ("end_turn", "tool_use")
    assert by_schema.text == by_tool.text
    message = msgspec.json.decode(by_schema.text)
    assert (message["relevant"], message["label"], len(message["facts"])) == (True, "cats", 2)
    assert 1 <= message["inner"]["score"] <= 5


# ------------------------------------------------------------------- nothing but the body decides

ASKED = (
    "Answer with one of: {0}, {1}.\n\nText: all about {0}",
    "Is it relevant? Answer yes or no.\n\nQuestion: {0} {1}\n\nNote: The {0} of the {1} is here.",
    "Extract up to 2 claims.\n\nQuestion: {0}\n\nNote: The {0} is old. Some {1} came by.",
    "Summarise in at most 20 words.\n\nText: The {0} is old. Some {1} came by.",
    "List three topics, one per line.\n\n{0} and {1}. {0}.",
    "Write a plan of 3 steps.\n\nQuestion: what of {0}, and what of {1}?\n\nNote: {0}.",
    "What of {0}?",
    "{0} -> {1}\n{1} -> {0}\n{0} ->",
    'Return JSON {{"relevant": true or false, "claims": ["..."]}}.\n\nQuestion: {0}\n\nNote: the {0} and the {1}.',
)
NOT_OF_THE_BODY = {"true", "false", "null"}
_WORD = re.compile(r"[^\W\d_]+")

word = st.text("bcdfghjklmnpqrstvwxz", min_size=4, max_size=9)


@given(form=st.sampled_from(ASKED), one=word, two=word, seen=st.integers(0, 50), seed=st.integers(0, 3))
def test_every_word_of_an_answer_stands_in_the_body(form: str, one: str, two: str, seen: int, seed: int) -> None:
    body = request(form.format(one, two))
    for reasoner in (EXACT, Reasoner(seed, 1.0)):  # also when it errs
        text = reasoner.answer(read(body), seen).text
        assert set(_WORD.findall(text.lower())) <= set(_WORD.findall(body.decode().lower())) | NOT_OF_THE_BODY


@given(one=word, two=word)
def test_answers_follow_the_text(one: str, two: str) -> None:
    label = "Answer with one of: {0}, {1}.\n\nText: all about {2}"
    judge = "Is it relevant? Answer yes or no.\n\nQuestion: Which {0}?\n\nNote: Nothing here but {1}."
    if one != two and not (one in two or two in one):
        assert answer(label.format(one, two, one)).text == one
        assert answer(label.format(one, two, two)).text == two
        assert answer(judge.format(one, one)).text == "yes"
        assert answer(judge.format(one, two)).text == "no"


def test_nothing_but_the_text_decides() -> None:
    text = "Answer with one of: sports, politics, cooking.\n\nText: nothing of these"
    plain = answer(text)
    again = Reasoner(99, 0.0).answer(read(request(text, model="other", metadata={"user_id": "u7"}, max_tokens=7)), 5)
    assert again.text == plain.text
    # Where the text speaks for none, the text still decides: over many texts every label has its share.
    lines = {answer(f"{text} {number}").text for number in range(60)}
    assert lines == {"sports", "politics", "cooking"}


# ------------------------------------------------------------------------------------------ errors


def test_error_share_is_the_stated_function() -> None:
    assert error_share("short", 0) == pytest.approx(1 - math.exp(-(0.0005 + 0.0004)))
    assert error_share("a\n\nb\n\nc", 2_000) == pytest.approx(1 - math.exp(-(0.0005 + 0.006 + 0.0012)))
    deep = "(" * 102 + ")" * 102
    assert error_share(deep, 0) == pytest.approx(1 - math.exp(-(0.0009 + 0.5)))
    assert error_share("x", 10**9) == SHARE_MAX


@given(st.text(max_size=300), st.text(max_size=300), st.integers(0, 10**6), st.integers(0, 10**6))
def test_error_share_grows_with_text(one: str, two: str, tokens: int, more: int) -> None:
    assert 0 < error_share(one, tokens) <= error_share(one + two, tokens + more) <= SHARE_MAX


def test_nesting() -> None:
    assert [nesting(text) for text in ("", "a", "(a)", "f(g[h{i}])", ")(", "(()())")] == [0, 0, 1, 3, 1, 2]


def test_errs_as_often_as_it_should_and_repeatably() -> None:
    text = "Answer with one of: red, green, blue.\n\nText: a red thing"
    ask = read(request(text))
    often = Reasoner(1, 0.2)
    first = [often.answer(ask, seen) for seen in range(3_000)]
    assert [each.text for each in first] == [Reasoner(1, 0.2).answer(ask, seen).text for seen in range(3_000)]
    wrong = [each for each in first if each.erred]
    assert 0.17 < len(wrong) / len(first) < 0.23
    assert all(each.text == "red" for each in first if not each.erred)
    labels = [each.text for each in wrong if each.text in ("green", "blue")]
    assert len(set(labels)) == 2
    rambling = [each.text for each in wrong if each.text not in ("red", "green", "blue")]
    assert 0.15 < len(rambling) / len(wrong) < 0.35
    assert set(rambling) == {"red a red thing"}
    other = [Reasoner(2, 0.2).answer(ask, seen).text for seen in range(3_000)]
    assert other != [each.text for each in first]


def test_rambling_json_is_no_json() -> None:
    ask = read(request('Return JSON {"relevant": true or false}.\n\nQuestion: cats\n\nNote: ' + NOTE))
    lines = {Reasoner(0, 1.0).answer(ask, seen).text for seen in range(40)}
    assert lines == {'{"relevant":false}', '{"relevant":true'}


def test_without_an_error_rate_it_errs_by_the_text() -> None:
    hard = "Answer with one of: red, green.\n\nText: " + "(" * 200 + "red" + ")" * 200
    ask = read(request(hard))
    share = error_share(ask.text, ask.input_tokens)
    erred = sum(Reasoner(0).answer(ask, seen).erred for seen in range(2_000)) / 2_000
    assert share > 0.5
    assert abs(erred - share) < 0.05


# ------------------------------------------------------------------------------------------ bounds


def test_output_is_bounded() -> None:
    text = "Reply with exactly 'one two three four five six'"
    cut = answer(text, max_tokens=3)
    assert (cut.text, cut.output_tokens, cut.stop_reason) == ("one two thre", 3, "max_tokens")
    stopped = answer(text, stop_sequences=[" three"])
    assert (stopped.text, stopped.stop_reason, stopped.stop_sequence) == ("one two", "stop_sequence", " three")
    warmed = answer(text, max_tokens=0)
    assert (warmed.text, warmed.output_tokens, warmed.stop_reason) == ("", 0, "max_tokens")


def test_continues_a_prefill() -> None:
    turns = [{"role": "user", "content": "Reply with exactly 'pong pong'"}, {"role": "assistant", "content": "pong"}]
    assert answer("", messages=turns).text == " pong"


def test_a_further_skill_is_a_further_row() -> None:
    skills = (("moves", lambda reading: Thought("A to C") if "disk" in reading.text else None), *SKILLS)
    reasoner = Reasoner(0, 0.0, skills)
    assert reasoner.answer(read(request("Move the disk.")), 0).text == "A to C"
    assert reasoner.answer(read(request("Say hello")), 0).text == "hello"


@given(st.text(max_size=400))
def test_any_text_is_answered(text: str) -> None:
    body = request(text or "x")
    try:
        ask = read(body)
    except BadRequest:
        return
    found = EXACT.answer(ask, 0)
    assert found.output_tokens <= ask.max_tokens
    assert found.output_tokens >= 1


def test_a_long_text_is_answered() -> None:
    sentence = "The cat, which (as we know) eats fish: many of them - and mice, sat. "
    ask = read(request("Answer yes or no.\n\nQuestion: Do cats eat fish?\n\nNote: " + sentence * 2_000, max_tokens=5))
    assert EXACT.answer(ask, 0).text == "yes"


@pytest.mark.parametrize(
    "odd",
    [
        "<p>" * 20_000 + "</p>",
        "</p>" + "<p>" * 20_000,
        "<a>" * 10_000 + "</a>" * 10_000,
        "\n" * 50_000 + "A) b",
        ". " * 50_000 + "list",
        "label answer classify rate one of " * 5_000,
        "what is 1 + " + "1 " * 50_000,
        '{"json": [' * 5_000,
        '"' * 50_000,
        "if no answer " * 5_000,
        "a, " * 20_000 + "or b?",
        "(" * 50_000,
        "Q: " * 20_000,
        "\nQ: x" * 20_000,
        "x" * 200_000,
        "-> " * 30_000 + "->",
    ],
    ids=lambda odd: odd[:12].strip(),
)
def test_no_odd_text_holds_the_reasoner_up(odd: str) -> None:
    # Each takes milliseconds; a pattern that backtracks would take minutes.
    assert answer(odd, max_tokens=9).output_tokens >= 1
    assert answer("Answer yes or no. Give JSON.\n\n" + odd, max_tokens=9).output_tokens >= 1


# ------------------------------------------------------------------------------------------ tokens


@given(st.text(max_size=300))
def test_tokens_never_exceed_bytes(text: str) -> None:
    count = tokenizer.count(text)
    assert count <= len(text.encode("utf-8", "replace"))
    assert (count == 0) == (not text.encode("utf-8", "replace").split())


@given(st.text(max_size=120), st.integers(0, 60))
def test_a_cut_text_has_the_tokens_it_may_have(text: str, most: int) -> None:
    head = tokenizer.cut(text, most)
    assert tokenizer.count(head) <= most
    if tokenizer.count(text) <= most:
        assert head == text
    else:
        assert text.startswith(head)


@given(st.text(max_size=200), st.integers(1, 9))
def test_chunks_join_to_the_text(text: str, tokens: int) -> None:
    assert "".join(tokenizer.chunks(text, tokens)) == text


def test_the_token_rule_is_as_stated() -> None:
    assert tokenizer.count("a bc def ghij klmno") == 6
    assert tokenizer.count("x" * 4_001) == 1_001
    assert tokenizer.count("é" * 4) == 2


def test_draws_are_even_and_apart() -> None:
    many = [
        random_draws.draw(3, random_draws.identity(b"%d" % number), seen, random_draws.FAULT)
        for number in range(500)
        for seen in (0, 1)
    ]
    assert all(0 <= each < 1 for each in many)
    assert abs(sum(many) / len(many) - 0.5) < 0.03
    assert len(set(many)) == len(many)
    assert (
        random_draws.draw(3, 7, 0, random_draws.FAULT)
        != random_draws.draw(3, 7, 0, random_draws.ERROR)
        != random_draws.draw(4, 7, 0, random_draws.ERROR)
    )
    assert random_draws.identity(b"a body") == 0x979B78863FDAF4CF  # the same in every process and release
