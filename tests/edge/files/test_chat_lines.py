"""Lines of OpenAI's batch files, judged: what a line becomes, and why one is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from actors.files.batch_request import InvalidRow
from actors.files.chat_lines.line import ChatLineRules, is_chat_line
from actors.files.errors import SourceError
from actors.files.sources.row_source import BatchSource
from cortex.state.events import Row
from cortex.values.chat_form.request import fields_of

MESSAGES = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": MESSAGES}


def line_of(custom_id: Any = "a", url: Any = "/v1/chat/completions", method: Any = "POST", **changes: Any) -> bytes:
    body = {name: value for name, value in {**BODY, **changes}.items() if value is not ...}
    line = {"custom_id": custom_id, "method": method, "url": url, "body": body}
    return json.dumps({name: value for name, value in line.items() if value is not ...}).encode()


def read(line: bytes, **rules: Any) -> Row:
    return ChatLineRules(**rules).read(line)


def test_a_request_is_the_whole_body_by_name() -> None:
    row = read(line_of(seed=3, n=1))
    assert row == Row("a", b'{"api":"chat","max_tokens":5,"messages":[{"role":"user","content":"hello"}],"model":"m",'
                           b'"n":1,"seed":3}', 5)  # fmt: skip


def test_every_field_of_the_sdk_and_others_go_through() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming as Params

    own = {*BODY, "max_completion_tokens", "stream", "n"}
    others = {name: {"x": 1} for name in {*get_type_hints(Params), "guided_choice", "min_p", "of_tomorrow"} - own}
    row = read(line_of(**others))
    assert row.refusal == ""
    assert {name: json.loads(bytes(value)) for name, value in fields_of(row.body).items()} == BODY | others


def test_numbers_are_kept_to_the_letter() -> None:
    row = read(line_of().replace(b'"model": "m"', b'"model": "m", "temperature": 0.10, "big": 123456789012345678901'))
    assert b'"temperature":0.10' in row.body and b'"big":123456789012345678901' in row.body


@pytest.mark.parametrize(
    ("rules", "changes", "tokens"),
    [
        ({}, {}, 5),
        ({}, {"max_tokens": ..., "max_completion_tokens": 7}, 7),
        ({}, {"max_tokens": 7, "max_completion_tokens": 7}, 7),
        ({}, {"max_tokens": None, "max_completion_tokens": 7}, 7),
        ({"output_tokens_max": 3}, {}, 3),
        ({"output_tokens_max": 9}, {"max_tokens": ...}, 9),
    ],
)
def test_the_bound_has_one_name(rules: dict[str, Any], changes: dict[str, Any], tokens: int) -> None:
    row = read(line_of(**changes), **rules)
    assert (row.refusal, row.output_tokens_max) == ("", tokens)
    assert json.loads(row.body)["max_tokens"] == tokens and b"max_completion_tokens" not in row.body


def test_a_model_that_is_given_replaces_the_rows_own() -> None:
    assert json.loads(read(line_of(model=...), model="other").body)["model"] == "other"


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/chat/completions"])
def test_addresses_of_chat_completions(url: str) -> None:
    assert read(line_of("x" * 2_000, url=url, method=...)).refusal == "", "an id may be of any length"


REFUSED = [
    (line_of(url="/v1/responses"), 'url is "/v1/responses": lines of /v1/chat/completions are asked here: put others'),
    (line_of(url="/v1/embeddings"), 'url is "/v1/embeddings"'),
    (line_of(url=...), "url is missing"),
    (line_of(method="GET"), 'method is "GET": it must be POST'),
    (b'{"custom_id":"a","url":"/v1/chat/completions","body":[]}', "body is a list: it must be an object"),
    (b'{"custom_id":"a","params":{}}', "has params, as in the Message Batches format: this file is in the OpenAI"),
    (b'{"custom_id":"a"}', "has no body: this file is in the OpenAI batch format"),
    (line_of(5), "custom_id is 5: it must be a string"),
    (line_of(""), "custom_id is empty"),
    (line_of(stream=True), "stream is true"),
    (line_of(n=3), "n is 3: a line has one answer; write a line for each"),
    (line_of(api="x"), "api is no field of chat completions"),
    (line_of(model=...), "model is missing: name one in body, or give --model for all rows"),
    (line_of(model=4), "model is 4"),
    (line_of(max_tokens=...), "max_tokens is missing: say how long a reply may be, or give --max-output-tokens"),
    (line_of(max_tokens="5"), 'max_tokens is "5": it must be a whole number'),
    (line_of(max_tokens=-1), "max_tokens is -1"),
    (line_of(max_completion_tokens=6), "max_completion_tokens and max_tokens are 6 and 5: give one of them"),
    (line_of(messages=...), "messages is missing"),
    (line_of(messages=[]), "messages is empty"),
    (line_of(messages="hello"), 'messages is "hello": it must be a list'),
    (line_of(messages=["hello"]), 'messages[0] is "hello"'),
    (line_of(messages=[{"content": "x"}]), "messages[0].role is missing"),
    (line_of(messages=[{"role": "user", "content": [{"type": {}}]}]), "content holds a part of type an object: it must be text"),
    (line_of(messages=[{"role": "user", "content": 5}]), "messages[0].content is 5"),
    (line_of(messages=[{"role": "user", "content": ["x"]}]), 'messages[0].content holds "x"'),
    (line_of(seed=1).replace(b'"seed": 1', b'"seed": 1e999'), "holds a number that is too large to be sent"),
]


@pytest.mark.parametrize(("line", "why"), REFUSED)
def test_a_line_is_refused_in_one_line_and_keeps_its_id(line: bytes, why: str) -> None:
    row = read(line)
    assert why in row.refusal and "\n" not in row.refusal
    assert row.body == b"" and row.key == (json.loads(line)["custom_id"] if b'"a"' in line else row.key)


@pytest.mark.parametrize("line", [b"[1]", b"{", b'{"body":{},"url":"/v1/chat/completions"}', b"\xff"])
def test_a_line_without_an_id_is_no_row(line: bytes) -> None:
    with pytest.raises(InvalidRow):
        read(line)


@pytest.mark.parametrize(
    "changes",
    [
        {"service_tier": "priority"}, {"web_search_options": {}}, {"prediction": {"type": "content", "content": "x"}},
        {"modalities": ["text", "audio"], "audio": {"voice": "x"}},
    ],
)  # fmt: skip
def test_under_a_cap_what_is_not_billed_by_tokens_is_refused(changes: dict[str, Any]) -> None:
    assert read(line_of(**changes)).refusal == ""
    assert "--max-cost could be passed" in read(line_of(**changes), capped=True).refusal
    assert read(line_of(service_tier="flex", modalities=["text"]), capped=True).refusal == ""


def test_for_a_model_of_another_api_a_request_is_translated_or_refused() -> None:
    row = read(line_of(stop="END", temperature=0.5), translated=True, also_known=["temperature"])
    assert json.loads(row.body) == BODY | {"stop_sequences": ["END"], "temperature": 0.5}
    assert "seed: the Messages API has no such field" in read(line_of(seed=3), translated=True).refusal
    assert '"temperature" is no parameter of a Messages request' in read(line_of(temperature=1), translated=True).refusal


# ----------------------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize(
    ("line", "expected"),
    [(line_of(), True), (b'{"custom_id":"a","params":{}}', False), (b'{"custom_id":"a"}', None), (b"x", None),
     (b"[]", None), (b'{"body":{}}', None), (b"\xff\xfe", None)],
)  # fmt: skip
def test_the_form_of_a_line(line: bytes, expected: bool | None) -> None:
    assert is_chat_line(line) is expected


def source(path: Path, content: bytes, **options: Any) -> BatchSource:
    path.write_bytes(content)
    return BatchSource(str(path), model=None, output_tokens_max=None, spool=path.parent / "spool", **options)


def test_the_first_line_that_is_of_a_form_decides_for_the_file(tmp_path: Path) -> None:
    other = b'{"custom_id":"b","params":{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}}'
    made = source(tmp_path / "in.jsonl", b"\xef\xbb\xbf\nno json\n" + b"\n".join([line_of(), other, line_of("c")]))
    assert made.api() == "chat"
    check = made.check()
    assert (check.rows, check.refused, check.unreadable, check.models) == (3, 1, 1, ("m",))
    assert [row.key for row in made.read(9).rows] == ["a", "b", "c"]
    made.close()
    made = source(tmp_path / "in.jsonl", b"\n".join([other, line_of()]))
    assert not made.api() and made.check().refused == 1
    made.close()


def test_a_file_of_another_url_is_refused_in_one_line(tmp_path: Path) -> None:
    made = source(tmp_path / "in.jsonl", line_of(url="/v1/embeddings") + b"\n" + line_of("b", url="/v1/embeddings"))
    with pytest.raises(SourceError, match=r'of "/v1/embeddings": lines of /v1/chat/completions are asked here: put others into a file of their own'):
        made.check()
    made.close()


def test_an_id_that_stands_twice_is_unreadable(tmp_path: Path) -> None:
    made = source(tmp_path / "in.jsonl", b"\n".join([line_of(), line_of(), line_of("b")]))
    check = made.check()
    assert (check.rows, check.unreadable) == (2, 1)
    assert "custom_id 'a' stands on line 1 already" in check.problems[0].message
    made.close()
