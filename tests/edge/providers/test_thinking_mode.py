"""DeepSeek over chat completions: thinking that a field switches, forced tools beside it, and thoughts that are given back.
The words are those of the reports that ``thinking_mode`` names."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actors.providers.chat_completions.client import ChatModel
from actors.providers.chat_completions.request import ChatVariant, chat_body, fields_with
from actors.providers.chat_completions.response import read_completion
from actors.providers.client.wire_form import Untranslatable
from actors.providers.credentials.account import ClientSpec, ProviderLocation, opened
from actors.providers.registry import PROVIDERS, load, row_of
from actors.providers.responses.request import responses_body
from cortex.values.chat_form.request import chat_request
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, compact, http
from tests.support.patience import PATIENCE_S

USER = {"role": "user", "content": "hi"}
ASKED: dict[str, Any] = {"model": "deepseek-v4-flash", "max_tokens": 9, "messages": [USER]}
TOOLS = {"tools": [{"name": "look", "input_schema": {"type": "object"}}]}
NAMED = {"type": "tool", "name": "look"}
CHOSEN = {"type": "function", "function": {"name": "look"}}
OFF, ON = {"thinking": {"type": "disabled"}}, {"thinking": {"type": "enabled"}}
SWITCHED = fields_with(None, switched=True)
NO_FORCE = "Thinking mode does not support this tool_choice"
WHOLE = compact({
    "id": "x", "model": "m", "choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13},
})  # fmt: skip


def said(thought: str | None) -> list[dict[str, Any]]:
    """The blocks of a completion that asks for a tool, with a thought or without."""
    use = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": "", "reasoning_content": thought, "tool_calls": [use]}
    told = {"id": "x", "model": "m", "choices": [{"message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}}  # fmt: skip
    return json.loads(read_completion(compact(told)).body)["content"]


def turns(*of_model: Any) -> dict[str, Any]:
    answered = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]}
    found = [USER]
    for each in of_model:
        found += [{"role": "assistant", "content": each}, answered if isinstance(each, list) else USER]
    return {"messages": found}


def model_of(provider: str, url: str = "") -> ChatModel:
    row = row_of(provider)
    account = opened(ProviderLocation(provider=provider, base_url=url), {row.key_variable: "k" * 20})
    made: ChatModel = load(row.client)(
        ClientSpec(endpoint=account.endpoint, provider=provider, credential=account.credential)
    )
    return made


# -- the switch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {}),
        # https://api-docs.deepseek.com/guides/thinking_mode: the effort has no `none`
        ({"output_config": {"effort": "none"}}, OFF), ({"reasoning_effort": "none"}, OFF),
        ({"thinking": {"type": "disabled"}}, OFF), ({"thinking": {"type": "adaptive"}}, ON),
        *(({"output_config": {"effort": each}}, {"reasoning_effort": each}) for each in ("low", "medium", "high", "max")),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        # deepseek-ai/DeepSeek-V3#1376: a forced tool is taken beside thinking that is off
        (TOOLS | {"tool_choice": NAMED}, OFF | {"tool_choice": CHOSEN}),
        (TOOLS | {"tool_choice": {"type": "any"}}, OFF | {"tool_choice": "required"}),
        (TOOLS | {"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        (TOOLS | {"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (TOOLS, {}),
        # unless the request asks for thinking
        (TOOLS | {"tool_choice": NAMED, "output_config": {"effort": "high"}}, {"tool_choice": CHOSEN, "reasoning_effort": "high"}),
        (TOOLS | {"tool_choice": NAMED, "reasoning_effort": "max"}, {"tool_choice": CHOSEN, "reasoning_effort": "max"}),
        (TOOLS | {"tool_choice": NAMED, "thinking": {"type": "adaptive"}}, ON | {"tool_choice": CHOSEN}),
        (TOOLS | {"tool_choice": NAMED, "thinking": {"type": "disabled"}}, OFF | {"tool_choice": CHOSEN}),
    ],
)  # fmt: skip
def test_thinking_is_switched_as_deepseek_says(fields: dict[str, Any], sent: dict[str, Any]) -> None:
    for more in ({}, {"stop_sequences": []}):  # the latter takes the long way
        made = json.loads(chat_body(msgspec.json.encode(ASKED | fields | more), variant=ChatVariant(translator=SWITCHED)))
        assert {name: made[name] for name in made.keys() - ASKED.keys() - {"tools"}} == sent


def test_other_providers_are_told_the_effort_and_the_tool_alone() -> None:
    body = msgspec.json.encode(ASKED | TOOLS | {"tool_choice": NAMED, "thinking": {"type": "disabled"}})
    made = json.loads(chat_body(body))
    assert (made["reasoning_effort"], made["tool_choice"]) == ("none", CHOSEN) and "thinking" not in made
    with pytest.raises(Untranslatable, match="budget"):
        chat_body(msgspec.json.encode(ASKED | {"thinking": {"type": "enabled", "budget_tokens": 1_024}}), variant=ChatVariant(translator=SWITCHED))


def test_deepseek_alone_is_switched_and_gets_its_thoughts_back() -> None:
    """Its own hosts alone: what stands at another address may refuse a field that it does not know."""
    found = {}
    for row in PROVIDERS.values():
        if row.dialect.startswith("actors.providers.chat_completions"):
            dialect = load(row.dialect)
            found[row.name] = (dialect.switched, dialect.thoughts)
    assert found.pop("deepseek") == (True, True) and set(found.values()) == {(False, False)}
    assert model_of("deepseek")._variant.thoughts and not model_of("deepseek", "http://gpu:8000")._variant.thoughts  # type: ignore[attr-defined]


# -- thoughts of earlier turns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_model", "given"),
    [
        ([said("I need to look")], ["I need to look"]),
        ([said(None)], [""]),  # continuedev/continue#11285: an empty one has to be there too
        ([said("one"), "in words", said("two")], ["one", "", "two"]),
        ([[{"type": "redacted_thinking", "data": "x"}, *said("a")]], ["a"]),
        ([[{"type": "text", "text": "so"}]], [""]),
    ],
)
def test_thoughts_are_given_back_to_a_server_that_wants_them(of_model: list[Any], given: list[str]) -> None:
    body = msgspec.json.encode(ASKED | turns(*of_model))
    made = json.loads(chat_body(body, variant=ChatVariant(thoughts=True)))["messages"]
    assert [each["reasoning_content"] for each in made if each["role"] == "assistant"] == given
    plain = json.loads(chat_body(body))["messages"]
    assert [{n: v for n, v in each.items() if n != "reasoning_content"} for each in made] == plain
    assert b"reasoning_content" not in responses_body(body)


# -- refusals ----------------------------------------------------------------------------------------------------------

TOOL_LOOP = ASKED | TOOLS | turns(said("hm"))
FORCED = ASKED | TOOLS | {"tool_choice": NAMED, "output_config": {"effort": "high"}}


@pytest.mark.parametrize(
    ("provider", "request_", "words", "sent"),
    [
        # DeepSeek, Qwen, and an older DeepSeek: the model may choose
        *(("openai", FORCED, words, {"tool_choice": [CHOSEN, "auto", "auto"]}) for words in (
            NO_FORCE, "deepseek-reasoner does not support this tool_choice",
            "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to required or "
            "object in thinking mode",
        )),
        ("deepseek", FORCED, NO_FORCE, {"tool_choice": [CHOSEN, "auto", "auto"]}),
        # DeepSeek in two wordings, Kimi: thoughts are given back from then on
        *(("openai", TOOL_LOOP, words, {"messages.1.reasoning_content": [None, "hm", "hm"]}) for words in (
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            "Missing `reasoning_content` field in the assistant message at message index 1. For more information, please refer "
            "to https://api-docs.deepseek.com/guides/thinking_mode#tool-calls",
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1",
        )),
        # a server at the address of DeepSeek's row that knows no such switch
        ("deepseek", ASKED | {"thinking": {"type": "disabled"}}, "thinking: Extra inputs are not permitted",
         {"thinking": [OFF["thinking"], None, None], "reasoning_effort": [None, "none", "none"]}),
    ],
)  # fmt: skip
async def test_a_server_that_refuses_is_asked_otherwise_from_then_on(
    provider: str, request_: dict[str, Any], words: str, sent: dict[str, list[Any]]
) -> None:
    refused = http({"error": {"message": words, "type": "invalid_request_error", "code": "invalid_request_error"}}, 400)
    answers = iter([refused, http(WHOLE), http(WHOLE)])
    with served(lambda _: next(answers)) as server:
        model = model_of(provider, server.url)
        for _ in range(2):
            found = await model.call(msgspec.json.encode(request_), output_tokens_max=9, timeout_s=PATIENCE_S)
            assert isinstance(found, Reply), found
        await model.close()
    assert len(server.asked) == 3
    for path, expected in sent.items():
        assert [at(each.json, path) for each in server.asked] == expected


async def test_a_row_with_an_effort_takes_the_forced_tool_from_no_row_without() -> None:
    typed, thinks = ASKED | TOOLS | {"tool_choice": NAMED}, FORCED

    def script(asked: Asked) -> Answer:
        refused = asked.json["tool_choice"] != "auto" and asked.json.get("thinking") != OFF["thinking"]
        return http({"error": {"message": NO_FORCE}}, 400) if refused else http(WHOLE)

    with served(script) as server:
        model = model_of("deepseek", server.url)
        for each in (typed, thinks, typed, thinks, typed | {"thinking": {"type": "disabled"}}):
            found = await model.call(msgspec.json.encode(each), output_tokens_max=9, timeout_s=PATIENCE_S)
            assert isinstance(found, Reply), found
        await model.close()
    assert [each.json["tool_choice"] for each in server.asked] == [CHOSEN, CHOSEN, "auto", CHOSEN, "auto", CHOSEN]


@pytest.mark.parametrize("first", [[], [FORCED]])
async def test_a_server_that_refuses_a_forced_tool_whatever_is_off_lets_its_model_choose(first: list[Any]) -> None:
    def script(asked: Asked) -> Answer:
        return http(WHOLE) if asked.json["tool_choice"] == "auto" else http({"error": {"message": NO_FORCE}}, 400)

    typed = ASKED | TOOLS | {"tool_choice": NAMED}
    with served(script) as server:
        model = model_of("deepseek", server.url)
        for each in (*first, typed, typed):
            found = await model.call(msgspec.json.encode(each), output_tokens_max=9, timeout_s=PATIENCE_S)
            assert isinstance(found, Reply), found
        await model.close()
    assert [each.json["tool_choice"] for each in server.asked[-2:]] == ["auto", "auto"]
    assert len(server.asked) == (5 if first else 4)


def at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
    return value


async def test_a_server_that_refuses_thoughts_gets_none() -> None:
    """Groq and Cerebras: janhq/jan#8136, Kilo-Org/kilocode#10375."""
    words = "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning_content' is unsupported)]"
    answers = iter([http({"error": {"message": words}}, 400), http(WHOLE)])
    with served(lambda _: next(answers)) as server:
        model = model_of("openai", server.url)
        model._variant = ChatVariant(thoughts=True)
        found = await model.call(msgspec.json.encode(TOOL_LOOP), output_tokens_max=9, timeout_s=PATIENCE_S)
        assert isinstance(found, Reply), found
        await model.close()
    assert [at(each.json, "messages.1.reasoning_content") for each in server.asked] == ["hm", None]


async def test_a_request_that_its_user_wrote_is_asked_once() -> None:
    """Its tools and turns stay as they are, so another spelling of it would be refused as well."""
    wanted = {"model": "m", "max_tokens": 9, "messages": [USER], "tools": [], "tool_choice": "required"}

    def script(asked: Asked) -> Answer:
        return http({"error": {"message": NO_FORCE}}, 400) if asked.json.get("tool_choice") == "required" else http(WHOLE)

    with served(script) as server:
        model = model_of("deepseek", server.url)
        found = await model.call(chat_request(wanted), output_tokens_max=9, timeout_s=PATIENCE_S)
        assert isinstance(found, Failure) and found.kind is FailureKind.REJECTED
        forced = msgspec.json.encode(ASKED | TOOLS | {"tool_choice": NAMED})
        assert isinstance(await model.call(forced, output_tokens_max=9, timeout_s=PATIENCE_S), Reply)
        await model.close()
    assert [each.json["tool_choice"] for each in server.asked] == ["required", CHOSEN], "the next request is not spelled otherwise"
