"""A job file, variables and the command line: which wins, where each value comes from, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cli.options.options import keys
from actors.cli.reference import page
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import ROOT, each_once, requests

JOB = """
input = "in.jsonl"
output = "out.jsonl"
model = "sim"
job = "mine"
max_job_tokens = 100_000
concurrency = 3
priority = 2.5

[sim]
latency_ms = 0
"""


def _file(text: str = JOB, folder: str = "jobs") -> str:
    Path(folder).mkdir(exist_ok=True)
    requests(Path(folder) / "in.jsonl", 6)
    (Path(folder) / "job.toml").write_text(text)
    return f"{folder}/job.toml"


def _limits():
    return last_state(StateFolder(os.environ["CORTEX_STATE"]), "mine").terms.limits


def _config(cortex, *arguments: object) -> dict[str, tuple[str, str]]:
    reported = json.loads(cortex("config", "mine", "--json").out)
    assert reported["job"] == "mine"
    return {name: (each["value"], each["from"]) for name, each in reported["config"].items()}


def test_a_job_file_holds_it_all_and_its_paths_are_its_own(cortex):
    assert cortex("batch", "-f", _file()).code == 0
    each_once(Path("jobs/out.jsonl"), 6)
    assert (_limits().concurrency, _limits().max_job_tokens, _limits().priority) == (3, 100_000, 2.5)
    assert "complete" in cortex("status", "-f", "jobs/job.toml").out
    assert "is already complete" in cortex("resume", "--file", "jobs/job.toml").said()[0]


def test_the_command_line_wins_over_variables_and_these_over_the_file(cortex, monkeypatch):
    file = _file()
    monkeypatch.setenv("CORTEX_CONCURRENCY", "4")
    monkeypatch.setenv("CORTEX_PRIORITY", "5")
    assert cortex("batch", "-f", file, "--priority", 7, "--rpm", 90_000).code == 0
    assert (_limits().max_job_tokens, _limits().concurrency, _limits().priority) == (100_000, 4, 7.0)
    found = _config(cortex)
    assert found["max-job-tokens"] == ("100000", "jobs/job.toml line 6")
    assert found["concurrency"] == ("4", "CORTEX_CONCURRENCY")
    assert found["priority"] == ("7", "command line")
    assert found["sim"] == ("latency_ms=0", "jobs/job.toml line 10")
    assert found["input"][1].startswith("jobs/job.toml line ") and found["output"][1].startswith("jobs/job.toml line ")
    assert found["headroom"] == ("0", "default") and found["hedge"] == ("", "default")
    lines = cortex("config", "mine").out.splitlines()
    assert any(line.split() == ["priority", "7", "command", "line"] for line in lines)
    assert not any(line.startswith("hedge") for line in lines), "what is not there is not shown"


def test_what_was_changed_since_and_by_whom(cortex):
    assert cortex("batch", "-f", _file(), "--max-job-tokens", 60, "--price", "input=1,output=1").code == 3
    assert cortex("set", "mine", "--max-cost", 3).code == 0
    assert cortex("resume", "mine", "--max-job-tokens", "none", "--accept-partial").code == 0
    found = _config(cortex)
    assert found["max-cost"][0] == "$3.00" and found["max-cost"][1].startswith("changed by ")
    assert found["max-job-tokens"][0] == "" and found["max-job-tokens"][1].startswith("changed by ")
    assert found["accept-partial"] == ("true", "command line of cortex resume")
    assert found["concurrency"] == ("3", "jobs/job.toml line 7")


def test_what_must_be_told_does_not_come_from_a_file(cortex):
    _file()
    assert cortex("batch", "-f", "jobs/job.toml").code == 0
    cortex("set", "-f", "jobs/job.toml").refused("nothing to set")
    assert "no row failed" in cortex("retry", "-f", "jobs/job.toml").refused()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_costt = 3", ["line 12: unknown key 'max_costt': did you mean max-cost?"]),
        ("modle = 'x'", ["line 12: unknown key 'modle': did you mean model?"]),
        ("zzzz = 1", ["line 12: unknown key 'zzzz': see docs/reference.md"]),
        ("api_key = 'sk-ant-secret'", ["unknown key 'api_key'"]),
        ("rpm = [3]", ["line 12: rpm is a list: give a text or a number"]),
        ("base_url = 3", ["line 12: base_url is 3: give a list of texts"]),
        ("max-output-tokens = '8'", ["line 12: max-output-tokens is '8': give a whole number"]),
        ("fresh = 1", ["line 12: fresh is 1: give true or false"]),
        ("fallback = [1]", ["line 12: fallback is a list: give a list of texts"]),
        ("max-cost = -1", ["--max-cost: '-1': give an amount of USD above zero", "(jobs/job.toml line 12)"]),
        ("deadline = 2001-01-01", ["--deadline: 2001-01-01 has passed", "(jobs/job.toml line 12)"]),
        ("concurrency = 5\nconcurrency = 6", ["is not valid TOML", "line 13"]),
        ("max-job-tokens = 5", ["line 12: max-job-tokens is given twice"]),
        ("base_url = 'http://u:p@host'", ["--base-url holds a password"]),
    ],
)
def test_bad_files(cortex, line, words):
    text = JOB.replace("\n[sim]\nlatency_ms = 0\n", "\n\n\n") + line + "\n"
    if line.startswith("concurrency"):
        text = text.replace("concurrency = 3\n", "\n", 1)
    answer = cortex("batch", "-f", _file(text)).refused(*words)
    assert "secret" not in answer
    assert not Path("jobs/out.jsonl").exists()


def test_files_that_are_none(cortex):
    cortex("batch", "-f", "nope.toml").refused("nope.toml cannot be read: No such file")
    cortex("batch", "-f", ".").refused("cannot be read")
    Path("x.toml").write_bytes(b"\xff\xfe")
    cortex("batch", "-f", "x.toml").refused("x.toml is not UTF-8 text: save it as UTF-8")


def test_a_program_and_its_parameters_are_found_beside_the_file(cortex):
    Path("sub").mkdir()
    Path("sub/own.py").write_text(
        "import cortex\n\nclass Own(cortex.Program):\n    greeting: str\n    def begin(self, k):\n"
        "        yield cortex.Goal('g', self.greeting)\n    def select(self, k):\n        for goal in k.open('g'):\n"
        "            yield cortex.Ask(goal, cortex.Prompt('own', (cortex.Part(cortex.Role.GOAL, goal.value),)))\n"
        "    def absorb(self, k, goal, reply):\n        yield cortex.Resolve(goal, goal.value)\n"
    )
    Path("sub/hello.txt").write_text("hello there")
    Path("sub/job.toml").write_text(
        'program = "own.py:Own"\nmodel = "sim"\njob = "mine"\n[param]\ngreeting = "@hello.txt"\n'
    )
    done = cortex("run", "-f", "sub/job.toml")
    assert (done.code, done.out) == (0, "hello there\n")


def test_every_option_can_stand_in_a_file_and_the_page_says_so():
    names = [key.name for key in keys().values()]
    assert len(names) == len(set(names)) and {"max-cost", "sim", "json", "input"} <= set(names)
    assert all(f"| `{name}` |" in page() for name in names)


def test_the_reference_is_current():
    """``python -m actors.cli.reference > docs/reference.md``."""
    made = subprocess.run(
        [sys.executable, "-m", "actors.cli.reference"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout  # fmt: skip
    assert (ROOT / "docs" / "reference.md").read_text() == made
    assert page() == made
