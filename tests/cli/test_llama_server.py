"""A real server that queues: llama.cpp's, with four slots and a real model, asked at the defaults of `cortex batch`.

The server is the one that `--model local` starts; here it is an address of the user's own, whose key is in
``CORTEX_SERVER_KEY``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.providers.local import model as local
from actors.providers.local.model import LOCAL_MODEL_NAME, LocalModelServer
from tests.cli.cli_runner import Done

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(not local.installed(), reason="the local model is not installed"),
]
ROWS = 200
FREE = ("--price", "input=0,output=0", "--json")
COLOURS = ("red", "green", "blue")
TOPICS = {
    "type": "object", "properties": {"colour": {"enum": list(COLOURS)}}, "required": ["colour"], "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    with LocalModelServer() as started:
        yield started


@pytest.fixture
def asked(cortex, server: LocalModelServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Run a job over the server."""

    def run(*words: object) -> Done:
        monkeypatch.setenv("CORTEX_SERVER_KEY", server.credential.api_key)  # a command takes it out of its environment
        return cortex(*words, "--base-url", server.start(), "--model", LOCAL_MODEL_NAME, *FREE)

    return run


def table(rows: int) -> None:
    with open("in.csv", "w", newline="") as file:
        csv.writer(file).writerows([("id", "thing"), *((f"r{at}", f"{at}") for at in range(rows))])


def answers(path: str) -> dict[str, dict[str, Any]]:
    with open(path, newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("api", [pytest.param("chat", marks=pytest.mark.long), pytest.param("messages", marks=pytest.mark.release)])
def test_two_hundred_rows_at_the_defaults_and_none_times_out(asked, api: str, tell: Callable[[str], None]) -> None:
    table(ROWS)
    done = asked("batch", "in.csv", "--prompt", "Say a word: {{thing}}.", "--id", "id", "-o", "out.csv", "--api", api,
                 "--max-output-tokens", 1, "--on-cut", "keep")  # fmt: skip
    assert (done.code, done.last["rows_succeeded"]) == (0, ROWS), done.err
    tell(f"{api}: {ROWS} rows in {done.last['elapsed_s']:.0f} s, failed attempts {done.last['failures']}")
    assert done.last["attempts"] == done.last["calls"] == ROWS, done.last["failures"]
    assert len(answers("out.csv")) == ROWS and all(row["answer"] for row in answers("out.csv").values())
    assert done.last["output_tokens"] > 0 and done.last["input_tokens"] > 0


@pytest.mark.parametrize("words", [("--api", "chat"), ()])
def test_a_schema_is_kept_by_a_grammar(asked, words: tuple[str, ...]) -> None:
    """Its Messages API passes over schemas, and over tools where the model's chat template knows none."""
    table(4)
    Path("schema.json").write_text(json.dumps(TOPICS))
    done = asked("batch", "in.csv", "--prompt", "Which colour has {{thing}}?", "--id", "id", "-o", "out.csv", "--schema",
                 "schema.json", "--max-output-tokens", 60, *words)  # fmt: skip
    assert (done.code, done.last["rows_succeeded"]) == (0, 4), done.err
    assert done.last["calls"] == 4, "no answer was asked for again"
    assert {row["colour"] for row in answers("out.csv").values()} <= set(COLOURS)
    if not words:
        assert "is llama.cpp, whose Messages API passes over schemas: asked by OpenAI's chat completions" in done.err


def test_a_wrong_key_is_one_line_and_fails_no_row(asked, cortex, server: LocalModelServer, monkeypatch) -> None:
    table(3)
    monkeypatch.setenv("CORTEX_SERVER_KEY", "a-guess-0123456789")
    done = cortex("batch", "in.csv", "--prompt", "A word for {{thing}}?", "--id", "id", "-o", "out.csv", "--base-url",
                  server.start(), "--model", LOCAL_MODEL_NAME, "--max-output-tokens", 2, *FREE)  # fmt: skip
    assert (done.code, done.last["rows_failed"]) == (3, 0), done.err
    (line,) = [line for line in done.said() if "unauthorised" in line]
    assert "no row failed: set the key of that server in CORTEX_SERVER_KEY" in line
