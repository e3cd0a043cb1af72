"""Log probabilities and the count of tokens over the Responses API. Bodies are made by hand from OpenAI's documentation
(https://platform.openai.com/docs/api-reference/responses) and the types of the package ``openai`` 3.57."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.providers.responses.request import LOGPROBS, counted_body, responses_body
from actors.providers.responses.response import read_response
from cortex.programs.parts.token_logprobs import text_probability
from tests.edge.providers.test_chat_logprobs import openai as token
from tests.edge.providers.test_responses_client import BODY, client
from tests.edge.providers.test_responses_response import THOUGHT, assembled, events, response, said, stream_of
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http

TOLD = [token("y", -0.25, ("y", -0.25), ("n", -1.5)), token("es", -0.125, ("es", -0.125))]
KEPT = [["y", -0.25, [["y", -0.25], ["n", -1.5]]], ["es", -0.125, [["es", -0.125]]]]


def told(text: str, entries: Any, **more: Any) -> dict[str, Any]:
    item = said(text, **more)
    item["content"][0]["logprobs"] = entries
    return item


def kept(body: bytes) -> Any:
    return json.loads(read_response(body).body).get("logprobs", "none")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"logprobs": True, "top_logprobs": 20}, {"include": [LOGPROBS], "top_logprobs": 20}),
        ({"logprobs": True}, {"include": [LOGPROBS]}),
        ({"logprobs": False, "top_logprobs": 0}, {"top_logprobs": 0}),
        ({"include": ["reasoning.encrypted_content"], "logprobs": True}, {"include": ["reasoning.encrypted_content", LOGPROBS]}),
        ({"logprobs": True, "include": [LOGPROBS]}, {"include": [LOGPROBS]}),
    ],
)  # fmt: skip
def test_they_are_asked_for_as_this_api_has_it(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    sent = json.loads(responses_body(json.dumps(json.loads(BODY) | fields).encode()))
    assert {name: sent[name] for name in sent if name in ("include", "logprobs", "top_logprobs")} == expected


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([told("yes", TOLD)], KEPT),
        ([THOUGHT, told("yes", TOLD)], KEPT),
        ([told("y", TOLD[:1]), told("es", TOLD[1:])], KEPT),
        ([told("yes", [{"token": "yes", "logprob": -0.25}])], [["yes", -0.25, []]]),
        ([told("yes", [])], "none"),
        ([told("yes", None)], "none"),
        ([told("yes", "odd")], "none"),
        ([told("yes", ["odd"])], "none"),
        ([{"type": "message", "content": "yes"}], "none"),
        ([told("hm", [token("hm", -3.0)], phase="commentary"), told("yes", TOLD, phase="final_answer")], KEPT),
    ],
)  # fmt: skip
def test_what_servers_give(items: list[Any], expected: Any) -> None:
    assert kept(compact(response(*items))) == expected


def test_the_probability_of_an_answer_is_that_of_chat_completions() -> None:
    reply = read_response(compact(response(told("yes", TOLD))))
    assert text_probability(reply.body, reply.text) == pytest.approx(0.687289)


def streamed(where: str) -> bytes:
    """The events of an answer whose log probabilities come with the pieces, in the last event, or in both."""
    whole = response(told("yes", TOLD if where != "pieces" else []))
    made = stream_of(whole)
    if where != "end":
        piece = next(each for each in made if each["type"].endswith("text.delta"))
        # the pieces of `stream_of` have a letter each, those of a server a token
        at = made.index(piece)
        made[at : at + 3] = [
            piece | {"delta": each["token"], "logprobs": [{name: each[name] for name in ("token", "logprob", "top_logprobs")}]}
            for each in TOLD
        ]
    return events(made)


@pytest.mark.parametrize("where", ["end", "pieces", "both"])  # OpenAI: both; vLLM: pieces (vllm-project/vllm#57326)
@given(cuts=st.lists(st.integers(0, 3_000), max_size=3))
def test_streamed_they_are_the_same_wherever_they_come(where: str, cuts: list[int]) -> None:
    assert kept(assembled(streamed(where), *cuts).message()) == KEPT


def test_pieces_without_a_place_in_the_output_lose_no_answer() -> None:
    made = stream_of(response(told("yes", [])))
    piece = next(each for each in made if each["type"].endswith("text.delta"))
    piece |= {"output_index": 7, "logprobs": TOLD}
    reply = read_response(assembled(events(made)).message())
    assert (reply.text, json.loads(reply.body).get("logprobs")) == ("yes", None)


# -- count of tokens -------------------------------------------------------------------------------------------------


def test_the_counter_is_sent_the_fields_that_it_takes() -> None:
    from openai.types.responses import input_token_count_params as params

    fields = {"logprobs": True, "temperature": 0, "system": "Be brief.", "output_config": {"effort": "low"}}
    sent = json.loads(counted_body(json.dumps(json.loads(BODY) | fields).encode()))
    assert sent == {"model": "gpt", "input": "Yes?", "instructions": "Be brief.", "reasoning": {"effort": "low"}}
    assert sent.keys() <= params.InputTokenCountParams.__annotations__.keys()


@pytest.mark.parametrize(
    ("answer", "count", "asked"),
    [
        (http({"object": "response.input_tokens", "input_tokens": 11}), 11, 2),
        (http(b"<html>404</html>", 404, content_type="text/html"), None, 1),  # a server without it is asked once
        (http({"detail": "Method Not Allowed"}, 405), None, 1),  # vLLM: the path of one response
        (http({"error": {"message": "The model `gpt` does not exist", "code": "model_not_found"}}, 404), None, 2),
        (http({"error": {"message": "slow", "code": "rate_limit_exceeded"}}, 429), None, 2),
        (http({"object": "list"}), None, 2),
    ],
)  # fmt: skip
async def test_tokens_are_counted_where_the_server_counts_them(answer: Answer, count: int | None, asked: int) -> None:
    def script(_: Asked) -> Answer:
        return answer

    with served(script) as server:
        model = client(server)
        assert [await model.count_tokens(BODY) for _ in range(2)] == [count, count]
        assert await model.count_tokens(b"[no request") is None
        await model.close()
    assert [each.target for each in server.asked] == ["/v1/responses/input_tokens"] * asked
    assert model.counts_tokens == (asked > 1)
