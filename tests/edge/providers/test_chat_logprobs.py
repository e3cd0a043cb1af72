"""Log probabilities of completions become those of the canonical reply, whichever server gives them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.chat_completions.logprobs import CUT_BELOW, LEAST, canonical_logprobs
from actors.providers.chat_completions.request import chat_body
from actors.providers.chat_completions.response import read_completion
from actors.providers.chat_completions.stream import ChunkAssembler
from cortex.programs.parts.token_logprobs import text_probability
from tests.edge.support.scripted_http_server import compact

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


def openai(token: str, logprob: Any, *others: tuple[str, Any]) -> dict[str, Any]:
    def one(text: str, value: Any) -> dict[str, Any]:
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return one(token, logprob) | {"top_logprobs": [one(*each) for each in others]}


def completion(content: str, logprobs: Any, **more: Any) -> bytes:
    message = {"role": "assistant", "content": content, **more}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    return compact({"id": "c", "model": "m", "choices": [choice], "usage": USAGE})


def kept(body: bytes) -> Any:
    return json.loads(read_completion(body).body).get("logprobs", "none")


@pytest.mark.parametrize(
    ("text", "logprobs", "expected"),
    [
        # OpenAI, vLLM, SGLang, llama.cpp: `content`
        ("yes", {"content": [openai("yes", -0.25, ("yes", -0.25), ("no", -1.5))], "refusal": None},
         [["yes", -0.25, [["yes", -0.25], ["no", -1.5]]]]),
        ("yes", {"content": [openai("yes", -0.25)]}, [["yes", -0.25, []]]),
        ("yes", {"content": [{"token": "yes", "logprob": -0.25}]}, [["yes", -0.25, []]]),
        ("yes", {"content": [{"token": "yes", "logprob": -0.25, "bytes": None, "top_logprobs": None}]},
         [["yes", -0.25, []]]),
        # bytes of half a character; the token's text is then U+FFFD
        ("é", {"content": [{"token": "\ufffd", "logprob": -1, "bytes": [195]}, {"token": "\ufffd", "logprob": 0, "bytes": [169]}]},
         [[[195], -1.0, []], [[169], 0.0, []]]),
        # probabilities of 0: vLLM, llama.cpp; what rounding makes more than 1
        ("yes", {"content": [openai("yes", -9999.0, ("a", -3.4e38))]}, [["yes", LEAST, [["a", LEAST]]]]),
        ("yes", {"content": [openai("yes", 1e-7, ("no", None))]}, [["yes", 0.0, []]]),
        ("yes", {"content": [openai("yes", None, ("no", -1))]}, [["yes", None, [["no", -1.0]]]]),
        # in any order; the long end is cut behind the first that is too unlikely to be seen
        ("yes", {"content": [openai("yes", -0.1, ("c", CUT_BELOW - 1), ("d", CUT_BELOW - 2), ("yes", -0.1))]},
         [["yes", -0.1, [["yes", -0.1], ["c", CUT_BELOW - 1]]]]),
        # the tokens of reasoning are left out
        ("yes", {"content": [openai("say yes", -2.0), openai("</think>", -0.1), openai("yes", -0.25), openai("<|end|>", 0)]},
         [["yes", -0.25, []], ["<|end|>", 0.0, []]]),
        # OpenAI's older form: Together, llama-cpp-python
        ("yes", {"tokens": ["yes"], "token_logprobs": [-0.25], "top_logprobs": [{"yes": -0.25, "no": -1.5}]},
         [["yes", -0.25, [["yes", -0.25], ["no", -1.5]]]]),
        ("yes", {"tokens": ["yes"], "token_logprobs": [-0.25], "top_logprobs": None}, [["yes", -0.25, []]]),
        ("yes", {"tokens": ["yes"], "token_logprobs": []}, "none"),
        # reasoning models and others that have none
        ("yes", None, "none"),
        ("yes", {"content": None}, "none"),
        ("yes", {"content": []}, "none"),
        ("yes", [1], "none"),
    ],
)  # fmt: skip
def test_what_servers_give(text: str, logprobs: Any, expected: Any) -> None:
    assert kept(completion(text, logprobs)) == expected


def test_minus_infinity_and_nan_in_the_body_lose_no_answer() -> None:
    body = completion("yes", {"content": [openai("yes", -0.25, ("a", "INF"), ("b", "NAN"))]})
    reply = read_completion(body.replace(b'"INF"', b"-Infinity").replace(b'"NAN"', b"NaN"))
    assert (reply.text, text_probability(reply.body, reply.text)) == ("yes", pytest.approx(0.778801))


def test_half_a_surrogate_pair_beside_log_probabilities() -> None:
    body = completion("aX", {"content": [openai("b", -1)]}).replace(b"aX", b"a\\ud800")
    assert read_completion(body).text == "a\ufffd"
    assert kept(body) == [["b", -1.0, []]]


def test_a_stream_gathers_them() -> None:
    chunks = [
        {"delta": {"role": "assistant", "content": ""}, "logprobs": None},
        {"delta": {"content": "ye"}, "logprobs": {"content": [openai("ye", -0.5)]}},
        {"delta": {"content": "s"}, "logprobs": {"content": [openai("s", -0.25, ("s", -0.25))]}},
        {"delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]
    assembler = ChunkAssembler()
    for each in chunks:
        assembler.feed(b"data: " + compact({"id": "c", "model": "m", "choices": [{"index": 0, **each}]}) + b"\n\n")
    assembler.feed(b"data: [DONE]\n\n")
    assert kept(assembler.message()) == [["ye", -0.5, []], ["s", -0.25, [["s", -0.25]]]]


def test_the_request_asks_for_them_in_the_words_of_openai() -> None:
    canonical = {"logprobs": True, "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "model": "m",
                 "top_logprobs": 20}  # fmt: skip
    sent = json.loads(chat_body(compact(canonical)))
    assert (sent["logprobs"], sent["top_logprobs"], sent["max_tokens"]) == (True, 20, 5)


def test_tokens_that_are_no_text_are_passed_over() -> None:
    assert canonical_logprobs({"content": [7, {"token": 7, "bytes": [999], "logprob": True}]}, "a") == [["", None, []]]
