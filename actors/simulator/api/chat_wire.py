"""JSON of chat completions at the simulated provider: requests into the Messages form, in which it works them out, and
messages into completions.

Own code, not that of the client (``actors.providers.chat_completions``): each is a check of the other.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from actors.simulator import tokenizer
from actors.simulator.api.wire import STREAM_TOKENS
from actors.simulator.faults import CREDIT, ErrorResponse
from actors.simulator.request import BadRequest

_FINISH: Final = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls",
                  "refusal": "stop"}  # fmt: skip
_REFUSAL: Final = "I cannot help with that."
_CHOICES: Final = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
BEHIND_CONTENT: Final = b',"finish_reason":'
"""Beginning of what stands behind the message of a completion."""

_encode = msgspec.json.Encoder().encode


# -- requests --------------------------------------------------------------------------------------------------------


def messages_request(body: bytes) -> bytes:
    """Return a request as one of the Messages API. Raises ``BadRequest``, in OpenAI's wording where it matters."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from None
    if "max_tokens" in given and "max_completion_tokens" in given:
        raise BadRequest("Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.")
    try:
        return _encode(_messages_fields(given))
    except (LookupError, TypeError, AttributeError) as error:
        raise BadRequest(f"Invalid request: {type(error).__name__}: {error}") from None


def _messages_fields(given: dict[str, Any]) -> dict[str, Any]:
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in given["messages"]:
        role, content = message["role"], message.get("content")
        if role in ("system", "developer"):
            system.append(content if isinstance(content, str) else "\n\n".join(part["text"] for part in content))
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
            if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(result)
            else:
                turns.append({"role": "user", "content": [result]})
        else:
            turns.append({"role": role, "content": _content(message, content)})
    bound = given.get("max_completion_tokens", given.get("max_tokens", 4_096))
    made: dict[str, Any] = {"max_tokens": bound, "messages": turns, "model": given["model"]}
    if system:
        made["system"] = "\n\n".join(system)
    if given.get("stop"):
        made["stop_sequences"] = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
    if given.get("user"):
        made["metadata"] = {"user_id": given["user"]}
    if shape := (given.get("response_format") or {}).get("json_schema"):
        made["output_config"] = {"format": {"type": "json_schema", "schema": shape["schema"]}}
    if given.get("tools"):
        functions = [tool["function"] for tool in given["tools"]]
        made["tools"] = [
            {"name": each["name"], "input_schema": each["parameters"]}
            | ({"description": each["description"]} if each.get("description") else {})
            for each in functions
        ]
    if choice := given.get("tool_choice"):
        named = {"type": "tool", "name": choice["function"]["name"]} if isinstance(choice, dict) else _CHOICES[choice]
        made["tool_choice"] = named
    if given.get("reasoning_effort") == "none":
        made["thinking"] = {"type": "disabled"}
    made |= {name: given[name] for name in ("logprobs", "top_logprobs") if given.get(name) is not None}
    return made | ({"stream": True} if given.get("stream") else {})


def _content(message: dict[str, Any], content: Any) -> Any:
    calls = message.get("tool_calls")
    if not calls and isinstance(content, str):
        return content
    listed = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    parts = [_block(part) for part in listed]
    return [part for part in parts if part.get("text") != ""] + [
        {"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
         "input": msgspec.json.decode(call["function"]["arguments"])}
        for call in calls or ()
    ]  # fmt: skip


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    url = part["image_url"]["url"] if part["type"] == "image_url" else part["file"]["file_data"]
    kind = "image" if part["type"] == "image_url" else "document"
    return {"type": kind, "source": {"type": "base64", "data": url.rpartition(",")[2]}}


# -- answers ---------------------------------------------------------------------------------------------------------


def whole(facts: dict[str, Any]) -> bytes:
    """Return the body of a completion."""
    entries = logprobs(facts)
    told = {"content": entries, "refusal": None} if entries else None
    choice = {"index": 0, "message": _message(facts), "logprobs": told, "finish_reason": _finish(facts)}
    return _encode(_head(facts, "chat.completion") | {"choices": [choice], "usage": _usage(facts)})


def events(facts: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Return the chunks of a stream, each with its number of output tokens; the usage comes last."""
    message, entries = _message(facts), logprobs(facts)
    calls = message.pop("tool_calls", [])
    found: list[tuple[bytes, int]] = [(_chunk(facts, {"role": "assistant", "content": ""}), 0)]
    for name in ("reasoning_content", "content", "refusal"):
        for at, text in enumerate(tokenizer.chunks(message.get(name) or "", STREAM_TOKENS)):
            told = entries if name == "content" and not at else ()
            found.append((_chunk(facts, {name: text}, None, told), tokenizer.count(text)))
    for at, call in enumerate(calls):
        first = {"index": at, **call, "function": {"name": call["function"]["name"], "arguments": ""}}
        found.append((_chunk(facts, {"tool_calls": [first]}), 0))
        for text in tokenizer.chunks(call["function"]["arguments"], STREAM_TOKENS):
            piece = {"index": at, "function": {"arguments": text}}
            found.append((_chunk(facts, {"tool_calls": [piece]}), tokenizer.count(text)))
    found.append((_chunk(facts, {}, _finish(facts)), 0))
    last = _head(facts, "chat.completion.chunk") | {"choices": [], "usage": _usage(facts)}
    return [*found, (_event(last) + b"data: [DONE]\n\n", 0)]


def error(refusal: ErrorResponse) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error, as OpenAI has it (https://platform.openai.com/docs/guides/error-codes)."""
    status, kind, code = refusal.status, "invalid_request_error", None
    if refusal.message == CREDIT.message or refusal.error_code:
        status, kind, code = 429, "insufficient_quota", "insufficient_quota"
    elif status == 401:
        code = "invalid_api_key"
    elif status == 404:
        code = "model_not_found"
    elif status == 429:
        kind, code = "requests", "rate_limit_exceeded"
    elif status == 400 and refusal.message.startswith(("prompt is too long", "input length")):
        code = "context_length_exceeded"
    elif status >= 500:
        status, kind = (503 if status == 529 else status), "server_error"
    facts = {"message": refusal.message, "type": kind, "param": None, "code": code}
    return status, {"error": facts}


def error_event(refusal: ErrorResponse) -> bytes:
    """Return the event of an error inside a stream."""
    return _event(error(refusal)[1])


def _head(facts: dict[str, Any], kind: str) -> dict[str, Any]:
    name = f"chatcmpl-{facts['id'].removeprefix('msg_')}"
    return {"id": name, "object": kind, "created": 1_767_225_600, "model": facts["model"]}


def _message(facts: dict[str, Any]) -> dict[str, Any]:
    blocks = facts["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    calls = [
        {"id": block["id"], "type": "function",
         "function": {"name": block["name"], "arguments": _encode(block["input"]).decode()}}
        for block in blocks if block["type"] == "tool_use"
    ]  # fmt: skip
    refused = facts["stop_reason"] == "refusal"
    message = {"role": "assistant", "content": text or None, "refusal": _REFUSAL if refused else None}
    message |= {"reasoning_content": thought} if thought else {}
    return message | ({"tool_calls": calls} if calls else {})


def _finish(facts: dict[str, Any]) -> str:
    return _FINISH[facts["stop_reason"]]


def logprobs(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the log probabilities of a message's tokens in OpenAI's form."""
    return [
        _token(text, chance) | {"top_logprobs": [_token(*each) for each in others]}
        for text, chance, others in facts.get("logprobs", ())
    ]


def _token(text: str, chance: float) -> dict[str, Any]:
    return {"token": text, "logprob": chance, "bytes": list(text.encode("utf-8", "replace"))}


def _usage(facts: dict[str, Any]) -> dict[str, Any]:
    counts = facts["usage"]
    prompt, output = counts["input_tokens"] + counts["cache_read_input_tokens"], counts["output_tokens"]
    return {
        "prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": counts["cache_read_input_tokens"]},
    }  # fmt: skip


def _chunk(
    facts: dict[str, Any], delta: dict[str, Any], finish: str | None = None, entries: Sequence[Any] = ()
) -> bytes:
    told = {"content": entries, "refusal": None} if entries else None
    choice = {"index": 0, "delta": delta, "logprobs": told, "finish_reason": finish}
    return _event(_head(facts, "chat.completion.chunk") | {"choices": [choice], "usage": None})


def _event(value: Any) -> bytes:
    return b"data: %s\n\n" % _encode(value)
