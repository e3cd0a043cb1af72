"""Lines of OpenAI's batch files for its Responses API and its embeddings, judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.files.chat_lines.other_lines import KEPT, EmbeddingsLineRules, ResponsesLineRules
from actors.files.columns import flat
from actors.files.errors import SourceError
from actors.files.sources.row_source import BatchSource
from cortex.state.events import Row
from cortex.values.chat_form.messages import NoCounterpart, messages_request
from cortex.values.chat_form.request import CHAT, EMBEDDINGS, RESPONSES, is_written
from tests.edge.files.test_chat_lines import line_of as chat_line

BODIES: dict[str, dict[str, Any]] = {
    RESPONSES: {"model": "m", "max_output_tokens": 5, "input": "hello"}, EMBEDDINGS: {"model": "m", "input": ["a", "b"]},
}  # fmt: skip
RULES = {RESPONSES: ResponsesLineRules, EMBEDDINGS: EmbeddingsLineRules}


def line_of(form: str, key: str = "a", **changes: Any) -> bytes:
    body = {name: value for name, value in {**BODIES[form], **changes}.items() if value is not ...}
    return json.dumps({"custom_id": key, "method": "POST", "url": f"/v1/{form}", "body": body}).encode()


def read(api: str, line: bytes, **rules: Any) -> Row:
    return RULES[api](**rules).read(line)


def test_a_request_is_the_whole_body_by_name() -> None:
    row = read(RESPONSES, line_of(RESPONSES, of_tomorrow={"x": 1.50}))
    assert row == Row("a", b'{"api":"responses","input":"hello","max_output_tokens":5,"model":"m","of_tomorrow":{"x":1.5}}', 5)
    row = read(EMBEDDINGS, line_of(EMBEDDINGS, encoding_format="float"))
    assert row == Row("a", b'{"api":"embeddings","encoding_format":"float","input":["a","b"],"model":"m"}', 1)
    assert is_written(row.body)


@pytest.mark.parametrize(
    ("api", "changes", "rules", "why"),
    [
        *((RESPONSES, {name: "x"}, {}, f"{name} is given") for name in KEPT),
        (RESPONSES, {"stream": True}, {}, "stream is true"),
        (RESPONSES, {"input": ...}, {}, "input is missing"),
        (RESPONSES, {"max_output_tokens": ...}, {}, "max_tokens is missing"),
        (RESPONSES, {"max_output_tokens": "5"}, {}, 'max_output_tokens is "5": it must be a whole number'),
        (RESPONSES, {"api": "x"}, {}, "api is no field of the Responses API"),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, {"capped": True}, 'a tool is of type "web_search"'),
        (RESPONSES, {"service_tier": "priority"}, {"capped": True}, 'service_tier is "priority"'),
        (EMBEDDINGS, {"input": []}, {}, "input is a list"),
        (EMBEDDINGS, {"input": ["x"] * 2_049}, {}, "input has 2,049 texts: at most 2,048"),
        (EMBEDDINGS, {"model": ...}, {}, "model is missing"),
    ],
)
def test_why_a_line_is_refused(api: str, changes: dict[str, Any], rules: dict[str, Any], why: str) -> None:
    assert read(api, line_of(api, **changes), **rules).refusal.startswith(why)


@pytest.mark.parametrize("changes", [{"tools": [{"type": "function"}]}, {"service_tier": "flex"}, {"stream": False}])
def test_what_a_cap_lets_through(changes: dict[str, Any]) -> None:
    assert read(RESPONSES, line_of(RESPONSES, **changes), capped=True).refusal == ""


def test_a_model_and_a_bound_that_are_given_hold() -> None:
    row = read(RESPONSES, line_of(RESPONSES, max_output_tokens=900), model="other", output_tokens_max=7)
    assert (row.output_tokens_max, json.loads(row.body)["max_output_tokens"], json.loads(row.body)["model"]) == (7, 7, "other")


@pytest.mark.parametrize("api", RULES)
def test_such_a_request_has_no_counterpart_in_the_messages_api(api: str) -> None:
    with pytest.raises(NoCounterpart, match=f"a request of OpenAI's {api} is asked over that API alone"):
        messages_request(read(api, line_of(api)).body)


@pytest.mark.parametrize(
    ("apis", "lines", "api", "refused"),
    [
        ([RESPONSES, EMBEDDINGS], [line_of(RESPONSES), chat_line("b")], RESPONSES, ["b"]),
        ([RESPONSES, EMBEDDINGS], [b"no json", line_of(EMBEDDINGS), line_of(RESPONSES, "b")], EMBEDDINGS, ["b"]),
        ([RESPONSES], [chat_line(), line_of(RESPONSES, "b")], CHAT, ["b"]),
        ([], [line_of(RESPONSES), chat_line("b")], CHAT, ["a"]),  # what the model has not decides nothing
    ],
)
def test_the_first_line_that_can_be_asked_decides_for_the_file(
    tmp_path: Path, apis: list[str], lines: list[bytes], api: str, refused: list[str]
) -> None:
    made = source(tmp_path, lines, apis)
    assert made.api() == api
    made.check()
    assert [row.key for row in made.read(9).rows if row.refusal] == refused
    made.close()


def test_a_file_of_lines_that_the_model_has_no_api_for_is_refused_in_one_line(tmp_path: Path) -> None:
    made = source(tmp_path, [line_of(RESPONSES), line_of(RESPONSES, "b")], [])
    with pytest.raises(SourceError, match='of "/v1/responses": lines of /v1/chat/completions are asked here: put others'):
        made.check()
    made.close()


def source(folder: Path, lines: list[bytes], apis: list[str]) -> BatchSource:
    path = folder / "in.jsonl"
    path.write_bytes(b"\n".join(lines))
    return BatchSource(str(path), model=None, output_tokens_max=None, spool=folder / "spool", apis=apis)


SAID = [{"type": "reasoning", "content": [{"text": "hm"}]}, {"type": "message", "content": [{"text": "bu"}, {"text": "g"}]}]


@pytest.mark.parametrize(
    ("body", "answer", "error"),
    [
        ({"output": SAID, "error": None}, "bug", None),
        ({"output": [{"type": "message", "content": [{"refusal": "no", "text": None}]}]}, "no", None),
        ({"output": [{"type": "function_call", "name": "f"}]}, "", None),
        ({"data": [{"embedding": [0.50, 1]}]}, "[0.50,1]", None),
        ({"data": [{"embedding": "AAA="}, {"embedding": "BBB="}]}, '["AAA=","BBB="]', None),
        ({"error": {"type": "server_error", "message": "no"}}, None, "server_error: no"),
    ],
)
def test_results_are_read_into_tables(body: dict[str, Any], answer: str | None, error: str | None) -> None:
    line = json.dumps({"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None}).encode()
    line = line.replace(b"[0.5, 1]", b"[0.50,1]")
    assert json.loads(flat(line)) == {"custom_id": "a", "answer": answer, "error": error}
