"""Embeddings over the wire: what is sent, and what each server's answer becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.embeddings.client import model_of
from actors.providers.embeddings.wire import read_vectors
from actors.providers.registry import PROVIDERS, load
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.programs.parts.embedding import embedding_request, is_embedding, is_vector, packed, vectors_in
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http
from tests.support.patience import PATIENCE_S

ONE, TWO = packed([1.0, 0.5]), packed([0.25, -1.0])
BODY = embedding_request(["a", "b"], "m", None)


def answer(*vectors: Any, usage: Any = None, **more: Any) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": each} for at, each in enumerate(vectors)]
    usage = {"prompt_tokens": 4, "total_tokens": 4} if usage is None else usage
    return compact({"object": "list", "data": data, "model": "m", "usage": usage} | more)


@pytest.mark.parametrize(
    ("body", "vectors", "usage"),
    [
        (answer(ONE, TWO), [ONE, TWO], Usage(4, 0)),
        (answer([1, 0.5], [0.25, -1]), [ONE, TWO], Usage(4, 0)),  # a server that does not know base64
        (answer(ONE, usage={"total_tokens": 9}), [ONE], Usage(9, 0)),
        (answer(ONE, usage={"prompt_tokens": 0, "total_tokens": 0}), [ONE], UNKNOWN_USAGE),  # it does not count
        (answer(ONE, usage={}), [ONE], UNKNOWN_USAGE),
        (compact({"data": [{"embedding": [1, 0.5]}, {"embedding": [0.25, -1]}]}), [ONE, TWO], UNKNOWN_USAGE),
        # Gemini leaves out the number 0: samfoy/pi-session-search#13, spring-projects/spring-ai#7019
        (compact({"data": [{"embedding": ONE}, {"index": 1, "embedding": TWO}]}), [ONE, TWO], UNKNOWN_USAGE),
        (compact({"data": [{"index": None, "embedding": ONE}, {"index": 1, "embedding": TWO}]}), [ONE, TWO], UNKNOWN_USAGE),
        (compact({"data": [{"index": None, "embedding": ONE}, {"index": None, "embedding": TWO}]}), [ONE, TWO],
         UNKNOWN_USAGE),
        (compact({"data": [{"index": 0, "embedding": ONE}, {"embedding": TWO}]}), [ONE, TWO], UNKNOWN_USAGE),
        (compact({"data": [{"embedding": ONE}]}), [ONE], UNKNOWN_USAGE),
        # in another order, as their numbers say
        (compact({"data": [{"index": 1, "embedding": TWO}, {"index": 0, "embedding": ONE}], "model": "m",
                  "usage": {"prompt_tokens": 4}}), [ONE, TWO], Usage(4, 0)),
        (b"\xef\xbb\xbf" + answer(ONE), [ONE], Usage(4, 0)),
    ],
)  # fmt: skip
def test_answers_of_servers(body: bytes, vectors: list[str], usage: Usage) -> None:
    reply = read_vectors(body)
    assert (vectors_in(reply.body), reply.usage, reply.stop_reason) == (vectors, usage, "end_turn")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (answer(), UnreadableAnswer),
        (answer(""), UnreadableAnswer),
        (answer("no base64!"), UnreadableAnswer),
        (answer([]), UnreadableAnswer),
        (answer([1e39]), UnreadableAnswer),  # no float32 holds it
        (answer([None]), UnreadableAnswer),
        *((compact({"data": [{"embedding": ONE} | first, {"embedding": TWO} | second]}), UnreadableAnswer)
          for first, second in (({"index": 1}, {"index": 1}), ({"index": 0}, {"index": 0}), ({"index": 1}, {}),
                                ({}, {"index": 0}), ({"index": -1}, {"index": -1}), ({"index": 0}, {"index": 2}))),
        (compact({"embedding": ONE}), UnreadableAnswer),
        (compact({"error": {"message": "no such model", "code": 404}}), StreamError),
        (b"<html>", UnreadableResponse),
    ],
)  # fmt: skip
def test_answers_that_are_none(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_vectors(body)


async def asked(*script: Any) -> tuple[Any, list[Asked]]:
    answers = iter(script)

    def play(_: Asked) -> Answer:
        return next(answers)

    with served(play) as server:
        account = opened(ProviderLocation(provider="openai", base_url=server.url), {"OPENAI_API_KEY": "k"})
        model = model_of(ClientSpec(endpoint=account.endpoint, provider="openai", credential=account.credential))
        try:
            return await model.call(BODY, output_tokens_max=1, timeout_s=PATIENCE_S), server.asked
        finally:
            await model.close()


async def test_vectors_are_asked_for_as_base64() -> None:
    found, requests = await asked(http(answer(ONE, TWO)))
    assert isinstance(found, Reply) and vectors_in(found.body) == [ONE, TWO]
    assert requests[0].target == "/v1/embeddings"
    assert requests[0].json == {"input": ["a", "b"], "model": "m", "encoding_format": "base64"}


@pytest.mark.parametrize("told", [{}, {"x_should_retry": "true"}])
async def test_a_server_that_refuses_base64_is_asked_for_numbers(told: dict[str, str]) -> None:
    refusal = {"object": "error", "message": "base64 encoding is not currently supported", "code": 400}
    found, requests = await asked(http(compact(refusal), status=400, **told), http(answer([1, 0.5], [0.25, -1])))
    assert isinstance(found, Reply) and vectors_in(found.body) == [ONE, TWO]
    assert "encoding_format" not in requests[1].json


async def test_another_refusal_is_one_and_a_limit_is_heard() -> None:
    too_long = {"error": {"message": "This model's maximum input length is 8192 tokens", "type": "invalid_request_error"}}
    found, requests = await asked(http(compact(too_long), status=400))
    assert isinstance(found, Failure) and found.kind in (FailureKind.REJECTED, FailureKind.TOO_LARGE)
    assert len(requests) == 1


def test_the_canonical_request() -> None:
    assert is_embedding(BODY) and is_embedding(embedding_request(["a"], "m", 8))
    assert not is_embedding(compact({"max_tokens": 1, "messages": [], "model": "m"}))
    assert is_vector(ONE) and not is_vector("") and not is_vector("YWI=") and not is_vector("?")
    with pytest.raises(ValueError, match="no vector"):
        packed([1e39])


def test_each_row_that_has_embeddings_names_a_client() -> None:
    assert all(load(row.embeddings) for row in PROVIDERS.values() if row.embeddings)
    assert {row.name for row in PROVIDERS.values() if row.embeddings} >= {"openai", "azure", "gemini", "sim"}


def test_json_of_a_body_with_a_nan_is_no_vector() -> None:
    with pytest.raises(UnreadableAnswer):
        read_vectors(json.dumps({"data": [{"embedding": [float("nan")]}]}).encode())
