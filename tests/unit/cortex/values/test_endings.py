"""Endings of replies: each stop reason with each shape of content."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.values.endings import STOP_REASONS, Ending, ended_by_itself, ending_of, is_refusal, may_grow
from cortex.values.reply import Reply, Usage, finished

TEXT = {"type": "text", "text": "an answer"}
BLANK = {"type": "text", "text": " \n"}
THOUGHT = {"type": "thinking", "thinking": "hmm", "signature": "s"}
ASKS = {"type": "tool_use", "id": "t", "name": "f", "input": {"text": "x"}}
SEARCHED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
SHAPES: dict[str, list[dict[str, Any]]] = {
    "text": [TEXT],
    "thinking and text": [THOUGHT, TEXT],
    "search and text": [SEARCHED, TEXT],
    "nothing": [],
    "blank": [BLANK],
    "thinking": [THOUGHT],
    "search": [SEARCHED],
    "tool": [ASKS],
    "text and tool": [TEXT, ASKS],
    "thinking and tool": [THOUGHT, ASKS],
}
HELD, NONE, TOOL = ("text", "thinking and text", "search and text"), ("nothing", "blank", "thinking", "search"), (
    "tool", "text and tool", "thinking and tool"
)  # fmt: skip
W, C, P, T, E, R, U = (
    Ending.WHOLE, Ending.CUT, Ending.PAUSED, Ending.TOOL_USE, Ending.EMPTY, Ending.REFUSED, Ending.UNKNOWN
)  # fmt: skip
TABLE = {
    # stop reason: with text, without text, with a tool use
    "end_turn": (W, E, T),
    "stop_sequence": (W, E, T),
    "stop": (W, E, T),
    "STOP": (W, E, T),
    "max_tokens": (C, C, C),
    "MAX_TOKENS": (C, C, C),
    "length": (C, C, C),
    "model_context_window_exceeded": (C, C, C),
    "pause_turn": (P, P, P),
    "compaction": (P, P, P),
    "tool_use": (U, E, T),
    "tool_calls": (U, E, T),
    "function_call": (U, E, T),
    "refusal": (R, R, R),
    "content_filter": (R, R, R),
    "content_filtered": (R, R, R),
    "guardrail_intervened": (R, R, R),
    "SAFETY": (R, R, R),
    "RECITATION": (R, R, R),
    "blocklist": (R, R, R),
    "prohibited_content": (R, R, R),
    "spii": (R, R, R),
    "image_safety": (R, R, R),
    "": (U, E, T),
    "malformed_model_output": (U, E, T),
    "something new": (U, E, T),
}


def reply(stop_reason: str, shape: str) -> Reply:
    return Reply(msgspec.json.encode({"content": SHAPES[shape]}), stop_reason, "m", Usage())


@pytest.mark.parametrize("stop_reason", TABLE)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_stop_reason_with_each_shape_of_content(stop_reason: str, shape: str) -> None:
    group = next(number for number, names in enumerate((HELD, NONE, TOOL)) if shape in names)
    assert reply(stop_reason, shape).ending is TABLE[stop_reason][group]


def test_the_table_has_every_known_stop_reason() -> None:
    assert {name.lower() for name in TABLE} >= set(STOP_REASONS)
    assert set().union(*TABLE.values()) == set(Ending)


@given(st.sampled_from([*TABLE, "?"]), st.text(max_size=9), st.booleans())
def test_only_a_reply_with_text_and_without_a_tool_is_an_answer(stop_reason: str, text: str, tool: bool) -> None:
    ending = ending_of(stop_reason, text, tool)
    if ending in (Ending.WHOLE, Ending.UNKNOWN):
        assert text.strip() and not tool and ended_by_itself(stop_reason)
    assert (ending is Ending.REFUSED) == is_refusal(stop_reason)
    assert ending is Ending.CUT or not may_grow(stop_reason)
    assert ending_of(stop_reason.upper(), text, tool) is ending


@pytest.mark.parametrize(("stop_reason", "grows"), [("max_tokens", True), ("length", True), ("end_turn", False),
                                                    ("model_context_window_exceeded", False)])  # fmt: skip
def test_a_larger_bound_helps_only_a_reply_that_was_cut_at_its_bound(stop_reason: str, grows: bool) -> None:
    assert may_grow(stop_reason) is grows


@pytest.mark.parametrize(("stop_reason", "by_itself"), [("end_turn", True), ("", True), ("new", True), ("tool_use", True),
                                                        ("max_tokens", False), ("length", False), ("pause_turn", False),
                                                        ("refusal", False)])  # fmt: skip
def test_a_reply_without_a_stop_reason_counts_as_finished(stop_reason: str, by_itself: bool) -> None:
    assert finished(reply(stop_reason, "text")) is by_itself
