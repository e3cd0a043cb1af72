"""A line of a batch's input, judged: every rule, and what a request becomes."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import msgspec
import pytest

from actors.files import batch_request
from actors.files.batch_request import HEADERS, LINE_BYTES_MAX, PARAMS, ROLES, InvalidRow, RowRules
from cortex.state.events import Row

MESSAGES = [{"role": "user", "content": "hello"}]
PARAMS_OF_A_ROW: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": MESSAGES}


def line_of(custom_id: Any = "a", **changes: Any) -> bytes:
    params = {**PARAMS_OF_A_ROW, **changes}
    params = {name: value for name, value in params.items() if value is not ...}
    return json.dumps({"custom_id": custom_id, "params": params}).encode()


def read(line: bytes, **rules: Any) -> Row:
    return RowRules(**rules).read(line)


# ------------------------------------------------------------------------------------------------------- requests


def test_request_is_the_whole_body_by_name():
    row = read(b'{"params": {"system": "s", "model": "m", "messages": [{"role": "user", "content": "\xc3\xa9"}],'
               b' "max_tokens": 7}, "custom_id": "a", "note": 1}\r\n')  # fmt: skip
    body = '{"max_tokens":7,"messages":[{"role":"user","content":"é"}],"model":"m","system":"s"}'
    assert row == Row("a", body.encode(), 7)


def test_order_below_the_top_is_the_authors():
    schema = {"type": "object", "properties": {"thought": {"type": "string"}, "answer": {"type": "string"}}}
    row = read(line_of(output_config={"format": {"type": "json_schema", "schema": schema}}))
    assert b'"thought":{"type":"string"},"answer"' in row.body


def test_same_request_has_same_bytes():
    one = b'{"custom_id":"a","params":{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}}'
    two = b'{"params": {"messages":[{"role": "user","content":"\\u0078"}],"max_tokens":5,"model":"m"},"custom_id":"a"}'
    assert read(one) == read(two)


@pytest.mark.parametrize(
    "bound, asked, becomes", [(None, 5, 5), (3, 5, 3), (9, 5, 5), (3, ..., 3), (3, None, 3), (None, 0, 0), (3, 0, 0)]
)
def test_max_tokens_is_bounded(bound, asked, becomes):
    row = read(line_of(max_tokens=asked), output_tokens_max=bound)
    assert (row.refusal, row.output_tokens_max) == ("", becomes)
    assert msgspec.json.decode(row.body)["max_tokens"] == becomes


@pytest.mark.parametrize("own", ["m", ..., None, ""])
def test_model_given_replaces_the_rows_own(own):
    assert msgspec.json.decode(read(line_of(model=own), model="other").body)["model"] == "other"


@pytest.mark.parametrize("stream", [False, None])
def test_no_stream_key_is_sent(stream):
    row = read(line_of(stream=stream))
    assert row.refusal == "" and b"stream" not in row.body


def test_a_parameter_for_another_provider_may_be_allowed():
    assert "temperature" in read(line_of(temperature=0.5)).refusal
    row = read(line_of(temperature=0.5), also_known=["temperature"])
    assert row.refusal == "" and b'"temperature":0.5' in row.body


def test_every_other_parameter_goes_through():
    values = {dict: {}, list: [], str: "x", int: 1, bool: False}
    others = {name: values[kinds[0]] for name, kinds in PARAMS.items() if name not in {*PARAMS_OF_A_ROW, "stream"}}
    row = read(line_of(**others))
    assert row.refusal == ""
    assert msgspec.json.decode(row.body) == {**PARAMS_OF_A_ROW, **others}
    assert read(line_of(**dict.fromkeys(others))).refusal == "", "null is the provider's to judge"


def test_big_and_exact_numbers_stay():
    row = read(line_of(tools=[{"a": 123456789012345678901234567890, "b": 0.1}]))
    assert b'"a":123456789012345678901234567890,"b":0.1' in row.body


def test_blocks_are_content_too():
    blocks = [{"type": "text", "text": "x"}]
    for role in ROLES:
        assert read(line_of(messages=[{"role": role, "content": blocks}])).refusal == ""


# ------------------------------------------------------------------------------------------------------- refusals

REFUSED = [
    (line_of(max_tokens=...), "max_tokens is missing: say how long a reply may be, or give --max-output-tokens"),
    (line_of(max_tokens=None), "max_tokens is missing"),
    (line_of(max_tokens=-1), "max_tokens is -1: it must not be negative"),
    (line_of(max_tokens="5"), 'max_tokens is "5": it must be a whole number'),
    (line_of(max_tokens=5.0), "max_tokens is 5.0: it must be a whole number"),
    (line_of(max_tokens=True), "max_tokens is true: it must be a whole number"),
    (line_of(messages=...), "messages is missing: a request needs one at least"),
    (line_of(messages=[]), "messages is empty"),
    (line_of(messages="hello"), 'messages is "hello": it must be a list'),
    (line_of(messages=["hello"]), 'messages[0] is "hello": it must be an object with role and content'),
    (line_of(messages=[*MESSAGES, {"role": "bot", "content": "x"}]), 'messages[1].role is "bot": it must be user or'),
    (line_of(messages=[{"content": "x"}]), "messages[0].role is missing"),
    (line_of(messages=[{"role": "user"}]), "messages[0].content is missing: it must be a string or a list of blocks"),
    (line_of(messages=[{"role": "user", "content": None}]), "messages[0].content is null"),
    (line_of(messages=[{"role": "user", "content": ["x"]}]), 'content holds "x": its blocks must be objects'),
    (line_of(messages=[{"role": "user", "content": [{"type": ["text"]}]}]), "content holds a block of type a list: it must"),
    (line_of(model=...), "model is missing: name one in params, or give --model for all rows"),
    (line_of(model=""), "model is missing"),
    (line_of(model=3), "model is 3: it must be a string"),
    (line_of(stream=True), "stream is true: a result line holds a whole message; leave stream out"),
    (line_of(stream="yes"), 'stream is "yes": it must be true or false'),
    (line_of(system=5), "system is 5: it must be a string or a list"),
    (line_of(stop_sequences="END"), 'stop_sequences is "END": it must be a list'),
    (line_of(max_token=5), '"max_token" is no parameter of a Messages request: did you mean max_tokens?'),
    (line_of(message=[]), "did you mean messages?"),
    (line_of(zzz=5), '"zzz" is no parameter of a Messages request: leave it out'),
    (line_of(workspace_id="w"), "workspace_id travels as a header, not in a request: leave it out"),
    (line_of("x" * 65), "custom_id has 65 characters: at most 64"),
    (line_of(""), "custom_id is empty: give each row one of its own"),
    (line_of(5), "custom_id is 5: it must be a string, so put it in quotes"),
    (b'{"custom_id":"a","params":[]}', "params is a list: it must be an object, the Messages request"),
    (b'{"custom_id":"a","params":null}', "params is null: it must be an object"),
    (b'{"custom_id":"a"}', 'has no params: a row is {"custom_id": "...", "params": {'),
    (b'{"custom_id":"a","method":"POST","body":{}}', "has no params but a body, as in the OpenAI batch format"),
    (line_of(system="cut \ud83d"), "holds half of a character (a lone surrogate such as \\ud83d)"),
    (b'{"custom_id":"a","params":{"metadata":{"x":1e999}}}', "holds a number that is too large to be sent"),
]


@pytest.mark.parametrize("line, said", REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_refused(line, said):
    row = read(line)
    assert said in row.refusal
    assert "\n" not in row.refusal and row.body == b"" and row.output_tokens_max == 0


PRICED_APART = [
    ({"speed": "fast"}, 'speed is "fast"'),
    ({"inference_geo": "us"}, 'inference_geo is "us"'),
    ({"tools": [{"name": "t"}, {"type": "web_search_20250305", "name": "s"}]}, 'type "web_search_20250305"'),
    ({"tools": [{"type": "code_execution_20250825", "name": "c"}]}, 'type "code_execution_20250825"'),
    ({"tools": [{"type": 5}]}, "type 5"),
]


@pytest.mark.parametrize("change, said", PRICED_APART, ids=[said for _, said in PRICED_APART])
def test_what_is_billed_beyond_tokens_is_refused_under_a_cap(change, said):
    assert read(line_of(**change)).refusal == ""
    row = read(line_of(**change), capped=True)
    assert said in row.refusal and "--max-cost could be passed" in row.refusal and "\n" not in row.refusal


@pytest.mark.parametrize(
    "change",
    [
        {"speed": "standard"}, {"speed": None}, {"inference_geo": "global"}, {"inference_geo": None}, {"tools": None},
        {"tools": [{"name": "t"}, {"type": "custom", "name": "u"}, {"type": None}, {"type": "bash_20250124"}]},
    ],
)  # fmt: skip
def test_what_is_billed_by_its_tokens_is_sent_under_a_cap(change):
    assert read(line_of(**change), capped=True).refusal == ""


def test_a_row_is_known_by_its_name_whatever_is_wrong():
    assert read(line_of("x" * 65)).key == "x" * 65
    assert read(line_of(5)).key == "5"
    assert read(line_of(["p", 1])).key == '["p",1]'
    assert read(line_of("é", max_tokens=-1)).key == "é"


@pytest.mark.parametrize("length", [1, 64])
def test_custom_id_of_up_to_64_characters(length):
    assert read(line_of("é" * length)).refusal == ""


# ----------------------------------------------------------------------------------------------------- no rows

UNREADABLE = [
    (b"hello", "invalid JSON: expecting value at character 1"),
    (b"[1]", "is a list; a row is {"),
    (b"5", "is a whole number; a row is {"),
    (b"null", "is null; a row is {"),
    (b'{"custom_id": "a", "params": {"x": "y', "invalid JSON: the line ends too early"),
    (b'{"custom_id": "a", "params": ', "invalid JSON: the line ends too early"),
    (b"{'custom_id': 'a'}", "invalid JSON: expecting property name enclosed in double quotes at character 2"),
    (b'{"custom_id":"a"} {"custom_id":"b"}', "more follows the first value at character 19; write one object a line"),
    (b'{"custom_id":"a","params":{"x":NaN}}', "invalid JSON: NaN is no JSON"),
    (b'{"custom_id":"a\x00"}', "invalid JSON: invalid control character"),
    (b'{"params": {}}', "has no custom_id: give each row one of its own, a string"),
    (b'{"custom_id": null, "params": {}}', "has no custom_id"),
    (b'{"custom_id":"caf\xe9","params":{}}', "byte 18 (0xe9) is not UTF-8: correct the line, or give --encoding NAME if the file"),
    (b'{"custom_id":"\\ud83d","params":{}}', "custom_id holds half of a character, which cannot be written"),
    (b'{"custom_id":"a","params":' + b"[" * 100_000, "nested too deeply"),
    (b'{"custom_id":"a","params":' + b"[" * 5_000 + b"]" * 5_000 + b"}", "nested too deeply"),
    (b'"' + b"x" * LINE_BYTES_MAX + b'"', "longer than 32 MB, which no provider takes: split the request"),
]


@pytest.mark.parametrize("line, said", UNREADABLE, ids=[said[:40] for _, said in UNREADABLE])
def test_unreadable(line, said):
    with pytest.raises(InvalidRow) as bad:
        read(line + b"\n")
    assert said in str(bad.value)
    assert "\n" not in str(bad.value) and len(str(bad.value)) < 300


def test_depth_is_bounded_even_where_only_our_decoder_says_so(monkeypatch):
    def decode(line: bytes) -> Any:
        raise RecursionError

    monkeypatch.setattr(batch_request, "_decode", decode)
    with pytest.raises(InvalidRow, match="nested too deeply"):
        read(line_of())


# --------------------------------------------------------------------------------------------------------- the SDK


def test_parameters_are_those_of_the_sdk():
    params = pytest.importorskip("anthropic.types.message_create_params")
    known = set(get_type_hints(params.MessageCreateParamsNonStreaming))
    assert known - set(PARAMS) - HEADERS == set(), "new ones: add them, or users' rows are refused"
    assert set(PARAMS) - known == set()
    messages = pytest.importorskip("anthropic.types.message_param").MessageParam
    roles = {get_type_hints(kind)["role"].__args__[0] for kind in messages.__args__}
    assert roles == set(ROLES)
