"""JSON of OpenAI's Responses API at the simulated provider: requests into the Messages form, in which it works them
out, and messages into responses.

Own code, not that of the client (``actors.providers.responses``): each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator import tokenizer
from actors.simulator.api import chat_wire
from actors.simulator.api.wire import STREAM_TOKENS
from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

BEHIND_CONTENT: Final = b',"parallel_tool_calls":'
"""Beginning of what stands behind the output of a response."""
_REFUSAL: Final = "I cannot help with that."
_CHOICES: Final = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}
COUNTED_FIELDS: Final = frozenset(
    "conversation input instructions model parallel_tool_calls personality previous_response_id reasoning text "
    "tool_choice tools truncation".split()
)
"""Fields that the counter of tokens takes (``InputTokenCountParams`` of the package ``openai`` 3.57)."""
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"
"""Values of ``include``."""
_STATEFUL: Final = ("previous_response_id", "conversation", "prompt", "background")

_encode = msgspec.json.Encoder().encode


# -- requests --------------------------------------------------------------------------------------------------------


def messages_request(body: bytes) -> bytes:
    """Return a request as one of the Messages API. Raises ``BadRequest``."""
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"We could not parse the JSON body of your request: {error}") from None
    for name in ("messages", "max_tokens", "response_format", "stop"):
        if name in given:
            raise BadRequest(f"Unsupported parameter: '{name}'. In the Responses API it has another name.")
    if kept := next((name for name in _STATEFUL if given.get(name)), ""):
        raise BadRequest(f"Unsupported parameter: '{kept}': nothing is kept here.")
    try:
        return _encode(_messages_fields(given))
    except (LookupError, TypeError, AttributeError) as error:
        raise BadRequest(f"Invalid request: {type(error).__name__}: {error}") from None


def counted_request(body: bytes) -> bytes:
    """Return a request for the number of its tokens as one of the Messages API. Raises ``BadRequest``."""
    made = messages_request(body)
    if unknown := next((name for name in msgspec.json.decode(body) if name not in COUNTED_FIELDS), ""):
        raise BadRequest(f"Unknown parameter: '{unknown}'.")
    return made


def _messages_fields(given: dict[str, Any]) -> dict[str, Any]:
    system = [given["instructions"]] if given.get("instructions") else []
    turns: list[dict[str, Any]] = []
    items = given["input"]
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            output = item["output"]
            content = output if isinstance(output, str) else [_block(part) for part in output]
            _add(turns, "user", [{"type": "tool_result", "tool_use_id": item["call_id"], "content": content}])
        elif kind == "function_call":
            use = {"type": "tool_use", "id": item["call_id"], "name": item["name"],
                   "input": msgspec.json.decode(item["arguments"])}  # fmt: skip
            _add(turns, "assistant", [use])
        elif kind == "message" and item["role"] in ("system", "developer"):
            system.append(_text(item["content"]))
        elif kind == "message":
            content = item["content"]
            _add(turns, item["role"], content if isinstance(content, str) else [_block(part) for part in content])
        elif kind != "reasoning":
            raise BadRequest(f"Invalid value: '{kind}'.")
    made: dict[str, Any] = {
        "max_tokens": given.get("max_output_tokens", 4_096), "messages": turns, "model": given["model"],
    }  # fmt: skip
    return made | _others(given, system)


def _others(given: dict[str, Any], system: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"system": "\n\n".join(system)} if system else {}
    if given.get("user"):
        made["metadata"] = {"user_id": given["user"]}
    shape = (given.get("text") or {}).get("format") or {}
    if shape.get("type") == "json_schema":
        made["output_config"] = {"format": {"type": "json_schema", "schema": shape["schema"]}}
    if given.get("tools"):
        made["tools"] = [
            {"name": each["name"], "input_schema": each["parameters"]}
            | ({"description": each["description"]} if each.get("description") else {})
            for each in given["tools"]
        ]
    if choice := given.get("tool_choice"):
        made["tool_choice"] = {"type": "tool", "name": choice["name"]} if isinstance(choice, dict) else _CHOICES[choice]
    if LOGPROBS in (given.get("include") or ()):
        made |= {"logprobs": True, "top_logprobs": given.get("top_logprobs") or 0}
    if (given.get("reasoning") or {}).get("effort") == "none":
        made["thinking"] = {"type": "disabled"}
    return made | ({"stream": True} if given.get("stream") else {})


def _add(turns: list[dict[str, Any]], role: str, content: str | list[dict[str, Any]]) -> None:
    """Add an item: neighbouring items of one role are one turn of the Messages API, where one of them has blocks."""
    before = turns[-1] if turns else {}
    if before.get("role") == role and (isinstance(content, list) or isinstance(before["content"], list)):
        before["content"] = _blocks(before["content"]) + _blocks(content)
    else:
        turns.append({"role": role, "content": content})


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n\n".join(part["text"] for part in content)


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if part["type"] in ("input_text", "output_text"):
        return {"type": "text", "text": part["text"]}
    if part["type"] == "input_image":
        return {"type": "image", "source": {"type": "base64", "data": part["image_url"].rpartition(",")[2]}}
    return {"type": "document", "source": {"type": "base64", "data": part["file_data"].rpartition(",")[2]}}


# -- answers ---------------------------------------------------------------------------------------------------------


def whole(facts: dict[str, Any], encrypted: bool = False) -> bytes:
    """Return the body of a response. ``encrypted``: thoughts are told in encrypted form, too."""
    return _encode(_response(facts, encrypted))


def events(facts: dict[str, Any], encrypted: bool = False) -> list[tuple[bytes, int]]:
    """Return the events of a stream, each with its number of output tokens; the last holds the whole response."""
    response = _response(facts, encrypted)
    begun = response | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    made: list[tuple[dict[str, Any], int]] = [({"type": "response.created", "response": begun}, 0)]
    for index, item in enumerate(response["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        bare = item | {name: [] if name == "content" else "" for name in ("content", "arguments") if name in item}
        started = bare | {"status": "in_progress"}
        made.append(({"type": "response.output_item.added", "output_index": index, "item": started}, 0))
        made += _pieces(item, where)
        made.append(({"type": "response.output_item.done", "output_index": index, "item": item}, 0))
    made.append(({"type": f"response.{response['status']}", "response": response}, 0))
    return [(_event(event | {"sequence_number": at}), tokens) for at, (event, tokens) in enumerate(made)]


def _pieces(item: dict[str, Any], where: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """Return the events between the beginning and the end of an item: pieces of a text, or of a function's input."""
    if item["type"] == "reasoning":
        return []
    if item["type"] == "function_call":
        kind, field, said = "response.function_call_arguments", "arguments", item["arguments"]
        more: dict[str, Any] = {}
        around: list[dict[str, Any]] = []
    else:
        part = item["content"][0]
        field = "refusal" if part["type"] == "refusal" else "text"
        kind, said = "response.refusal" if field == "refusal" else "response.output_text", part[field]
        more = {"content_index": 0} | ({"logprobs": part["logprobs"]} if field == "text" else {})
        bare = part | {field: ""} | ({"logprobs": []} if "logprobs" in part else {})
        around = [
            {"type": f"response.content_part.{name}", "content_index": 0, "part": each, **where}
            for name, each in (("added", bare), ("done", part))
        ]
    later = more | ({"logprobs": []} if "logprobs" in more else {})
    pieces = [
        ({"type": f"{kind}.delta", "delta": piece, **where, **(later if at else more)}, tokenizer.count(piece))
        for at, piece in enumerate(tokenizer.chunks(said, STREAM_TOKENS))
    ]
    done = {"type": f"{kind}.done", field: said, **where, **more}
    if item["type"] == "function_call":
        done["name"] = item["name"]
    return [*((event, 0) for event in around[:1]), *pieces, (done, 0), *((event, 0) for event in around[1:])]


class ThoughtsTold:
    """Form of the answers to requests that ask for thoughts in encrypted form (``include``)."""

    BEHIND_CONTENT = BEHIND_CONTENT

    @staticmethod
    def whole(facts: dict[str, Any]) -> bytes:
        """Return the body of a response."""
        return whole(facts, encrypted=True)

    @staticmethod
    def events(facts: dict[str, Any]) -> list[tuple[bytes, int]]:
        """Return the events of a stream."""
        return events(facts, encrypted=True)

    @staticmethod
    def error_event(refusal: ErrorResponse) -> bytes:
        """Return the event of an error inside a stream."""
        return error_event(refusal)


def asks_for_thoughts(body: bytes) -> bool:
    """Return whether a request that could be read asks for thoughts in encrypted form."""
    return ENCRYPTED in (msgspec.json.decode(body).get("include") or ())


def error(refusal: ErrorResponse) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error: those of chat completions."""
    return chat_wire.error(refusal)


def error_event(refusal: ErrorResponse) -> bytes:
    """Return the event of an error inside a stream."""
    facts = chat_wire.error(refusal)[1]["error"]
    return _event({"type": "error", "sequence_number": 0, "error": facts})


def _response(facts: dict[str, Any], encrypted: bool) -> dict[str, Any]:
    cut = facts["stop_reason"] == "max_tokens"
    counts = facts["usage"]
    read, output = counts["cache_read_input_tokens"], counts["output_tokens"]
    prompt = counts["input_tokens"] + read
    return {
        "id": _name("resp", facts), "object": "response", "created_at": 1_767_225_600.0,
        "status": "incomplete" if cut else "completed", "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None, "metadata": {}, "model": facts["model"], "output": _output(facts, cut, encrypted),
        "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None,
        "usage": {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": 0},
            "output_tokens": output, "output_tokens_details": {"reasoning_tokens": _thought_tokens(facts)},
            "total_tokens": prompt + output,
        },
    }  # fmt: skip


def _output(facts: dict[str, Any], cut: bool, encrypted: bool) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for at, block in enumerate(facts["content"]):
        name = _name({"thinking": "rs", "tool_use": "fc"}.get(block["type"], "msg"), facts) + f"_{at}"
        if block["type"] == "thinking":
            summary = [{"type": "summary_text", "text": block["thinking"]}]
            items.append({"id": name, "type": "reasoning", "summary": summary})
            if encrypted:
                items[-1]["encrypted_content"] = "c2VjcmV0"
        elif block["type"] == "tool_use":
            arguments = _encode(block["input"]).decode()
            items.append({"id": name, "type": "function_call", "status": "completed", "call_id": block["id"],
                          "name": block["name"], "arguments": arguments})  # fmt: skip
        elif facts["stop_reason"] != "refusal":
            told = chat_wire.logprobs(facts)
            part = {"type": "output_text", "text": block["text"], "annotations": [], "logprobs": told}
            items.append(_said(name, part, cut))
    if facts["stop_reason"] == "refusal":
        items.append(_said(f"{_name('msg', facts)}_r", {"type": "refusal", "refusal": _REFUSAL}, False))
    return items


def _said(name: str, part: dict[str, Any], cut: bool) -> dict[str, Any]:
    status = "incomplete" if cut else "completed"
    return {"id": name, "type": "message", "status": status, "role": "assistant", "content": [part]}


def _thought_tokens(facts: dict[str, Any]) -> int:
    return sum(tokenizer.count(block["thinking"]) for block in facts["content"] if block["type"] == "thinking")


def _name(prefix: str, facts: dict[str, Any]) -> str:
    return f"{prefix}_{facts['id'].removeprefix('msg_')}"


def _event(value: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (value["type"].encode(), _encode(value))
