"""Responses of servers and gateways that hold an answer with a flaw beside it, and what becomes of each.

Each shape names the report that it was made from, as REPOSITORY#NUMBER on GitHub, or a specification.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from cortex.values.bounds.counts import COUNT_MAX
from cortex.values.endings import Ending
from cortex.values.reply import UNKNOWN_USAGE, Usage
from policies.failures.failure import FailureKind
from tests.edge.providers.test_stream import events_of
from tests.edge.support.scripted_http_server import MESSAGE, Answer, chunked, compact, http, streamed

TEXT = MESSAGE["content"][0]["text"]
KNOWN = Usage(10, 2, 4, 3)
BOM = b"\xef\xbb\xbf"


class Shape(NamedTuple):
    """Response, and its fate: a reply that is kept, or a failure."""

    name: str
    source: str
    answer: Answer
    text: str | None = TEXT
    """Text of the reply; None: a failure."""
    usage: Usage = KNOWN
    ending: Ending = Ending.WHOLE
    kind: FailureKind = FailureKind.UNREADABLE
    """Kind of the failure."""
    streams: bool = False


def without(*names: str, **changed: Any) -> dict[str, Any]:
    """Return the message without these fields, and with others changed."""
    return {name: value for name, value in MESSAGE.items() if name not in names} | changed


def counts(**changed: Any) -> dict[str, Any]:
    """Return the message with other counts."""
    return MESSAGE | {"usage": MESSAGE["usage"] | changed}


def raw(**changed: bytes) -> bytes:
    """Return the message with fields whose JSON text is given."""
    body = compact(MESSAGE | {name: f"<{name}>" for name in changed})
    for name, text in changed.items():
        body = body.replace(f'"<{name}>"'.encode(), text)
    return body


def blocks(*content: Any) -> dict[str, Any]:
    """Return the message with another content."""
    return MESSAGE | {"content": list(content)}


def text(said: Any = TEXT) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": said}


def stream(events: Sequence[dict[str, Any]], before: bytes = b"", after: bytes = b"") -> Answer:
    """Return a streamed response."""
    return chunked(before + streamed(events) + after)


EVENTS = events_of(MESSAGE)
START, PING, OPENED, *DELTAS, CLOSED, DELTA, STOP = EVENTS
NULLS: dict[str, Any] = {"input_tokens": None, "output_tokens": None}
OPENAI = {
    "id": "chatcmpl-1", "object": "chat.completion", "model": "m", "usage": {"prompt_tokens": 10, "completion_tokens": 2},
    "choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}],
}  # fmt: skip
OLLAMA = {"model": "m", "message": {"role": "assistant", "content": TEXT}, "done": True, "done_reason": "stop"}
UNSET, CUT, EMPTY = Ending.UNKNOWN, Ending.CUT, Ending.EMPTY
LITELLM, PI = "BerriAI/litellm#11920", "earendil-works/pi#6567"


PLAIN = [
    # usage
    Shape("usage absent", "Alishahryar1/free-claude-code#209", http(without("usage")), usage=UNKNOWN_USAGE),
    Shape("usage null", LITELLM, http(MESSAGE | {"usage": None}), usage=UNKNOWN_USAGE),
    Shape("usage empty", LITELLM, http(MESSAGE | {"usage": {}}), usage=UNKNOWN_USAGE),
    Shape("usage is a list", LITELLM, http(MESSAGE | {"usage": []}), usage=UNKNOWN_USAGE),
    Shape("counts null", "anomalyco/opencode#44102", http(counts(**NULLS)), usage=UNKNOWN_USAGE),
    Shape("input null", "anomalyco/opencode#44102", http(counts(input_tokens=None)), usage=UNKNOWN_USAGE),
    Shape("counts are floats", "philschmid/easyllm#40", http(counts(input_tokens=10.0, output_tokens=2.0))),
    Shape("a count is no whole number", "BerriAI/litellm#28024", http(counts(output_tokens=2.25)), usage=UNKNOWN_USAGE),
    Shape("counts are texts", "philschmid/easyllm#40", http(counts(input_tokens="10", output_tokens="2"))),
    Shape("a count is no number", LITELLM, http(counts(output_tokens="two")), usage=UNKNOWN_USAGE),
    Shape("a count is true", LITELLM, http(counts(output_tokens=True)), usage=UNKNOWN_USAGE),
    Shape("a count is negative", "BerriAI/litellm#26672", http(counts(output_tokens=-1)), usage=UNKNOWN_USAGE),
    Shape("a count beyond 64 bits", LITELLM, http(counts(input_tokens=10**30)), usage=UNKNOWN_USAGE),
    Shape("a count of 5,000 digits", LITELLM, http(raw(usage=b'{"input_tokens":1' + b"0" * 5_000 + b"}")), usage=UNKNOWN_USAGE),
    Shape("a count beyond belief", LITELLM, http(counts(output_tokens=COUNT_MAX + 1)), usage=UNKNOWN_USAGE),
    Shape("a count is NaN", LITELLM, http(raw(usage=b'{"input_tokens":NaN,"output_tokens":2}')), usage=UNKNOWN_USAGE),
    Shape("a cached count is a text", LITELLM, http(counts(cache_read_input_tokens="none")), usage=UNKNOWN_USAGE),
    Shape("counts of 0", "archestra-ai/archestra#5914", http(MESSAGE | {"usage": {"input_tokens": 0, "output_tokens": 0}}), usage=UNKNOWN_USAGE),
    Shape("an output of 0 with text", "musistudio/claude-code-router#1587", http(counts(output_tokens=0)), usage=UNKNOWN_USAGE),
    Shape("OpenAI's counts", "Portkey-AI/gateway#257", http(MESSAGE | {"usage": OPENAI["usage"]}), usage=UNKNOWN_USAGE),
    # the rest of the message
    Shape("stop reason absent", "anthropics/claude-code#1546", http(without("stop_reason")), ending=UNSET),
    Shape("stop reason null", "anthropics/claude-code#1546", http(MESSAGE | {"stop_reason": None}), ending=UNSET),
    Shape("stop reason empty", "anthropics/claude-code#1546", http(MESSAGE | {"stop_reason": ""}), ending=UNSET),
    Shape("stop reason of nobody", "langchain-ai/langchain#39008", http(MESSAGE | {"stop_reason": "eos"}), ending=UNSET),
    Shape("stop reason is a number", "langchain-ai/langchain#39008", http(MESSAGE | {"stop_reason": 0}), ending=UNSET),
    Shape("OpenAI's stop reason", "vllm-project/vllm#47313", http(MESSAGE | {"stop_reason": "length"}), ending=CUT),
    Shape("model absent", "BerriAI/litellm#27492", http(without("model"))),
    Shape("model null", "BerriAI/litellm#27492", http(MESSAGE | {"model": None})),
    Shape("type absent", "praxis-proxy/ai#940", http(without("type"))),
    Shape("type of another API", "praxis-proxy/ai#940", http(MESSAGE | {"type": "chat.completion"})),
    Shape("role absent", "praxis-proxy/ai#940", http(without("role"))),
    Shape("role of another API", "praxis-proxy/ai#940", http(MESSAGE | {"role": "model"})),
    Shape("all but the content absent", "praxis-proxy/ai#940", http({"content": MESSAGE["content"]}), usage=UNKNOWN_USAGE, ending=UNSET),
    Shape("an error beside the answer", "praxis-proxy/ai#940", http(without("type", error={"type": "x", "message": "y"}))),
    # content
    Shape("content is a text", "stacklok/codegate#799", http(MESSAGE | {"content": TEXT})),
    Shape("content is one block", "stacklok/codegate#799", http(MESSAGE | {"content": [TEXT, text("!")]}), TEXT + "!"),
    Shape("content null", "SaladDay/cc-switch-cli#323", http(MESSAGE | {"content": None}), "", ending=EMPTY),
    Shape("an unknown block", "https://docs.claude.com/en/api/versioning", http(blocks({"type": "mood", "x": [1]}, text()))),
    Shape("a block without a type", "HKUDS/nanobot#3993", http(blocks({"text": TEXT}))),
    Shape("a block null", "HKUDS/nanobot#3993", http(blocks(None, text()))),
    Shape("thinking without a signature", "QuantumNous/new-api#4763", http(blocks({"type": "thinking", "thinking": "x", "text": None}, text()))),
    Shape("a text block without text", "labring/aiproxy#604", http(blocks({"type": "text"}, text()))),
    Shape("a text null", "labring/aiproxy#604", http(blocks(text(None))), "", ending=EMPTY),
    Shape("a text that is a number", "labring/aiproxy#604", http(blocks(text(7))), "7"),
    Shape("a text that is an object", "labring/aiproxy#604", http(blocks(text({"a": "é"}))), '{"a": "é"}'),
    Shape("half a surrogate pair", "UKGovernmentBEIS/inspect_ai#3802", http(raw(content=b'[{"type":"text","text":"half \\ud83d"}]')), "half \ufffd"),
    Shape("half a pair elsewhere", "agent0ai/agent-zero#1773", http(raw(id=b'"\\udc97"'))),
    Shape("a raw control character", "RFC 8259, 7", http(raw(content=b'[{"type":"text","text":"a\nb"}]')), "a\nb"),
    # around the message
    Shape("text/plain", "ollama/ollama#12879", http(MESSAGE, content_type="text/plain; charset=utf-8")),
    Shape("text/html", "ollama/ollama#12879", http(MESSAGE, content_type="text/html")),
    Shape("no content type", "anthropics/anthropic-sdk-ruby#208", http(MESSAGE, content_type="")),
    Shape("octet stream", "anthropics/anthropic-sdk-ruby#208", http(MESSAGE, content_type="application/octet-stream")),
    Shape("JSON as a stream", "bionic-gpt/bionic-gpt#500", http(MESSAGE, content_type="text/event-stream")),
    Shape("a byte order mark", "schemathesis/schemathesis#1563", http(BOM + compact(MESSAGE))),
    Shape("a mark and text/plain", "schemathesis/schemathesis#1563", http(BOM + compact(MESSAGE), content_type="text/plain")),
    Shape("UTF-16", "aacerox/node-rest-client#197", http(json.dumps(MESSAGE, ensure_ascii=False).encode("utf-16"))),
    Shape("Latin-1 with its name", "RFC 8259, 8.1", http(compact(blocks(text("é"))).replace("é".encode(), b"\xe9"), content_type="application/json; charset=latin-1"), "é"),
    Shape("a byte that is not UTF-8", "RFC 8259, 8.1", http(compact(blocks(text("?"))).replace(b"?", b"\xe9")), "\ufffd"),
    Shape("blanks before", "jundot/omlx#2066", http(b" " * 40 + b"\n" + compact(MESSAGE))),
    Shape("a second object behind", "BerriAI/litellm#3646", http(compact(MESSAGE) + b'\n{"done":true}')),
    Shape("words behind", "cdhowie/Bitcoin-mining-proxy#44", http(compact(MESSAGE) + b"\r\n\r\ndata: [DONE]\n\n")),
    Shape("gzip without a word", "RFC 9110, 8.4", http(gzip.compress(compact(MESSAGE)))),
    Shape("cut behind the content", "NVIDIA/TensorRT-LLM#18289", http(compact(MESSAGE)[:-9]), usage=UNKNOWN_USAGE),
    Shape("a list around", "Azure and Google put a list around streams", http(b"[" + compact(MESSAGE) + b"]")),
    Shape("an object around", "BerriAI/litellm#12670", http({"code": 0, "data": MESSAGE})),
    Shape("a text around", "https://docs.aws.amazon.com/lambda/latest/dg/services-apigateway.html", http({"statusCode": 200, "body": json.dumps(MESSAGE)})),
    Shape("OpenAI's form", "SillyTavern/SillyTavern#5128", http(OPENAI), usage=UNKNOWN_USAGE),
    Shape("Ollama's form", "coasys/ad4m#1001", http(OLLAMA), usage=UNKNOWN_USAGE),
    Shape("a stream that nobody asked for", "mattpocock/sandcastle#568", stream(EVENTS)),
    Shape("a stream as JSON", "mattpocock/sandcastle#568", http(streamed(EVENTS))),
    # no answer
    Shape("content absent", "mattpocock/sandcastle#568", http(without("content")), None),
    Shape("an echo of the request", "mattpocock/sandcastle#568", http(MESSAGE | {"role": "user"}), None),
    Shape("content is a number", "mattpocock/sandcastle#568", http(MESSAGE | {"content": 7}), None),
    Shape("cut in the content", "liushuangls/go-anthropic#128", http(compact(MESSAGE)[:110]), None),
    Shape("a comma too many", "RFC 8259, 4", http(compact(MESSAGE)[:-1] + b",}"), None),
    Shape("a quote too few", "RFC 8259, 7", http(compact(MESSAGE).replace(b'"type"', b'type"', 1)), None),
    Shape("an empty object", "mattpocock/sandcastle#568", http({}), None),
    Shape("null", "mattpocock/sandcastle#568", http(b"null"), None),
    Shape("too deep", "mattpocock/sandcastle#568", http(b'{"content":' + b"[" * 100_000), None),
    Shape("an error", "Helicone/helicone#4678", http({"type": "error", "error": {"type": "overloaded_error", "message": "x"}}), None, kind=FailureKind.OVERLOADED),
    Shape("an error behind a mark", "Helicone/helicone#4678", http(BOM + compact({"type": "error", "error": {"type": "overloaded_error", "message": "x"}})), None, kind=FailureKind.OVERLOADED),
    Shape("a page", "ramnes/notion-sdk-py#119", http(b"<!DOCTYPE html>", content_type="text/html"), None, kind=FailureKind.TRANSIENT),
    Shape("a page as JSON", "adminsyspro/proxcenter-ui#314", http(b"<!DOCTYPE html>"), None, kind=FailureKind.TRANSIENT),
    Shape("nothing", "mattpocock/sandcastle#568", http(b""), None, kind=FailureKind.TRANSIENT),
    Shape("words", "Significant-Gravitas/AutoGPT#944", http(b"upstream request timeout"), None, kind=FailureKind.TRANSIENT),
]  # fmt: skip

NO_USAGE = {name: value for name, value in START["message"].items() if name != "usage"}
UNTYPED = [START, OPENED, *({k: v for k, v in each.items() if k != "type"} for each in DELTAS), CLOSED, DELTA, STOP]
LATE_ERROR = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}

STREAMS = [
    Shape(name, source, answer, *rest, streams=True, **more)
    for name, source, answer, rest, more in [
        ("usage nowhere", PI, stream([START | {"message": NO_USAGE}, OPENED, *DELTAS, CLOSED, DELTA | {"usage": None}, STOP]), (TEXT, UNKNOWN_USAGE), {}),
        ("usage at the start alone", PI, stream([START, OPENED, *DELTAS, CLOSED, {"type": "message_delta", "delta": DELTA["delta"]}, STOP]), (TEXT, UNKNOWN_USAGE), {}),
        ("usage at the end alone", "envoyproxy/ai-gateway#2290", stream([START | {"message": NO_USAGE}, OPENED, *DELTAS, CLOSED, DELTA | {"usage": MESSAGE["usage"]}, STOP]), (TEXT,), {}),
        ("usage in the delta", "fumito-ito/AnthropicSwiftSDK#7", stream([START, OPENED, *DELTAS, CLOSED, {"type": "message_delta", "delta": DELTA["delta"] | {"usage": {"output_tokens": 2}}}, STOP]), (TEXT,), {}),
        ("usage of 0 at the start", "vercel/ai#17326", stream([START | {"message": START["message"] | {"usage": {"input_tokens": 0, "output_tokens": 0}}}, OPENED, *DELTAS, CLOSED, DELTA | {"usage": MESSAGE["usage"]}, STOP]), (TEXT,), {}),
        ("usage in a second delta", "musistudio/claude-code-router#1587", stream([START, OPENED, *DELTAS, CLOSED, DELTA | {"usage": None}, {"type": "message_delta", "usage": {"output_tokens": 2}}, STOP]), (TEXT,), {}),
        ("no message_stop", "tombii/better-ccflare#307", stream(EVENTS[:-1]), (TEXT,), {}),
        ("pings in place of message_stop", "tombii/better-ccflare#307", [*chunked(streamed([*EVENTS[:-1], PING]), end=False)], (TEXT,), {}),
        ("no message_delta", "musistudio/claude-code-router#1587", stream([*EVENTS[:-2], STOP]), (TEXT, UNKNOWN_USAGE, UNSET), {}),
        ("[DONE] behind", "ihsan-ramadhan/bansos-router#3", stream(EVENTS, after=b"data: [DONE]\n\n"), (TEXT,), {}),
        ("[DONE] at the end", "theopenco/llmgateway#927", stream(EVENTS[:-1], after=b"data: [DONE]\n\n"), (TEXT,), {}),
        ("[DONE] alone", "theopenco/llmgateway#927", stream(EVENTS[:-2], after=b"data: [DONE]\n\n"), (TEXT, UNKNOWN_USAGE, UNSET), {}),
        ("a byte order mark", "https://html.spec.whatwg.org/multipage/server-sent-events.html", stream(EVENTS, before=BOM), (TEXT,), {}),
        ("comments", "MacPaw/OpenAI#243", stream(EVENTS, before=b": OPENROUTER PROCESSING\n\n"), (TEXT,), {}),
        ("comments as data", "mnfst/llm-gateway#2053", stream(EVENTS, before=b"data: : OPENROUTER PROCESSING\n\n"), (TEXT,), {}),
        ("pings and unknown events", "https://docs.claude.com/en/docs/build-with-claude/streaming", stream([START, PING, {"type": "weather"}, *EVENTS[2:]]), (TEXT,), {}),
        ("no event lines", PI[:17] + "#1983", chunked(b"".join(b"data: " + compact(each) + b"\n\n" for each in EVENTS)), (TEXT,), {}),
        ("no types in the data", "openclaw/openclaw#37571", chunked(b"".join(b"event: " + each["type"].encode() + b"\ndata: " + compact({k: v for k, v in each.items() if k != "type"}) + b"\n\n" for each in EVENTS)), (TEXT,), {}),
        ("no content_block_start", "labring/aiproxy#604", stream([START, *DELTAS, DELTA, STOP]), (TEXT,), {}),
        ("a block without its text", "labring/aiproxy#604", stream([START, OPENED | {"content_block": {"type": "text"}}, *DELTAS, CLOSED, DELTA, STOP]), (TEXT,), {}),
        ("no message_start", "seifghazi/claude-code-proxy#32", stream([OPENED, *DELTAS, CLOSED, DELTA | {"usage": MESSAGE["usage"]}, STOP]), (TEXT,), {}),
        ("no index", "openclaw/openclaw#37571", stream([{k: v for k, v in each.items() if k != "index"} for each in EVENTS]), (TEXT,), {}),
        ("two marks of the end", "vllm-project/semantic-router#1941", stream([*EVENTS, STOP]), (TEXT,), {}),
        ("lines ended by CR", "https://html.spec.whatwg.org/multipage/server-sent-events.html", chunked(streamed(EVENTS).replace(b"\n", b"\r")), (TEXT,), {}),
        ("the last blank line missing", "BerriAI/litellm#32159", chunked(streamed(EVENTS).rstrip()), (TEXT,), {}),
        ("text/plain", "ollama/ollama#12879", chunked(streamed(EVENTS), "text/plain"), (TEXT,), {}),
        ("a pair in two halves", "agent0ai/agent-zero#1773", chunked(streamed([START, OPENED]) + b"".join(b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}}\n\n' % half for half in (b"a \\ud83d", b"\\ude00", b" \\ud83d")) + streamed([DELTA, STOP])), ("a 😀 \ufffd",), {}),
        ("an error behind the end", "vercel/ai#2457", stream([*EVENTS[:-1], LATE_ERROR]), (TEXT,), {}),
        ("a tool's input cut by the server", "BerriAI/litellm#32159", stream([START, OPENED, *DELTAS[:1]]), (None,), {}),
        ("an error behind some text", "vercel/ai#2457", stream([*EVENTS[:4], LATE_ERROR]), (None,), {"kind": FailureKind.OVERLOADED}),
        ("an event that cannot be read", "braintrustdata/braintrust-proxy#80", stream(EVENTS[:4], after=b"event: content_block_delta\ndata: {oops\n\n" + streamed(EVENTS[4:])), (None,), {}),
        ("another event that cannot be read", "braintrustdata/braintrust-proxy#80", stream(EVENTS[:4], after=b"event: weather\ndata: {'type': 'weather'}\n\n" + streamed(EVENTS[4:])), (TEXT,), {}),
    ]
]  # fmt: skip
