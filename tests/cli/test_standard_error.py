"""Standard streams of real processes that are closed, full or left by their reader.

``tests/cli/test_streams.py`` tries all commands in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_runner import environment
from tests.support.patience import PATIENCE_S

REDIRECTIONS = {"closed": "2>&-", "full": "2>/dev/full", "left by its reader": "2> >(exec true)"}
READING = [["jobs"], ["status", "j"], ["report", "j", "-o", "j.html"], ["inspect", "j", "1"], ["results", "j"], ["costs"],
           ["config", "j"], ["export", "j", "-o", "c.csv"], ["program", "list"]]  # fmt: skip
WRONG = [["batch", "none.csv"], ["status", "no-such-job"], ["resume", "no-such-job"], ["nonsense"]]
ROWS = 40


def run(folder: Path, redirection: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run one command with its standard error redirected by bash."""
    line = 'redirection="$1"; shift; eval "exec \\"\\$@\\" $redirection"'
    argv = ["bash", "-c", line, "bash", redirection, sys.executable, "-m", "actors.cli", *command]
    return subprocess.run(argv, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    lines = [json.dumps({"custom_id": f"r{n}", "params": params}) for n in range(ROWS)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("redirection", REDIRECTIONS.values(), ids=REDIRECTIONS)
def test_a_job_goes_on_to_its_end(rows: Path, redirection: str) -> None:
    slow = ("--sim", "latency_ms=300", "--concurrency", "2")  # progress is written meanwhile: 6 s
    done = run(rows, redirection, "batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "j", *slow)
    assert done.returncode == 0, done
    results = (rows / "out.jsonl").read_text().splitlines()
    assert {json.loads(line)["result"]["type"] for line in results} == {"succeeded"} and len(results) == ROWS
    for command in READING:
        assert run(rows, redirection, *command).returncode == 0, command
    for command in WRONG:
        assert run(rows, redirection, *command).returncode == 2, command


def test_a_terminal_that_is_not_utf_8_ends_no_command(rows: Path) -> None:
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "caf\u00e9 \u2192 \u65e5\u672c"}]}
    (rows / "in.jsonl").write_text(json.dumps({"custom_id": "r\u65e5", "params": params}, ensure_ascii=False))
    assert run(rows, "", "batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "j").returncode == 0
    for command in (["inspect", "j", "1"], ["status", "j"]):
        argv = [sys.executable, "-m", "actors.cli", *command]
        variables = environment(PYTHONIOENCODING="cp1252")
        done = subprocess.run(argv, cwd=rows, env=variables, capture_output=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done
    assert b"\\u65e5" in subprocess.run(
        [sys.executable, "-m", "actors.cli", "inspect", "j", "1"], cwd=rows, capture_output=True, timeout=PATIENCE_S,
        check=True, env=environment(PYTHONIOENCODING="cp1252"),
    ).stdout  # fmt: skip


def test_no_file_of_a_job_takes_the_place_of_a_closed_standard_error(rows: Path) -> None:
    script = "import os; from actors.common.tolerant_stream import guard_standard_streams as guard; guard(); print(open('in.jsonl').fileno() > 2)"
    argv = ["bash", "-c", 'exec "$@" 2>&-', "bash", sys.executable, "-c", script]
    done = subprocess.run(argv, cwd=rows, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "True\n"


FULL, CLOSED = "cannot be written: No space left on device", "is closed"
OUTPUTS = [
    (("jobs",), ">&-", 1, CLOSED), (("jobs",), ">/dev/full", 1, FULL), (("jobs",), "> >(exec true)", 0, ""),
    (("export", "j", "-o", "-"), ">/dev/full", 1, FULL), (("status", "j", "--json"), "> >(exec true)", 0, ""),
    (("batch", "in.jsonl", "-o", "-", "--model", "sim"), ">&-", 2, CLOSED),
    (("batch", "in.jsonl", "-o", "-", "--model", "sim"), ">/dev/full", 3, "No space left on device"),
    (("results", "j", "-o", "copy.jsonl"), ">&-", 0, ""),
]  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full is Linux's")
def test_standard_output_that_cannot_be_written(rows: Path) -> None:
    assert run(rows, "", "batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "j").returncode == 0
    for command, redirection, code, said in OUTPUTS:
        done = run(rows, f"{redirection} 2>said", *command)
        lines = (rows / "said").read_text().splitlines()
        assert done.returncode == code, (command, redirection, lines)
        assert all(line.startswith("cortex: ") for line in lines), lines
        assert [said in line for line in lines if "standard output" in line] == [True] * bool(said), lines


def test_an_argument_that_is_no_text_is_refused_in_one_line(rows: Path) -> None:
    argv = [sys.executable.encode(), b"-m", b"actors.cli", b"batch", b"in.jsonl", b"-o", b"caf\xe9.jsonl"]
    done = subprocess.run(argv, cwd=rows, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "argument 'caf\\udce9.jsonl' holds bytes that are no utf-8" in done.stderr
