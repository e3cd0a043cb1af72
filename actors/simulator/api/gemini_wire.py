"""JSON of the Gemini API's `generateContent` at the simulated provider: requests into the Messages form, in which it
works them out, and messages into responses.

Own code, not that of the client (``actors.providers.gemini``): each is a check of the other.
"""

from typing import Any, Final

import msgspec

from actors.simulator.faults import ErrorResponse
from actors.simulator.request import BadRequest

_CONFIG: Final = {
    "maxOutputTokens": "max_tokens", "temperature": "temperature", "topP": "top_p", "topK": "top_k",
    "stopSequences": "stop_sequences",
}  # fmt: skip
_PASSED_OVER: Final = frozenset({
    "responseMimeType", "responseJsonSchema", "thinkingConfig", "seed", "presencePenalty", "frequencyPenalty",
})  # fmt: skip
_CHOICES: Final = {"AUTO": "auto", "ANY": "any", "NONE": "none"}
_FINISH: Final = {"end_turn": "STOP", "stop_sequence": "STOP", "tool_use": "STOP", "max_tokens": "MAX_TOKENS",
                  "refusal": "SAFETY"}  # fmt: skip
CODES: Final = {400: (3, "INVALID_ARGUMENT"), 401: (16, "UNAUTHENTICATED"), 403: (7, "PERMISSION_DENIED"),
                404: (5, "NOT_FOUND"), 429: (8, "RESOURCE_EXHAUSTED"), 503: (14, "UNAVAILABLE"),
                529: (14, "UNAVAILABLE"), 504: (4, "DEADLINE_EXCEEDED")}  # fmt: skip
"""`google.rpc.Code` and its name by status."""


def messages_request(given: dict[str, Any], model: str) -> bytes:
    """Return a request as one of the Messages API. Raises ``BadRequest``."""
    known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
    if unknown := given.keys() - known:
        raise BadRequest(f'Invalid JSON payload received. Unknown name "{min(unknown)}": Cannot find field.')
    if not given.get("contents"):
        raise BadRequest("* GenerateContentRequest.contents: contents is not specified")
    try:
        return msgspec.json.encode(_messages_fields(given, model))
    except (LookupError, TypeError, AttributeError) as error:
        raise BadRequest(f"Invalid request: {type(error).__name__}: {error}") from None


def _messages_fields(given: dict[str, Any], model: str) -> dict[str, Any]:
    roles = {"model": "assistant", "user": "user"}
    turns = [{"role": roles[turn["role"]], "content": _content(turn["parts"])} for turn in given["contents"]]
    config = given.get("generationConfig") or {}
    made: dict[str, Any] = {"model": model, "messages": turns, "max_tokens": 4_096}
    for name, value in config.items():
        if name in _CONFIG:
            made[_CONFIG[name]] = value
        elif name not in _PASSED_OVER:
            raise BadRequest(f'Invalid JSON payload received. Unknown name "{name}" at \'generation_config\'.')
    if system := given.get("systemInstruction"):
        made["system"] = "\n\n".join(part["text"] for part in system["parts"])
    if (schema := config.get("responseJsonSchema")) is not None:
        made["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if tools := given.get("tools"):
        made["tools"] = [
            {"name": each["name"], "input_schema": each["parametersJsonSchema"]}
            for tool in tools for each in tool["functionDeclarations"]
        ]  # fmt: skip
    if calling := (given.get("toolConfig") or {}).get("functionCallingConfig"):
        names = calling.get("allowedFunctionNames")
        made["tool_choice"] = {"type": "tool", "name": names[0]} if names else {"type": _CHOICES[calling["mode"]]}
    return made


def _content(parts: list[dict[str, Any]]) -> Any:
    if len(parts) == 1 and "text" in parts[0]:
        return parts[0]["text"]
    return [_block(part) for part in parts]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if call := part.get("functionCall"):
        return {"type": "tool_use", "id": call["id"], "name": call["name"], "input": call["args"]}
    if told := part.get("functionResponse"):
        content = next(iter(told["response"].values()))
        return {"type": "tool_result", "tool_use_id": told["id"], "content": content}
    if data := part.get("inlineData"):
        return {"type": "image", "source": {"type": "base64", "data": data["data"]}}
    return {"type": "text", "text": part["text"]}


def response(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a message as a response."""
    usage, parts = facts["usage"], []
    for block in facts["content"]:
        if block["type"] == "text":
            parts.append({"text": block["text"]})
        elif block["type"] == "thinking":
            parts.append({"text": block["thinking"], "thought": True})
        else:
            parts.append({"functionCall": {"id": block["id"], "name": block["name"], "args": block["input"]}})
    read = usage.get("cache_read_input_tokens") or 0
    prompt = usage["input_tokens"] + read + (usage.get("cache_creation_input_tokens") or 0)
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": usage["output_tokens"],
              "totalTokenCount": prompt + usage["output_tokens"]}  # fmt: skip
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0,
                 "finishReason": _FINISH.get(facts["stop_reason"], "OTHER")}  # fmt: skip
    return {
        "candidates": [candidate], "usageMetadata": counts | ({"cachedContentTokenCount": read} if read else {}),
        "modelVersion": facts["model"], "responseId": facts["id"],
    }  # fmt: skip


def error(refusal: ErrorResponse) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error response."""
    _, name = CODES.get(refusal.status, (13, "INTERNAL"))
    status = 503 if refusal.status == 529 else refusal.status
    return status, {"error": {"code": status, "message": refusal.message, "status": name}}


def status(refusal: ErrorResponse) -> dict[str, Any]:
    """Return an error as `google.rpc.Status`."""
    code, _ = CODES.get(refusal.status, (13, "INTERNAL"))
    return {"code": code, "message": refusal.message}
