"""Responses of chat completions: from the bytes of a completion to a canonical reply.

The form: https://platform.openai.com/docs/api-reference/chat/object; `ChatCompletion` of the package `openai` 3.57. A
reply is paid for once the model has written it, so it is kept if its answer can be read, whatever is wrong beside it.

Differences between servers:

- reasoning stands in `reasoning_content` (DeepSeek, SGLang, llama.cpp) or `reasoning` (OpenRouter, vLLM, Groq)
- content is a text, null, or a list of parts (Mistral, which puts reasoning there as well)
- arguments of a tool are a text that holds JSON, or an object (Ollama); a model may write broken JSON
- tokens of reasoning are part of `completion_tokens` at OpenAI; xAI and Gemini count them in `total_tokens` alone
  (UKGovernmentBEIS/inspect_ai#5528, Clarifai/clarifai-python#978)
- tokens read from the cache are part of `prompt_tokens` everywhere, by several names
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from actors.providers.chat_completions.logprobs import canonical_logprobs
from actors.providers.chat_completions.tool_signatures import signature_block
from actors.providers.messages.flawed_response import plausible
from actors.providers.messages.sse import tool_input
from actors.providers.transport.body import UnreadableAnswer, json_bytes, utf8
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.json_text import plain_value
from cortex.values.bounds.counts import Count, CountFromOne, count_of
from cortex.values.canonical import END_TURN, MAX_TOKENS, REFUSAL, STOP_SEQUENCE, TOOL_USE
from cortex.values.chat_form.completion import COMPLETION, with_completion
from cortex.values.endings import CONTEXT_WINDOW
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage, canonical_reply

STOP_REASONS: Final[Mapping[str, str]] = {
    "stop": END_TURN,
    "length": MAX_TOKENS,
    "tool_calls": TOOL_USE,
    "function_call": TOOL_USE,
    "content_filter": REFUSAL,
    "model_length": CONTEXT_WINDOW,  # Mistral: `CompletionChunk.finish_reason` of the package `mistralai`
    "eos": END_TURN, "eos_token": END_TURN,  # Together; Hugging Face TGI
    "stop_sequence": STOP_SEQUENCE,  # Hugging Face TGI
    "repetition": MAX_TOKENS,  # vLLM broke off a loop, where it was asked to watch for one (BerriAI/litellm#27101)
    "end_turn": END_TURN, "max_tokens": MAX_TOKENS, "tool_use": TOOL_USE,  # gateways to Anthropic
}  # fmt: skip
"""Finish reason of a choice -> canonical stop reason. Others are kept as they are (`cortex.values.endings`)."""

_BROKEN_OFF: Final = frozenset({"error", "insufficient_system_resource", "abort"})
"""Finish reasons of an answer that the server broke off: OpenRouter; DeepSeek
(https://api-docs.deepseek.com/api/create-chat-completion); vLLM and SGLang."""


Empty = Annotated[list[Any], msgspec.Meta(max_length=0)]
"""Type of a list that holds nothing."""


class _Text(msgspec.Struct, gc=False, kw_only=True):
    content: str
    refusal: None = None
    tool_calls: Empty | None = None
    function_call: None = None
    reasoning_content: Literal[""] | None = None
    reasoning: Literal[""] | None = None


class _TextChoice(msgspec.Struct, gc=False, kw_only=True):
    message: _Text
    logprobs: None = None
    finish_reason: Literal["stop", "length"]
    stop_reason: int | None = None


class CachedTokens(msgspec.Struct, gc=False):
    """Tokens of a prompt that were read from a cache or written to it, as a server details them."""

    cached_tokens: Count | None = None
    cache_write_tokens: Count | None = None


class _TextUsage(msgspec.Struct, gc=False):
    prompt_tokens: CountFromOne
    completion_tokens: CountFromOne
    total_tokens: int
    prompt_tokens_details: CachedTokens | None = None
    prompt_cache_hit_tokens: Count | None = None
    cached_tokens: Count | None = None


class _TextCompletion(msgspec.Struct, gc=False, kw_only=True):
    """Completion of a text alone, whose tokens are counted: most completions. vLLM lists no tools where there are none
    (`tool_calls=[]`, vllm-project/vllm#11786).

    The fields, here and within, stand as OpenAI sends them: the decoder looks for each behind the one before.
    """

    id: str
    model: str
    choices: tuple[_TextChoice]
    usage: _TextUsage


_THINK: Final = "<think>"
_THOUGHT: Final = "</think>"
_THINK_WITHIN: Final = 16
"""Characters at the beginning of a text among which the first tag stands, behind line breaks."""

_text_completion: Final = msgspec.json.Decoder(_TextCompletion).decode
_encode: Final = msgspec.json.Encoder().encode


def read_completion(body: bytes, charset: str = "") -> Reply:
    """Return the completion in `body` as a canonical reply. `charset`: the one that its content type names. That of a
    text alone is put together from its pieces (fast path), equal to the long way, byte for byte, by test.

    Raises UnreadableAnswer for an answer without a content that can be read, UnreadableResponse for a body that is no
    JSON, and StreamError for one that names an error: OpenRouter answers so with status 200
    (https://openrouter.ai/docs/api/reference/errors-and-debugging).
    """
    try:
        found = _text_completion(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_any(body, charset)
    choice, counts = found.choices[0], found.usage
    text, given, written, read, kept = choice.message.content, counts.prompt_tokens, counts.completion_tokens, 0, 0
    if (details := counts.prompt_tokens_details) is not None:
        read, kept = details.cached_tokens or 0, details.cache_write_tokens or 0
    read = read or counts.prompt_cache_hit_tokens or counts.cached_tokens or 0
    fresh = given - read - kept
    if not text or not found.id or _THINK in text[:_THINK_WITHIN]:
        return _read_any(body, charset)
    if fresh < 0 or given + written != counts.total_tokens:
        return _read_any(body, charset)
    return text_reply(found.id, found.model, text, STOP_REASONS[choice.finish_reason], fresh, written, read, kept)


def text_reply(
    name: str, model: str, text: str, reason: str, given: int, written: int, read: int = 0, kept: int = 0
) -> Reply:
    """Return the reply of a text alone, put together from its pieces. Counts of tokens: `given` in the prompt,
    `written` by the model, `read` from a cache, and `kept` in one."""
    return Reply(
        b'{"id":%b,"type":"message","role":"assistant","model":%b,"content":[{"type":"text","text":%b}],'
        b'"stop_reason":"%b","stop_sequence":null,"usage":{"input_tokens":%d,"cache_read_input_tokens":%d,'
        b'"cache_creation_input_tokens":%d,"output_tokens":%d}}'
        % (_encode(name), _encode(model), _encode(text), reason.encode(), given, read, kept, written),
        reason, model, Usage(given, written, read, kept),
    )  # fmt: skip


def _read_any(body: bytes, charset: str) -> Reply:
    """Return any completion as a canonical reply, as `read_completion` does."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = msgspec.json.decode(plain_value(body, charset, "choices"))
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, dict):
        raise UnreadableAnswer(f"the answer is no completion: {type(found).__name__}, no object")
    choices = found.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        if found.get("error"):
            raise StreamError(found["error"])
        raise UnreadableAnswer(f"the answer is no completion: it has no choices, but {', '.join(list(found)[:8])}")
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict):
        raise UnreadableAnswer("the answer is no completion: its choice holds no message")
    reason = choice.get("finish_reason")
    reason = reason if isinstance(reason, str) else ""
    content, refused = _content(message, cut=reason == "length")
    if reason in _BROKEN_OFF:
        error = choice.get("error") or {"message": f"the server broke the answer off ({reason})"}
        raise StreamError(error, bool(content))
    stop_reason = STOP_REASONS.get(reason, reason)
    if refused:
        stop_reason = REFUSAL
    elif stop_reason == END_TURN:
        if any(block["type"] == "tool_use" for block in content):
            stop_reason = TOOL_USE  # a forced tool ends with `stop` at OpenAI
        elif isinstance(choice.get("stop_reason"), str):
            stop_reason = STOP_SEQUENCE  # vLLM names the sequence there
    usage = usage_of(found, bool(content))
    logprobs = canonical_logprobs(choice.get("logprobs"), _text_of(content))
    return reply_of(content, stop_reason, name_in(found.get("model")), usage, name_in(found.get("id")), logprobs)


def with_whole(reply: Reply, body: bytes, field: str = COMPLETION) -> Reply:
    """Return the reply with the completion it was read from, for a request that was written in the form of chat
    completions; without it where the completion is no plain JSON, and had to be mended."""
    try:
        if type(msgspec.json.decode(body)) is not dict:
            return reply
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return reply
    return Reply(with_completion(reply.body, body.strip(), field), reply.stop_reason, reply.model, reply.usage)


def refusal(model: str, why: str, usage: Usage = UNKNOWN_USAGE) -> Reply:
    """Return the reply to a prompt that a filter of the provider's declined."""
    return reply_of([{"type": "text", "text": why}] if why else [], REFUSAL, model, usage, "")


def reply_of(
    content: list[dict[str, Any]], stop_reason: str, model: str, usage: Usage, name: str,
    logprobs: list[Any] | None = None,
) -> Reply:  # fmt: skip
    """Return the canonical reply of these parts. Half a surrogate pair becomes the replacement character."""
    facts: dict[str, Any] = {"stop_reason": stop_reason, "model": model, "name": name, "logprobs": logprobs}
    try:
        return canonical_reply(content, usage=usage, **facts)
    except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot hold
        content, facts = msgspec.json.decode(json_bytes([content, facts]))
        return canonical_reply(content, usage=usage, **facts)


def _text_of(content: list[dict[str, Any]]) -> str:
    return "".join(block["text"] for block in content if block["type"] == "text")


def name_in(value: Any) -> str:
    """Return a text; empty for any other value."""
    return value if isinstance(value, str) else ""


def _content(message: Mapping[str, Any], cut: bool) -> tuple[list[dict[str, Any]], bool]:
    """Return the blocks of a message, and whether it is a refusal. `cut`: its end is missing."""
    blocks: list[dict[str, Any]] = []
    thoughts, text, refused = "", "", ""
    content = message.get("content")
    if isinstance(content, str):
        thoughts = _thoughts_alone(content)
        text = "" if thoughts else content
    elif isinstance(content, list):
        thoughts, text, refused = _parts(content)
    elif content is not None:
        text = json_bytes(content).decode()
    said = next((message[name] for name in ("reasoning_content", "reasoning") if message.get(name)), "")
    thoughts = said if isinstance(said, str) and said else thoughts
    if isinstance(message.get("refusal"), str):
        refused = refused or message["refusal"]
    if thoughts:
        blocks.append({"type": "thinking", "thinking": thoughts, "signature": ""})
    if text or refused:
        blocks.append({"type": "text", "text": text or refused})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        for at, call in enumerate(calls):
            if isinstance(call, dict):
                use = _tool_use(call, at, cut)
                blocks += [*signature_block(use["id"], call.get("extra_content")), use]
    elif isinstance(message.get("function_call"), dict):
        blocks.append(_tool_use({"function": message["function_call"]}, 0, cut))
    return blocks, bool(refused)


def _thoughts_alone(text: str) -> str:
    """Return the thoughts of a text that holds nothing else; empty for any other text, which is kept to the letter.

    A server without a parser for its model's thoughts leaves them in the content, between tags
    (https://docs.vllm.ai/en/stable/features/reasoning_outputs, deepseek-ai/DeepSeek-R1#23). Alone they are no answer.
    """
    thoughts, rest = "", text.strip()
    while rest.startswith(_THINK):
        end = rest.find(_THOUGHT)
        if end < 0:
            return ""
        thoughts += rest[len(_THINK) : end]
        rest = rest[end + len(_THOUGHT) :].lstrip()
    return thoughts if not rest else ""


def _parts(parts: list[Any]) -> tuple[str, str, str]:
    """Return thoughts, text and refusal of a content that is a list of parts."""
    found = {"thinking": "", "text": "", "refusal": ""}
    for part in parts:
        if isinstance(part, str):
            found["text"] += part
        elif isinstance(part, dict):
            kind = name_in(part.get("type", "text"))
            value = part.get(kind)
            if isinstance(value, list):  # Mistral's thoughts are parts again
                value = _parts(value)[1]
            if kind in found and isinstance(value, str):
                found[kind] += value
    return found["thinking"], found["text"], found["refusal"]


def _tool_use(call: Mapping[str, Any], at: int, cut: bool) -> dict[str, Any]:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    name = name_in(call.get("id")) or f"call_{at}"
    return {"type": "tool_use", "id": name, "name": name_in(function.get("name")),
            "input": input_of(function.get("arguments"), cut)}  # fmt: skip


def input_of(arguments: Any, cut: bool) -> Any:
    """Return the input of a tool: an object where it can be read, numbers to the digit; of a reply that was cut its
    whole parts; else the text as it came, so that whoever reads it asks for another reply."""
    if not isinstance(arguments, str):
        return {} if arguments is None else msgspec.Raw(json_bytes(arguments))
    text = arguments.strip()
    if not text:
        return {}
    said = utf8(text)
    try:
        found = msgspec.json.decode(said)
    except (msgspec.DecodeError, RecursionError):
        return tool_input(text) if cut else arguments
    return msgspec.Raw(msgspec.json.format(said, indent=-1)) if isinstance(found, dict) else arguments


# -- usage -----------------------------------------------------------------------------------------------------------


def usage_of(found: Mapping[str, Any], has_content: bool) -> Usage:
    """Return the usage of a completion in the canonical form; `UNKNOWN_USAGE` where a count is missing or impossible.

    Tokens that were read from a cache or written to it are taken out of those of the prompt. Output is what is left of
    the total, where that is more than `completion_tokens`: reasoning that is counted nowhere else.
    """
    reported = found.get("usage")
    if not isinstance(reported, dict):
        return UNKNOWN_USAGE
    details = reported.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    read = next(filter(None, (count_of(value) for value in (
        details.get("cached_tokens"), reported.get("prompt_cache_hit_tokens"), reported.get("cached_tokens"),
    ))), 0)  # fmt: skip
    return split_usage(
        reported.get("prompt_tokens"), reported.get("completion_tokens"), reported.get("total_tokens"),
        read, details.get("cache_write_tokens"), has_content,
    )  # fmt: skip


def split_usage(prompt: Any, output: Any, total: Any, read: Any, written: Any, has_content: bool) -> Usage:
    """Return the usage of counts in which cached tokens are part of the prompt's, as `usage_of` says."""
    prompt, output, total = count_of(prompt), count_of(output), count_of(total)
    if prompt is None or output is None:
        return UNKNOWN_USAGE
    if total is not None and total - prompt > output:
        output = total - prompt
    read = min(count_of(read) or 0, prompt)
    written = min(count_of(written) or 0, prompt - read)
    return plausible(Usage(prompt - read - written, output, read, written), has_content)
