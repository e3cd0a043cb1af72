"""A conversation with tools: rendered, bounded, and read back."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from cortex.values.conversation import LEFT_OUT, Conversation, ToolDef, ToolResult
from cortex.values.prompt import DoesNotFit, Rule, request_body
from cortex.values.reply import Malformed, OtherBlock, Reply, Said, TextBlock, ToolUse, Usage, as_said


def look(item: str, how: Literal["near", "far"] = "near", idempotency_key: str = "") -> str:
    """Look at an item.

    Not said to the model.
    """
    return item


LOOK = ToolDef.of(look)
USE = ToolUse("t1", "look", {"item": "a"})


def reply(*content: dict[str, Any], stop_reason: str = "end_turn") -> Reply:
    return Reply(msgspec.json.encode({"content": content}), stop_reason, "sim", Usage(1, 1))


def words(text: str) -> int:
    return len(text.split())


def looked(*results: str, rule: Rule = Rule.KEEP) -> Conversation:
    talk = Conversation("t", tools=(LOOK,), results=rule).said("Look at a.")
    for at, text in enumerate(results):
        use = ToolUse(f"t{at}", "look", {"item": "a"})
        talk = talk.replied(Said((use,)), [ToolResult(use.id, text)])
    return talk


def test_a_function_is_a_tool_by_its_types_and_docstring() -> None:
    assert LOOK.fields() == {
        "name": "look",
        "description": "Look at an item.",
        "input_schema": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "how": {"enum": ["far", "near"], "default": "near"}},
            "required": ["item"],
        },
    }


def test_the_request_is_in_the_messages_form() -> None:
    talk = Conversation("t", tools=(LOOK,), system="Be brief.", choice={"type": "auto"}).said("Look at a.")
    talk = talk.replied(Said((TextBlock("Well."), USE)), [ToolResult("t1", "gone", failed=True)]).said("And?")
    assert msgspec.json.decode(request_body(talk, "m", 9, {"temperature": 0, "stream": True})) == {
        "model": "m", "max_tokens": 9, "temperature": 0, "system": "Be brief.", "tools": [LOOK.fields()],
        "tool_choice": {"type": "auto"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Look at a."}]},
            {"role": "assistant", "content": [
                {"type": "text", "text": "Well."},
                {"type": "tool_use", "id": "t1", "name": "look", "input": {"item": "a"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "gone", "is_error": True},
                {"type": "text", "text": "And?"},
            ]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize("results", [[], [ToolResult("t2", "x")], [ToolResult("t1", "x"), ToolResult("t2", "x")]])
def test_each_use_has_its_result(results: list[ToolResult]) -> None:
    with pytest.raises(ValueError, match="do not match"):
        Conversation("t").said("x").replied(Said((USE,)), results)


def test_text_tools_and_inputs_are_all_counted() -> None:
    talk = looked("found")
    for text in ("Look at a.", '"name":"look"', 'look {"item":"a"}', "found"):
        assert text in talk.text()
    assert len(talk.parts) == 4


def test_what_fits_stays_as_it_is_and_what_does_not_is_refused() -> None:
    talk = looked("one two three")
    assert talk.fit(words(talk.text()), words) is talk
    with pytest.raises(DoesNotFit, match=r"t: \d+ tokens in 4 parts; at most 5 in 200"):
        talk.fit(5, words)
    with pytest.raises(DoesNotFit, match="at most 1000 in 3"):
        talk.fit(1_000, words, parts_max=3)


@pytest.mark.parametrize("rule", [Rule.CUT, Rule.DROP])
def test_the_oldest_results_go_first_and_every_use_keeps_one(rule: Rule) -> None:
    talk = looked("one " * 30, "two " * 30, "three " * 30, rule=rule)
    whole = words(talk.text())
    within = talk.fit(whole - 10, words)
    results = [block.text for block in within.parts if isinstance(block, ToolResult)]
    assert results[1:] == ["two " * 30, "three " * 30]
    assert results[0] == LEFT_OUT if rule == Rule.DROP else results[0].split() == ["one"] * 20
    assert within.left_out == ("t0",)
    within = talk.fit(whole - 60, words)
    assert words(within.text()) <= whole - 60
    assert [block.use for block in within.parts if isinstance(block, ToolResult)] == ["t0", "t1", "t2"]
    with pytest.raises(DoesNotFit):
        talk.fit(20, words)


def test_a_reply_is_read_block_by_block() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {"item": "a"}, "caller": {"type": "direct"}}
    answer = as_said(reply(thought, {"type": "text", "text": "Well."}, use, stop_reason="tool_use"))
    assert answer == Said((OtherBlock(thought), TextBlock("Well."), USE), "tool_use", Usage(1, 1))
    assert (answer.text, answer.uses) == ("Well.", (USE,))
    again = Conversation("t").said("x").replied(answer, [ToolResult("t1", "y")])
    assert again.fields()["messages"][1]["content"][0] == thought
    assert msgspec.convert(msgspec.to_builtins(answer), Said) == answer


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (reply(), "the reply is empty"),
        (reply({"type": "text", "text": ""}), "the reply is empty"),
        (reply({"type": "tool_use", "id": "t", "name": "n", "input": {}}, stop_reason="max_tokens"), "was cut"),
        (reply({"type": "tool_use", "id": "t", "name": "n", "input": {}}, stop_reason="model_context_window_exceeded"), "was cut"),
        (reply({"type": "tool_use", "id": "t", "name": "n", "input": {}}, stop_reason="length"), "was cut"),
        (reply({"type": "tool_use", "name": "n"}), "no turn"),
        (Reply(b"{}", "end_turn", "m", Usage()), "no turn"),
    ],
)
def test_what_is_no_turn_is_malformed(made: Reply, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        as_said(made)
