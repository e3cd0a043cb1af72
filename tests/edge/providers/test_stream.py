"""A streamed message becomes the bytes of the unstreamed one, however the stream is cut into chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.providers.messages.response import read_reply
from actors.providers.messages.sse import StreamAssembler
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.values.reply import Usage
from tests.edge.support.scripted_http_server import MESSAGE, compact, streamed


def events_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """How a provider streams this message: each text in pieces of three characters."""
    start = message | {"content": [], "stop_reason": None, "usage": message["usage"] | {"output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        opened, deltas = _opened(block)
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    usage = {"output_tokens": message["usage"]["output_tokens"], "input_tokens": None}
    return [*events, {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    def pieces(text: str) -> list[str]:
        return [text[at : at + 3] for at in range(0, len(text), 3)]

    match block["type"]:
        case "text":
            texts = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            cited = [{"type": "citations_delta", "citation": citation} for citation in block.get("citations") or ()]
            return block | {"text": ""} | ({"citations": []} if cited else {}), texts + cited
        case "thinking":
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*thoughts, signed]
        case "tool_use":
            spaced = json.dumps(block["input"], indent=1, ensure_ascii=False)  # the model's own layout
            parts = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces(spaced)]]
            return block | {"input": {}}, parts
    return block, []


RICH: dict[str, Any] = MESSAGE | {
    "content": [
        {"type": "thinking", "thinking": "let me see", "signature": "c2lnbmVk"},
        {"type": "text", "text": 'a "quoted" word\nand é 😀', "citations": [{"a": 1}, {"b": [2]}]},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "look",
            "input": {"q": "x", "n": 1.0, "deep": [None, {"é": 12345678901234567890123}]},
        },
        {"type": "tool_use", "id": "toolu_2", "name": "none", "input": {}},
        {"type": "server_result", "content": [{"type": "found", "url": "http://x"}]},
        {"type": "text", "text": ""},
    ],
    "stop_reason": "tool_use",
    "container": {"id": "c"},
}


def assembled(text: bytes, size: int = 0) -> bytes:
    assembler = StreamAssembler()
    for at in range(0, len(text), size or len(text)):
        assembler.feed(text[at : at + (size or len(text))])
    return assembler.message()


@pytest.mark.parametrize("message", [MESSAGE, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 100])
def test_the_bytes_are_those_of_the_unstreamed_message(message: dict[str, Any], size: int) -> None:
    text = streamed(events_of(message))
    assert assembled(text, size) == compact(message)
    assert assembled(text.replace(b"\n", b"\r\n"), size) == compact(message)


def test_every_cut_is_noticed() -> None:
    text = streamed(events_of(RICH))
    whole = text.index(b"\n", text.index(b'"message_delta"')) - 1  # the stop reason's event proves the message whole
    for cut in range(whole):
        with pytest.raises(UnreadableResponse, match="cut"):
            assembled(text[:cut] or b":")


def test_what_is_new_to_us_is_kept_or_passed_over() -> None:
    events = events_of(MESSAGE)
    events[2:2] = [{"type": "weather", "sunny": True}]
    events[4:4] = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "mood_delta", "mood": "go", "level": 3}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "mood_delta", "mood": "od", "level": 4}},
    ]
    events[-2] |= {"context_management": {"edits": []}}
    events[-2]["delta"] |= {"stop_details": None, "container": {"id": "c"}}
    comment = b": a comment\nid: 7\nretry: 10\n\n"
    answer = json.loads(assembled(comment + streamed(events)))
    block = MESSAGE["content"][0] | {"mood": "good", "level": 4}
    assert answer == MESSAGE | {"content": [block], "container": {"id": "c"}, "context_management": {"edits": []}}


def test_an_event_may_stand_on_several_data_lines() -> None:
    text = streamed(events_of(MESSAGE)).replace(b'"index":0,', b'"index":0,\ndata: ')
    assert assembled(text) == compact(MESSAGE)


def test_a_tool_input_cut_at_max_tokens_keeps_what_there_is() -> None:
    events = events_of(
        MESSAGE | {"content": [{"type": "tool_use", "id": "t", "name": "n", "input": {"a": "long", "b": 2}}]}
    )
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    for event in deltas[8:]:
        events.remove(event)
    assert json.loads(assembled(streamed(events)))["content"][0]["input"] == {"a": "long"}


def test_counts_in_the_end_replace_those_of_the_start_where_given() -> None:
    reply = read_reply(assembled(streamed(events_of(MESSAGE))))
    assert reply.usage == read_reply(compact(MESSAGE)).usage
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 2)


def test_an_error_event_is_told_with_its_words() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    text = streamed([*events_of(MESSAGE)[:4], {"type": "error", "error": error}])
    with pytest.raises(StreamError) as caught:
        assembled(text)
    assert caught.value.error == error


@pytest.mark.parametrize(
    "text",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b'data: {"no":"type"}\n\n',
        b"data: \xff\xfe\n\n",
        b'data: {"type":"message_start","message":7}\n\n',
        b'data: {"type":"message_start"}\n\n',
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}\n\n',
        b'data: {"type":"message_delta","delta":{},"usage":{}}\n\n',
        b'data: {"type":"message_stop"}\n\n',
        b"<html>\n\n</html>\n\n",
    ],
)
def test_what_is_no_stream_of_a_message_is_named(text: bytes) -> None:
    with pytest.raises(UnreadableResponse) as caught:
        assembled(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"type": "error"}, "type"),
        ({"role": "user"}, "role"),
        ({"stop_reason": None}, "stop_reason"),
        ({"content": None}, "content"),
        ({"content": [{"text": "x"}]}, "type"),
        ({"content": [{"type": "text"}]}, "text"),
        ({"content": [{"type": "text", "text": 7}]}, "text"),
        ({"usage": {"input_tokens": 1}}, "output_tokens"),
        ({"usage": {"input_tokens": -1, "output_tokens": 1}}, "input_tokens"),
        ({"model": None}, "model"),
    ],
)
def test_a_message_without_what_is_relied_on_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UnreadableResponse, match=why):
        read_reply(compact(MESSAGE | change))


def test_what_was_written_to_the_cache_for_an_hour_is_told_apart() -> None:
    written = {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2}
    nonsense: list[Any] = [None, {}, [], 7, {"ephemeral_1h_input_tokens": None}, {"ephemeral_1h_input_tokens": -1}]
    for split, hour in ((written, 2), *((each, 0) for each in nonsense)):
        reply = read_reply(compact(MESSAGE | {"usage": MESSAGE["usage"] | {"cache_creation": split}}))
        assert reply.usage == Usage(10, 2, 4, 3, hour)


def test_a_reply_is_kept_to_the_byte() -> None:
    body = compact(MESSAGE).replace(b":10,", b": 10 , ")
    assert read_reply(body).body == body
    assert read_reply(json.dumps(MESSAGE, indent=2, ensure_ascii=False).encode()).body == compact(MESSAGE)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", compact(MESSAGE)[:-1], compact(MESSAGE | {"x": "?"}).replace(b"?", b"\xff")]
)
def test_bytes_that_are_no_json_message_are_refused(body: bytes) -> None:
    with pytest.raises(UnreadableResponse):
        read_reply(body)


def test_a_refusal_is_a_reply() -> None:
    reply = read_reply(compact(MESSAGE | {"stop_reason": "refusal", "content": []}))
    assert (reply.stop_reason, reply.text) == ("refusal", "")
