"""Log probabilities in a canonical reply: the values of its JSON are found among the tokens, or nothing is told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from cortex.programs.parts.token_logprobs import field_probabilities, text_probability, tokens_of

CHOICES: dict[str, list[Any]] = {"topic": ["code", "web"], "sure": [True, False]}


def entry(text: Any, chance: float = 1.0, **others: float) -> list[Any]:
    return [text, math.log(chance), [[each, math.log(its)] for each, its in (others or {}).items()]]


def body(text: str, *tokens: Any) -> bytes:
    listed = [entry(each, 1.0, **{each: 1.0}) if isinstance(each, str) else each for each in tokens]
    return json.dumps({"content": [{"type": "text", "text": text}], "logprobs": listed}).encode()


CODE = entry("code", 0.8, code=0.8, web=0.2)
TRUE = entry("true", 0.6, true=0.6, false=0.4)


@pytest.mark.parametrize(
    ("text", "tokens", "in_words", "topic", "sure"),
    [
        ('{"topic":"code","sure":true}', ('{"topic":"', CODE, '","sure":', TRUE, "}"), False, 0.8, 0.6),
        ('{"topic": "code"}', ('{"topic": "', CODE, '"}'), False, 0.8, None),  # a field that may be missing
        ('```json\n{"topic":"code"}\n```', ('```json\n{"topic":"', CODE, '"}\n```'), False, 0.8, None),
        ('I say {"topic":"code"}.', ('I say {"topic":"', CODE, '"}', "."), True, 0.8, None),
        # the tokens of reasoning before the answer, and a special one behind it (vLLM, llama.cpp)
        ('{"topic":"code"}', ('{"topic":"web"} or {"topic":"code"}? ', "</think>", '{"topic":"', CODE, '"}', "<|im_end|>"),
         False, 0.8, None),
        ('{"why":{"topic":"web"},"topic":"code"}', ('{"why":{"topic":"web"},"topic":"', CODE, '"}'), False, 0.8, None),
        ('{"topic":"web","topic":"code"}', ('{"topic":"web","topic":"', CODE, '"}'), False, 0.8, None),
        ('{ "sure" : true , "topic" : "code" }', ('{ "sure" : ', TRUE, ' , "topic" : "', CODE, '" }'), False, 0.8, 0.6),
        # bytes of half a character
        ('{"why":"é","topic":"code"}', ('{"why":"', entry([195]), entry([169]), '","topic":"', CODE, '"}'), False, 0.8, None),
        ('{"topic":"sport"}', ('{"topic":"', "sport", '"}'), False, None, None),  # no value of the list
        ('{"topic":"code"}', (), False, None, None),  # a model without log probabilities
        ('{"topic":"code"}', ('{"topic":"', "token_id:7", '"}'), False, None, None),  # tokens of another text
        ('{"topic":"code"', ('{"topic":"', CODE, '"'), False, None, None),  # cut
        ("code", (CODE,), False, None, None),
    ],
)  # fmt: skip
def test_the_fields_of_an_answer(
    text: str, tokens: tuple[Any, ...], in_words: bool, topic: float | None, sure: float | None
) -> None:
    found = field_probabilities(body(text, *tokens), text, CHOICES, in_words=in_words)
    assert found == {
        "topic": None if topic is None else pytest.approx(topic, rel=1e-6),
        "sure": None if sure is None else pytest.approx(sure, rel=1e-6),
    }


def test_a_value_that_is_written_with_escapes_is_the_value() -> None:
    text = '{"topic":"caf\\u00e9"}'
    tokens = ('{"topic":"', entry("caf", 0.9, caf=0.9, web=0.1), '\\u00e9"}')
    found = field_probabilities(body(text, *tokens), text, {"topic": ["café", "web"]})
    assert found == {"topic": pytest.approx(0.9)}


@pytest.mark.parametrize(
    ("text", "tokens", "chance"),
    [
        ("code", (entry("co", 0.5), entry("de", 0.8)), 0.4),
        (" code\n", (entry(" ", 0.1), entry("code", 0.5), entry("\n", 0.2)), 0.5),
        ("code", (entry("Is it code? ", 0.1), entry("code", 0.5), entry("<|eot|>", 0.2)), 0.5),
        ("code", (), None),
        ("code", ("web",), None),
        ("", ("",), None),
    ],
)  # fmt: skip
def test_the_text_of_an_answer(text: str, tokens: tuple[Any, ...], chance: float | None) -> None:
    found = text_probability(body(text, *tokens), text)
    assert found == (None if chance is None else pytest.approx(chance))


@pytest.mark.parametrize("logprobs", [None, 7, {}, [["a"]], [["a", "b", []]], [[[300], -1.0, []]], "a"])
def test_a_field_of_another_form_tells_nothing(logprobs: Any) -> None:
    assert tokens_of(json.dumps({"content": [], "logprobs": logprobs}).encode()) == []
    assert tokens_of(b"no JSON") == []
