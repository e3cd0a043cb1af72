"""Replies: text to a typed value, or a refusal with a name."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex.values.reply import Malformed, Reply, Usage, as_choice, as_json, as_line, finished, text_of
from tests.support.state_machine_harness import reply


class Verdict(msgspec.Struct, forbid_unknown_fields=True):
    relevant: bool
    claims: list[str] = []


def body(*blocks: dict[str, object]) -> bytes:
    return msgspec.json.encode({"id": "m", "content": list(blocks)})


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "b"}], "b"),
        ([{"type": "tool_use", "name": "t", "input": {}}], ""),
        ([], ""),
    ],
)
def test_the_text_of_a_message(blocks, text):
    assert text_of(body(*blocks)) == text


@pytest.mark.parametrize("bad", [b"", b"{", b"{}", b'{"content": 3}', b'{"content": [{"text": "a"}]}', b"\xff"])
def test_what_is_no_message_is_malformed(bad):
    with pytest.raises(Malformed, match="no message"):
        text_of(bad)


CHOICES = ("bug", "praise", "B.")


@pytest.mark.parametrize(
    ("said", "choice"),
    [("bug", "bug"), (" Bug.\n", "bug"), ('"PRAISE"', "praise"), ("**praise**", "praise"), ("B.", "B."), ("b", "B.")],
)
def test_a_choice(said, choice):
    assert as_choice(reply(said), CHOICES) == choice


@pytest.mark.parametrize("said", ["", "a bug", "bug, praise", "?"])
def test_no_choice(said):
    with pytest.raises(Malformed, match="expected one of bug, praise"):
        as_choice(reply(said), CHOICES)


def test_choices_that_differ_by_case_alone_must_be_named_exactly():
    assert as_choice(reply("A"), ("a", "A")) == "A"
    with pytest.raises(Malformed):
        as_choice(reply("A."), ("a", "A"))


@given(st.sampled_from(CHOICES), st.sampled_from(["{}", " {} ", '"{}"', "`{}`", "{}.", "*{}*\n"]))
def test_a_choice_is_found_in_its_usual_clothes(choice, clothes):
    assert as_choice(reply(clothes.format(choice)), CHOICES) == choice


@pytest.mark.parametrize(("said", "line"), [(" a b \n", "a b"), ("x" * 10, "x" * 10)])
def test_a_line(said, line):
    assert as_line(reply(said), 10) == line


@pytest.mark.parametrize(("said", "why"), [(" \n", "empty"), ("x" * 11, "11 characters, more than 10")])
def test_no_line(said, why):
    with pytest.raises(Malformed, match=why):
        as_line(reply(said), 10)


@pytest.mark.parametrize(
    "said", ['{"relevant": true}', ' {"relevant":true, "claims": []}\n', '```json\n{"relevant": true}\n```', "```\n{\"relevant\":true}```"]
)  # fmt: skip
def test_json_of_a_type(said):
    assert as_json(reply(said), Verdict) == Verdict(True, [])


@pytest.mark.parametrize("said", ["", "yes", '{"relevant": "true"}', '{"relevant": true, "more": 1}', "[1", "```json\nno\n```"])
def test_json_of_another_type(said):
    with pytest.raises(Malformed, match="expected Verdict"):
        as_json(reply(said), Verdict)


def test_json_of_a_generic_type_is_named_too():
    assert as_json(reply("[1, 2]"), list[int]) == [1, 2]
    with pytest.raises(Malformed, match="expected list"):
        as_json(reply('["a"]'), list[int])


@pytest.mark.parametrize(
    ("reason", "whole"), [("end_turn", True), ("stop_sequence", True), ("tool_use", True), ("max_tokens", False), ("refusal", False)]
)  # fmt: skip
def test_whether_the_model_ended_by_itself(reason, whole):
    assert finished(reply("a", stop_reason=reason)) is whole


def test_billed_input_is_all_input():
    assert Usage(1, 2, 4, 8).input_tokens_billed == 13


def test_a_reply_keeps_the_providers_message_to_the_byte():
    made = Reply(b'{ "content": [ ] , "x": 1.0 }', "end_turn", "m", Usage())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Reply) == made
