"""``--log-format``, ``--log-level`` and ``--metrics-listen`` as a user gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository_rules import ROOT

KEY = "sk-ant-api03-MARKEDKEY-0123456789"


def _run(folder: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "MARKEDPROMPT"}]}
    lines = [json.dumps({"custom_id": f"r{n}", "params": params}) for n in range(30)]
    (folder / "in.jsonl").write_text("\n".join(lines))
    command = ["batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--state", "state", "--job", "j", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ANTHROPIC_API_KEY": KEY, **variables}
    argv = [sys.executable, "-m", "actors.cli", *command]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_all_of_standard_error_is_json_where_that_was_asked_for(tmp_path):
    done = _run(tmp_path, "--log-format", "json", "--sim", "overloaded=0.1", CORTEX_LOG_LEVEL="debug")
    entries = [json.loads(line) for line in done.stderr.splitlines()]
    logged = entries
    assert {"time", "level", "logger", "message", "job"} <= set.intersection(*map(set, logged))
    assert {line["job"] for line in logged} == {"j"}
    parts = [line["message"] for line in logged]
    assert (
        "the job begins" in parts and "the job has ended" in parts and any("rows succeeded" in line for line in parts)
    )
    written = [
        path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file() and "sqlite" not in path.name
    ]
    for text in (done.stderr.encode(), done.stdout.encode(), *written):
        assert b"MARKED" not in text, text[:2_000]


def test_without_a_word_lines_are_for_people(tmp_path):
    done = _run(tmp_path)
    assert done.returncode == 0
    assert all(line.startswith(("cortex: ", "j: ")) for line in done.stderr.splitlines()), done.stderr


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--log-format", "xml"), "cortex: --log-format xml: give text or json"),
        (("--log-level", "loud"), "cortex: --log-level loud: give debug, info, warning, error"),
        (("--metrics-listen", "here"), "cortex: --metrics-listen here: give HOST:PORT"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_before_anything_is_sent(tmp_path, more, told):
    done = _run(tmp_path, *more)
    assert (done.returncode, done.stderr.strip()) == (2, told)
    assert not (tmp_path / "out.jsonl").exists()


def test_what_a_command_ends_by_is_an_error_in_the_logs(cortex):
    for words in (("batch", "nofile.jsonl", "-o", "out.jsonl", "--log-format", "json"),
                  ("batch", "nofile.jsonl", "-o", "out.jsonl", "--log-format", "json", "--concurrency", "0")):  # fmt: skip
        done = cortex(*words)
        (line,) = done.err.splitlines()
        assert (done.code, json.loads(line)["level"]) == (2, "error")
