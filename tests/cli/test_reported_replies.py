"""Replies, values and surroundings that strangers reported as mistaken, each by its command and with the right result."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_runner import environment
from tests.support.dictated_provider import DictatedProvider, dictated_provider
from tests.support.patience import PATIENCE_S

SHOWN = ("--prompt", "{{text}}", "--id", "id", "--ordered", "-o", "out.csv", "--job", "j")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[DictatedProvider]:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    with dictated_provider() as found:
        yield found


def _table(rows: dict[str, Any], path: str = "in.csv") -> None:
    with Path(path).open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text"])
        for name, dictated in rows.items():
            table.writerow([name, dictated if isinstance(dictated, str) else json.dumps(dictated)])


def _model(provider: DictatedProvider) -> tuple[str, ...]:
    return "--model", "claude-haiku-4-5", "--base-url", provider.url


def _rows(path: str = "out.csv") -> dict[str, dict[str, str]]:
    with Path(path).open(newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


ENDINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "whole": ({"text": "a whole answer"}, "a whole answer", ""),
    "cut": ({"text": "in the mid", "stop_reason": "max_tokens"}, "in the mid", "cut: "),
    "window": ({"text": "this too", "stop_reason": "model_context_window_exceeded"}, "this too", "cut: "),
    "paused": ({"text": "Let me look", "stop_reason": "pause_turn"}, "Let me look", "paused: "),
    "thought": (
        {"content": [{"type": "thinking", "thinking": "hmm", "signature": "s"}], "stop_reason": "max_tokens"}, "", "cut: ",
    ),
    "tool": ({"content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}], "stop_reason": "tool_use"}, "", "tool_use: "),
    "nothing": ({"content": []}, "", "empty: "),
}  # fmt: skip


def test_01_cut_answers(cortex: Any, provider: DictatedProvider) -> None:
    _table({name: dictated for name, (dictated, _, _) in ENDINGS.items()})
    done = cortex("batch", "in.csv", *SHOWN, *_model(provider), "--max-output-tokens", 20)
    counts = "1 of 7 rows succeeded, 6 failed (3 cut, 1 empty, 1 paused, 1 tool_use)"
    assert (done.code, counts in done.err) == (1, True), done.err
    for name, row in _rows().items():
        _, answer, error = ENDINGS[name]
        assert row["answer"] == answer and row["error"].startswith(error) and bool(row["error"]) == bool(error), row
    assert counts.replace("rows ", "") in cortex("status", "j").out
    asked = Counter(provider.asked)
    os.environ["ANTHROPIC_API_KEY"] = "sk-test"  # a command takes the key out of its environment
    again = cortex("retry", "j", "--kind", "cut,empty", "--max-output-tokens", 200)
    assert "4 failed rows are asked again (3 cut, 1 empty)" in again.err
    assert sorted((Counter(provider.asked) - asked).values()) == [1] * 4


def test_01_cut_answers_in_a_flow(cortex: Any, provider: DictatedProvider) -> None:
    Path("f.py").write_text("import cortex\n\n\n@cortex.flow\nasync def f(ctx, said: str) -> str:\n    return await ctx.ask(said)\n")
    done = cortex("run", "f.py:f", "-p", 'said={"text": "in the mid", "stop_reason": "max_tokens"}', *_model(provider))
    assert (done.code, "cut: f.py:6: the reply was cut" in done.err) == (1, True), done.err


def test_05_output_lost(cortex: Any, provider: DictatedProvider) -> None:
    _table(dict.fromkeys("123", "a"))
    command = ("batch", "in.csv", *SHOWN, "--max-output-tokens", 8)
    assert cortex(*command, *_model(provider)).code == 0
    paid = Path("out.csv").read_bytes()
    nobody = ("--model", "claude-haiku-4-5", "--base-url", "http://127.0.0.1:9")
    cortex(*command, "--prompt", "B: {{text}}", *nobody).refused("out.csv", "--overwrite")
    assert Path("out.csv").read_bytes() == paid
    assert len(cortex("results", "j").out.splitlines()) == 3


def test_08_base_url_v1(cortex: Any, provider: DictatedProvider) -> None:
    _table({str(n): f"row {n}" for n in range(30)})
    done = cortex("batch", "in.csv", *SHOWN, "--model", "claude-haiku-4-5", "--base-url", f"{provider.url}/v1")
    assert (done.code, set(provider.paths)) == (0, {"/v1/messages"}), done.err


SCORE = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
SCORES = {
    "plain": '{"score": 3}', "zero fraction": '{"score": 3.0}', "exponent": '{"score": 1e2}', "fence": '```json\n{"score": 3}\n```',
    "prose and fence": 'Here it is:\n\n```json\n{"score": 3}\n```\nAnything else?', "prose": 'Sure: {"score": 3}',
}  # fmt: skip


def test_09_answers_that_fit(cortex: Any, provider: DictatedProvider) -> None:
    _table({name: {"text": text} for name, text in SCORES.items()})
    Path("s.json").write_text(json.dumps(SCORE))
    done = cortex("batch", "in.csv", *SHOWN, *_model(provider), "--schema", "s.json", "--schema-as", "prompt")
    assert done.code == 0, done.err
    assert {name: row["score"] for name, row in _rows().items()} == dict.fromkeys(SCORES, "3") | {"exponent": "100"}
    assert len(provider.asked) == len(SCORES)


def test_09_a_field_named_answer(cortex: Any, provider: DictatedProvider) -> None:
    _table({"1": {"text": '{"answer": "yes"}'}})
    Path("a.json").write_text(json.dumps({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}))
    command = ("batch", "in.csv", *SHOWN, *_model(provider), "--schema", "a.json")
    cortex(*command).refused("'answer'", "--answer-as")
    assert cortex(*command, "--answer-as", "reply").code == 0
    assert _rows()["1"]["answer"] == "yes"


def test_12_no_proxy(cortex: Any, provider: DictatedProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    _table({"1": "a"})
    assert cortex("batch", "in.csv", *SHOWN, *_model(provider)).code == 0


def test_03_python_without_a_standard_error(tmp_path: Path) -> None:
    script = "import cortex; open('d.txt', 'w').write(str(cortex.batch([{'t': 'x'}], 'Q {{t}}', model='sim').rows))"
    command = ["bash", "-c", 'exec "$@" 2>&-', "bash", sys.executable, "-c", script]
    assert subprocess.run(command, cwd=tmp_path, env=environment(), timeout=PATIENCE_S, check=False).returncode == 0
    assert "'answer': 'Q x'" in (tmp_path / "d.txt").read_text()


HALF = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "half \ud83d"}],
    "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 3},
}  # fmt: skip
FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "fine": ({"text": "fine"}, "fine"),
    "no usage": ({"text": "an answer without usage", "usage": None}, "an answer without usage"),
    "null tokens": ({"text": "an answer", "usage": {"input_tokens": None, "output_tokens": 3}}, "an answer"),
    "floats": ({"text": "an answer", "usage": {"input_tokens": 10.0, "output_tokens": 3.0}}, "an answer"),
    "negative": ({"text": "an answer", "usage": {"input_tokens": -1, "output_tokens": 3}}, "an answer"),
    "texts": ({"text": "an answer", "usage": {"input_tokens": "10", "output_tokens": "3"}}, "an answer"),
    "beyond 64 bits": ({"text": "an answer", "usage": {"input_tokens": 2**70, "output_tokens": 3}}, "an answer"),
    "half a pair": ({"raw": json.dumps(HALF)}, "half \ufffd"),
    "content is a text": ({"content": "an answer"}, "an answer"),
    "no stop reason": ({"text": "an answer", "stop_reason": None}, "an answer"),
    "text/plain": ({"text": "an answer", "content-type": "text/plain"}, "an answer"),
    "a mark": ({"raw": "\ufeff" + json.dumps(HALF | {"content": [{"type": "text", "text": "an answer"}]})}, "an answer"),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_02_an_answer_with_a_flaw_beside_it_is_kept_and_paid_once(cortex: Any, provider: DictatedProvider, name: str) -> None:
    dictated, answer = FLAWS[name]
    _table({name: dictated})
    command = ("batch", "in.csv", *SHOWN, *_model(provider), "--max-output-tokens", 20, "--max-cost", 1)
    done = cortex(*command, "--deadline", "+100s", "--price-as", "claude-haiku-4-5", "--json")
    assert done.code == 0, done.err
    assert _rows()[name]["answer"] == answer
    assert len(provider.asked) == 1
    assert done.last["cost_usd"] + done.last["cost_assumed_usd"] > 0
