"""Responses become canonical replies: items, status and usage, whole or streamed. Bodies are written by hand from OpenAI's
documentation (https://platform.openai.com/docs/api-reference/responses) and the types of the package ``openai`` 3.57."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.providers.responses import response as reading
from actors.providers.responses.response import read_response, usage_of
from actors.providers.responses.stream import ResponseAssembler
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.values.endings import Ending
from cortex.values.reply import UNKNOWN_USAGE, Reply, Usage
from tests.edge.support.scripted_http_server import compact

USAGE = {
    "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}, "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13,
}  # fmt: skip
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": '{"a": 1.50}', "status": "completed"}
THOUGHT = {
    "type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "gAAA",
}  # fmt: skip
CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


def said(text: str, kind: str = "output_text", **more: Any) -> dict[str, Any]:
    part = {"type": kind, "annotations": [], "logprobs": [], "text": text} if kind == "output_text" else {"type": kind, kind: text}
    return {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part], **more}


def response(*items: Any, usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "error": None, "incomplete_details": None,
        "instructions": None, "model": "gpt", "output": list(items), "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [], "usage": usage, "store": False, **more,
    }  # fmt: skip


def blocks(body: bytes) -> list[dict[str, Any]]:
    return json.loads(body)["content"]


def test_a_plain_response() -> None:
    reply = read_response(compact(response(said("yes — é"))))
    assert (reply.text, reply.stop_reason, reply.model, reply.usage) == ("yes — é", "end_turn", "gpt", Usage(10, 3))
    assert json.loads(reply.body)["id"] == "resp_1"


def test_a_response_that_was_cut_is_an_answer_that_came_and_is_kept_if_its_output_is_whole() -> None:
    body = compact(response(said("a whole answer")))
    kept = body.index(b'"parallel_tool_calls":true') + len(b'"parallel_tool_calls":true')  # a field of which something came
    for cut in range(20, len(body)):
        if cut >= kept:
            reply = read_response(body[:cut])
            assert (reply.text, reply.stop_reason) == ("a whole answer", "end_turn"), cut
            assert reply.usage in (UNKNOWN_USAGE, Usage(10, 3)), cut
        else:
            with pytest.raises(UnreadableAnswer, match="cut before its content was whole"):
                read_response(body[:cut])


@pytest.mark.parametrize(
    ("items", "more", "stop_reason", "ending"),
    [
        ([said("a")], {}, "end_turn", Ending.WHOLE),
        ([said("a")], {"status": None}, "end_turn", Ending.WHOLE),  # a server that leaves it out
        ([said("a")], CUT, "max_tokens", Ending.CUT),
        ([THOUGHT], CUT, "max_tokens", Ending.CUT),  # all of the bound went to reasoning
        ([CALL], CUT, "max_tokens", Ending.CUT),
        ([said("a")], {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal", Ending.REFUSED),
        ([said("a")], {"status": "incomplete", "incomplete_details": {"reason": "of-tomorrow"}}, "of-tomorrow",
         Ending.UNKNOWN),
        ([said("a")], {"status": "incomplete"}, "incomplete", Ending.UNKNOWN),
        ([said("No.", "refusal")], {}, "refusal", Ending.REFUSED),
        ([], {}, "end_turn", Ending.EMPTY),
        ([THOUGHT], {}, "end_turn", Ending.EMPTY),
        ([CALL], {}, "tool_use", Ending.TOOL_USE),
        ([THOUGHT, said("I look."), CALL], {}, "tool_use", Ending.TOOL_USE),
    ],
)  # fmt: skip
def test_endings(items: list[Any], more: dict[str, Any], stop_reason: str, ending: Ending) -> None:
    reply = read_response(compact(response(*items, **more)))
    assert (reply.stop_reason, reply.ending) == (stop_reason, ending)


@pytest.mark.parametrize(
    ("items", "content"),
    [
        ([THOUGHT, said("a")], [("thinking", "hm"), ("text", "a")]),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}, said("a")], [("text", "a")]),
        ([{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}, said("a")],
         [("thinking", "hm"), ("text", "a")]),  # vLLM
        ([said("I look.", phase="commentary"), said("a", phase="final_answer")], [("thinking", "I look."), ("text", "a")]),
        ([said("I look.", phase="commentary")], [("text", "I look.")]),
        ([{"role": "assistant", "content": "a"}], [("text", "a")]),
        ([said("No.", "refusal")], [("text", "No.")]),
        ([said("\ud800")], [("text", "\ufffd")]),
        ([{"type": "of-tomorrow"}, 7, said("a")], [("text", "a")]),
    ],
)  # fmt: skip
def test_content(items: list[Any], content: list[tuple[str, str]]) -> None:
    reply = read_response(json.dumps(response(*items)).encode())
    assert [(block["type"], block[block["type"]]) for block in blocks(reply.body)] == content


def test_thoughts_are_kept_to_be_given_back_where_the_model_goes_on() -> None:
    thought, use = blocks(read_response(compact(response(THOUGHT, CALL))).body)
    assert (thought["signature"], use["id"], use["name"]) == ("rs_1:gAAA", "c1", "add")
    assert b'"input":{"a":1.50}' in read_response(compact(response(CALL))).body, "numbers stay as they are written"
    assert blocks(read_response(compact(response(THOUGHT, said("a")))).body)[0]["signature"] == ""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(10, 3)),
        (USAGE | {"input_tokens_details": {"cached_tokens": 4}}, Usage(6, 3, 4)),
        (USAGE | {"input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5}}, Usage(1, 3, 4, 5)),
        (USAGE | {"input_tokens_details": {"cached_tokens": 40}}, Usage(0, 3, 10)),
        (USAGE | {"output_tokens_details": {"reasoning_tokens": 2}}, Usage(10, 3)),  # part of the output
        (USAGE | {"total_tokens": 20}, Usage(10, 10)),  # reasoning that is counted in the total alone
        (USAGE | {"input_tokens_details": None}, Usage(10, 3)),
        (USAGE | {"input_tokens": None}, UNKNOWN_USAGE),
        (USAGE | {"output_tokens": 0, "total_tokens": 10}, UNKNOWN_USAGE),  # there is text
        (None, UNKNOWN_USAGE),
    ],
)  # fmt: skip
def test_usage(usage: Any, expected: Usage) -> None:
    assert usage_of({"usage": usage}, has_content=True) == expected


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", UnreadableResponse),
        (b"[]", UnreadableAnswer),
        (b'{"id": "resp_1"}', UnreadableAnswer),
        (b'{"choices": []}', UnreadableAnswer),
        (b'{"error": {"message": "upstream"}}', StreamError),
        (compact(response(status="failed", error={"code": "server_error", "message": "x"})), StreamError),
        (compact(response(status="failed")), StreamError),
        (compact(response(status="queued")), StreamError),
        (compact(response(status="cancelled")), StreamError),
    ],
)  # fmt: skip
def test_what_is_no_response(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error) as found:
        read_response(body)
    assert type(found.value) is error


def long_way(body: bytes) -> Reply:
    """Reply to a response that a gateway sent as the last event of its stream, which only the long way reads."""
    return read_response(b'{"response":%b}' % body)


SILENT = {"type": "reasoning", "id": "rs_1", "summary": [], "status": None}
OUTPUTS = (
    ((), True), ((SILENT,), True), ((SILENT | {"content": []},), True), ((SILENT | {"content": None, "encrypted_content": "gA"},), True),
    ((THOUGHT,), False), ((SILENT, SILENT), False), ((said("I look.", phase="commentary"),), False), ((said("b"),), False),
)  # fmt: skip
"""Items before the text of a response, and whether the fast path reads it."""


@pytest.mark.parametrize(("before", "quick"), OUTPUTS)
@pytest.mark.parametrize("text", ["a", "é\n", "\x7f", "🙂", ""])
def test_the_fast_path_reads_the_same_reply(
    before: tuple[dict[str, Any], ...], quick: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for read, kept in (0, 0), (4, None), (None, 2), (6, 4), (8, 4), (11, 0), ("4", 0), (-1, 0):
        details = {"cached_tokens": read, "cache_write_tokens": kept}
        body = compact(response(*before, said(text, phase="final_answer"), usage=USAGE | {"input_tokens_details": details}))
        slow = long_way(body)
        assert read_response(body) == slow, body
        plain = isinstance(read, int | None) and 0 <= (read or 0) + (kept or 0) <= 10
        with monkeypatch.context() as patched:
            patched.setattr(reading, "_content", None)  # without the long way
            with contextlib.nullcontext() if quick and text and plain else pytest.raises(TypeError):
                assert read_response(body) == slow


@pytest.mark.parametrize("output", [[SILENT], [said("a"), SILENT], [said("a"), said("")], [{"type": "message"}]])
def test_an_output_that_does_not_end_with_its_text_is_read_by_the_long_way(output: list[Any]) -> None:
    body = compact(response(*output))
    assert read_response(body) == long_way(body)


PARTS = st.one_of(
    st.builds(lambda text: {"type": "output_text", "text": text, "annotations": []}, st.sampled_from(["", "a", "é"])),
    st.just({"type": "reasoning_text", "text": "hm"}), st.just({"type": "refusal", "refusal": "No."}),
)  # fmt: skip
ITEMS = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "reasoning", "function_call"])},
    optional={
        "content": st.none() | st.lists(PARTS, max_size=2), "summary": st.none() | st.lists(PARTS, max_size=1),
        "phase": st.sampled_from([None, "commentary", "final_answer", "of-tomorrow"]), "id": st.just("rs_1"),
        "role": st.just("assistant"), "encrypted_content": st.just("gA"), "arguments": st.just("{}"), "call_id": st.just("c"),
    },
)  # fmt: skip
ENDINGS = st.sampled_from([{}, {}, CUT, {"status": None}])


@given(st.lists(ITEMS, min_size=1, max_size=3), ENDINGS)
@example([said("", phase="final_answer"), said("a", phase="commentary")], {})
@example([{"type": "reasoning", "content": said("a")["content"]}], {})
def test_any_output_is_read_the_same_by_both_ways(output: list[dict[str, Any]], more: dict[str, Any]) -> None:
    body = compact(response(*output, **more))
    assert read_response(body) == long_way(body)


def test_a_text_that_is_no_utf_8_is_kept() -> None:
    body = compact(response(said("yes"))).replace(b'"yes"', b'"yes \xff"')
    assert read_response(body).text == "yes \ufffd"


def test_a_byte_order_mark_and_a_wrapped_response_are_read() -> None:
    assert read_response(b"\xef\xbb\xbf" + compact(response(said("a")))).text == "a"
    assert read_response(compact({"type": "response.completed", "response": response(said("a"))})).text == "a"


# -- streams ---------------------------------------------------------------------------------------------------------


def stream_of(whole: dict[str, Any], ending: bool = True) -> list[dict[str, Any]]:
    """The events of a response, as OpenAI sends them."""
    found: list[dict[str, Any]] = [{"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}]
    for index, item in enumerate(whole["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        found.append({"type": "response.output_item.added", "output_index": index, "item": item | {"content": []}})
        if item["type"] == "message":
            for piece in item["content"][0].get("text", ""):
                found.append({"type": "response.output_text.delta", "content_index": 0, "delta": piece, **where})
        if item["type"] == "function_call":
            found.append({"type": "response.function_call_arguments.delta", "delta": item["arguments"], **where})
        found.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*found, *([{"type": f"response.{whole['status']}", "response": whole}] if ending else [])]


def events(values: list[dict[str, Any]], end: bytes = b"") -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (value["type"].encode(), compact(value)) for value in values) + end


def assembled(data: bytes, *cuts: int) -> ResponseAssembler:
    stream = ResponseAssembler()
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(places):
        stream.feed(data[begin:end])
    return stream


WHOLE = [
    response(said("yes — é")), response(THOUGHT, said("I look."), CALL), response(said("ye"), **CUT), response(said("No.", "refusal")),
]  # fmt: skip


@given(st.data())
def test_a_stream_cut_anywhere_is_the_unstreamed_response(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(WHOLE))
    stream = assembled(events(stream_of(whole)), *data.draw(st.lists(st.integers(0, 3_000), max_size=4)))
    assert stream.done and read_response(stream.message()) == read_response(compact(whole))


@pytest.mark.parametrize("whole", WHOLE[:3])
def test_an_end_without_output_and_a_mark_of_the_end_are_completed_from_the_events_before(whole: dict[str, Any]) -> None:
    begun = stream_of(whole, ending=False)
    bare = {"type": f"response.{whole['status']}", "response": whole | {"output": []}}
    assert read_response(assembled(events([*begun, bare])).message()) == read_response(compact(whole))
    if whole["status"] == "completed":
        closed = assembled(events(begun, b"data: [DONE]\n\n"))
        assert closed.done and blocks(read_response(closed.message()).body) == blocks(read_response(compact(whole)).body)


def test_items_without_an_end_of_their_own_are_put_together_from_their_pieces() -> None:
    pieces = [event for event in stream_of(response(said("yes"), CALL)) if event["type"].endswith(".delta")]
    reply = read_response(assembled(events([*pieces, {"type": "response.completed", "response": response()}])).message())
    assert [block["type"] for block in blocks(reply.body)] == ["text", "tool_use"] and reply.text == "yes"


@pytest.mark.parametrize("count", range(1, 6))
def test_a_stream_that_ends_before_its_last_event_is_no_answer(count: int) -> None:
    begun = stream_of(response(said("yes")))[:count]
    with pytest.raises(UnreadableResponse) as found:
        assembled(events(begun)).message()
    assert (type(found.value) is UnreadableAnswer) == (count > 1)
    assert not assembled(events(begun[:2], b"data: [DONE]\n\n")).done


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "error", "error": {"type": "tokens", "code": "rate_limit_exceeded", "message": "slow"}},
         "rate_limit_exceeded"),  # as it came: vercel/ai#6534
        ({"type": "error", "code": "server_error", "message": "x", "param": None}, "server_error"),  # as documented
        ({"type": "response.failed", "response": response(status="failed", error={"code": "server_error", "message": "x"})},
         "server_error"),
        ({"type": "error"}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("came", [0, 3])
def test_an_error_inside_a_stream_says_whether_an_answer_had_begun(event: dict[str, Any], code: Any, came: int) -> None:
    begun = stream_of(response(said("yes")))[:came]
    with pytest.raises(StreamError) as found:
        assembled(events([*begun, event]))
    assert found.value.error.get("code") == code and found.value.text_came == bool(came)  # type: ignore[attr-defined]


@pytest.mark.parametrize("data", [b'{"type":"response.output_text.delta"}', b'{"type":"response.completed"', b'["x"]', b'"x"',
                                  b'{"type":"response.output_text.delta","output_index":"a","delta":"x"}'])  # fmt: skip
def test_a_damaged_event_is_no_answer(data: bytes) -> None:
    with pytest.raises(UnreadableResponse):
        assembled(b"data: %s\n\n" % data)


def test_events_that_are_not_known_are_passed_over() -> None:
    more = [{"type": "response.web_search_call.searching"}, {"type": "keepalive"}]
    first, *rest = stream_of(WHOLE[0])
    assert read_response(assembled(b": hello\n\n" + events([first, *more, *rest])).message()).text == "yes — é"
