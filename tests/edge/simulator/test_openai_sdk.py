"""The simulated APIs of OpenAI, read by the typed client of its SDK: what it reads without complaint is the form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from tests.support.patience import PATIENCE_S

TURN: Any = [{"role": "user", "content": "Reply with exactly 'one two three four five six seven eight nine ten'"}]
SAID = "one two three four five six seven eight nine ten"
SCHEMA = {"type": "object", "properties": {"relevant": {"type": "boolean"}}}
ABOUT_CATS: Any = [{"role": "user", "content": "Question: cats\n\nNote: cats eat fish"}]


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[SimulatorServer, openai.AsyncOpenAI]]:
    server = await serve(SimulatorSettings(**{"error": 0.0, **settings}))
    client = openai.AsyncOpenAI(api_key="sk-test", base_url=f"{server.url}/v1", max_retries=0, timeout=PATIENCE_S)
    try:
        yield server, client
    finally:
        await client.close()
        await server.close()


async def create(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.chat.completions.create(**{"model": "sim", "messages": TURN, **more})


async def test_a_completion_has_the_form_that_the_client_reads() -> None:
    async with running() as (server, client):
        found = await create(client, user="call-1")
        (choice,) = found.choices
        assert (found.object, found.model, choice.index, choice.finish_reason) == ("chat.completion", "sim", 0, "stop")
        assert (choice.message.role, choice.message.content) == ("assistant", SAID)
        assert found.id and found.created > 0 and choice.message.tool_calls is None
        usage = found.usage
        assert usage.prompt_tokens > 10 and usage.completion_tokens == 13
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert server.provider.answers_to_user("call-1") == 1


@pytest.mark.parametrize("bound", ["max_tokens", "max_completion_tokens"])
async def test_a_bound_cuts_the_answer(bound: str) -> None:
    async with running() as (_, client):
        found = await create(client, **{bound: 3})
        assert (found.choices[0].finish_reason, found.usage.completion_tokens) == ("length", 3)


async def test_a_stream_comes_to_the_same_answer() -> None:
    async with running() as (server, client):
        whole = await create(client)
        chunks = [each async for each in await create(client, stream=True, stream_options={"include_usage": True})]
        deltas = [choice.delta.content or "" for each in chunks for choice in each.choices]
        reasons = [choice.finish_reason for each in chunks for choice in each.choices if choice.finish_reason]
        assert ("".join(deltas), reasons) == (SAID, ["stop"])
        assert {each.object for each in chunks} == {"chat.completion.chunk"}
        assert [each.usage for each in chunks if each.usage is not None] == [whole.usage]
        assert server.provider.stats()["distinct_bodies_answered"] == 1


async def test_structured_outputs_and_a_forced_tool() -> None:
    async with running() as (_, client):
        shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        typed = await create(client, messages=ABOUT_CATS, response_format=shape)
        assert isinstance(json.loads(typed.choices[0].message.content)["relevant"], bool)
        tools = [{"type": "function", "function": {"name": "record", "parameters": SCHEMA}}]
        forced = {"type": "function", "function": {"name": "record"}}
        used = await create(client, messages=ABOUT_CATS, tools=tools, tool_choice=forced)
        (call,) = used.choices[0].message.tool_calls
        assert (call.type, call.function.name) == ("function", "record")
        assert isinstance(json.loads(call.function.arguments)["relevant"], bool)


async def test_models_are_listed_and_looked_up() -> None:
    async with running(models=("sim", "other")) as (_, client):
        assert [each.id async for each in client.models.list()] == ["sim", "other"]
        assert (await client.models.retrieve("other")).id == "other"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("absent")


@pytest.mark.parametrize(
    ("settings", "more", "error"),
    [
        ({"keys": ("sk-other",)}, {}, openai.AuthenticationError),
        ({"models": ("other",)}, {}, openai.NotFoundError),
        ({}, {"messages": []}, openai.BadRequestError),
        ({}, {"max_tokens": 3, "max_completion_tokens": 3}, openai.BadRequestError),
        ({"faults": {"overloaded": 1.0}}, {}, openai.InternalServerError),
        ({"faults": {"throttled": 1.0}}, {}, openai.RateLimitError),
        ({"faults": {"reset": 1.0}}, {}, openai.APIConnectionError),
    ],
)
async def test_errors_are_those_of_the_client(settings: dict[str, Any], more: dict[str, Any], error: type[Exception]) -> None:
    async with running(**settings) as (_, client):
        with pytest.raises(error) as found:
            await create(client, **more)
        if isinstance(found.value, openai.APIStatusError):
            assert isinstance(found.value.body, dict) and found.value.body["message"]


async def test_limits_stand_in_the_headers_that_openai_has() -> None:
    async with running(rpm=2, tpm=90_000) as (_, client):  # half a minute brings the one back
        raw = await client.chat.completions.with_raw_response.create(model="sim", messages=TURN)
        assert (raw.headers["x-ratelimit-limit-requests"], raw.headers["x-ratelimit-limit-tokens"]) == ("2", "90000")
        assert int(raw.headers["x-ratelimit-remaining-requests"]) < 2


# -- Responses -------------------------------------------------------------------------------------------------------

ASK = TURN[0]["content"]


async def respond(client: openai.AsyncOpenAI, **more: Any) -> Any:
    return await client.responses.create(**{"model": "sim", "input": ASK, **more})


async def test_a_response_has_the_form_that_the_client_reads() -> None:
    async with running() as (server, client):
        found = await respond(client, user="call-1", instructions="Be brief.", store=False)
        assert (found.object, found.model, found.status, found.output_text) == ("response", "sim", "completed", SAID)
        (item,) = found.output
        assert (item.type, item.role, item.status, item.content[0].type) == ("message", "assistant", "completed", "output_text")
        usage = found.usage
        assert usage.input_tokens > 10 and (usage.output_tokens, usage.input_tokens_details.cached_tokens) == (13, 0)
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        assert server.provider.answers_to_user("call-1") == 1
        _valid(found)


async def test_a_bound_makes_a_response_incomplete() -> None:
    async with running() as (_, client):
        found = await respond(client, max_output_tokens=3)
        assert (found.status, found.incomplete_details.reason, found.usage.output_tokens) == ("incomplete", "max_output_tokens", 3)


@pytest.mark.parametrize("settings", [{}, {"thinking_tokens": 8}, {"faults": {"refusal": 1.0}}])
async def test_streamed_events_come_to_the_same_response(settings: dict[str, Any]) -> None:
    async with running(**settings) as (server, client):
        whole = await respond(client)
        async with client.responses.stream(model="sim", input=ASK) as stream:  # it puts the pieces together itself
            kinds = [event.type async for event in stream]
            last = await stream.get_final_response()
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        assert last.output_text == whole.output_text and last.usage == whole.usage
        assert [item.type for item in last.output] == [item.type for item in whole.output]
        assert ("response.refusal.delta" if "faults" in settings else "response.output_text.delta") in kinds
        assert server.provider.stats()["distinct_bodies_answered"] == 1
        _valid(last)


async def test_log_probabilities_over_responses_are_those_of_chat_completions() -> None:
    schema = SCHEMA | {"required": ["relevant"], "additionalProperties": False}
    shape: Any = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    as_chat: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    async with running() as (_, client):
        said = await create(client, messages=ABOUT_CATS, response_format=as_chat, logprobs=True, top_logprobs=3)
        told = [each.model_dump() for each in said.choices[0].logprobs.content]
        asked = {"input": ABOUT_CATS[0]["content"], "text": shape}
        wanted = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
        found = await respond(client, **asked, **wanted)
        assert found.output_text == said.choices[0].message.content
        assert [each.model_dump() for each in found.output[0].content[0].logprobs] == told
        async with client.responses.stream(model="sim", **asked, **wanted) as stream:
            events = [event async for event in stream]
        pieces = [each.model_dump() for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
        assert [(each["token"], each["logprob"]) for each in pieces] == [(each["token"], each["logprob"]) for each in told]
        assert [each.model_dump() for each in events[-1].response.output[0].content[0].logprobs] == told
        assert (await respond(client, **asked)).output[0].content[0].logprobs == []


async def test_the_tokens_of_a_response_are_counted() -> None:
    async with running() as (server, client):
        counted = await client.responses.input_tokens.count(model="sim", input=ASK, instructions="Be brief.")
        found = await respond(client, instructions="Be brief.")
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", found.usage.input_tokens)
        assert server.provider.tally.token_counts == 1
        with pytest.raises(openai.BadRequestError, match="Unknown parameter: 'max_output_tokens'"):
            await client.responses.input_tokens.count(model="sim", input=ASK, extra_body={"max_output_tokens": 5})


async def test_structured_outputs_a_forced_tool_and_its_result_over_responses() -> None:
    async with running() as (_, client):
        about: Any = ABOUT_CATS[0]["content"]
        shape = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False}}
        typed = await respond(client, input=about, text=shape)
        assert isinstance(json.loads(typed.output_text)["relevant"], bool)
        tools = [{"type": "function", "name": "record", "parameters": SCHEMA, "strict": False}]
        used = await respond(client, input=about, tools=tools, tool_choice={"type": "function", "name": "record"})
        (call,) = used.output
        assert (call.type, call.name, isinstance(json.loads(call.arguments)["relevant"], bool)) == ("function_call", "record", True)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "noted"}
        again = await respond(client, input=[{"role": "user", "content": about}, call.to_dict(), result], tools=tools)
        assert again.status == "completed"


@pytest.mark.parametrize(
    ("settings", "more", "error"),
    [
        ({"keys": ("sk-other",)}, {}, openai.AuthenticationError),
        ({"models": ("other",)}, {}, openai.NotFoundError),
        ({}, {"input": []}, openai.BadRequestError),
        ({}, {"extra_body": {"max_tokens": 3}}, openai.BadRequestError),
        ({}, {"previous_response_id": "resp_1"}, openai.BadRequestError),
        ({"faults": {"overloaded": 1.0}}, {}, openai.InternalServerError),
        ({"faults": {"throttled": 1.0}}, {}, openai.RateLimitError),
        ({"faults": {"reset": 1.0}}, {}, openai.APIConnectionError),
    ],
)
async def test_errors_of_responses_are_those_of_the_client(
    settings: dict[str, Any], more: dict[str, Any], error: type[Exception]
) -> None:
    async with running(**settings) as (_, client):
        with pytest.raises(error) as found:
            await respond(client, **more)
        if isinstance(found.value, openai.APIStatusError):
            assert isinstance(found.value.body, dict) and found.value.body["message"]


async def test_an_error_inside_a_stream_of_responses_is_raised_by_the_client() -> None:
    async with running(faults={"stream_error": 1.0}) as (_, client):
        with pytest.raises(openai.APIError):
            async for _ in await respond(client, stream=True):
                pass


def _valid(found: Any) -> None:
    """The client reads leniently; its types, asked for all they need, find fields that are missing or of another type."""
    Response.model_validate(found.to_dict())
