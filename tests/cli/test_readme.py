"""What the README shows, works."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import requests

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_program_and_its_test_run(tmp_path: Path) -> None:
    code, test = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 25
    (tmp_path / "triage.py").write_text(code)
    (tmp_path / "test_triage.py").write_text(test)
    for words, said in ((["triage.py"], r"'(?:bug|praise)', '(?:bug|praise)'"), (["-m", "pytest", "-q"], "1 passed")):
        ran = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert re.search(said, ran.stdout)


def test_every_command_and_option_it_names_exists() -> None:
    shown = _help("batch")
    for option in sorted(set(re.findall(r"`(--[a-z-]+)", README))):
        assert option in shown, option
    commands = set(re.findall(r"\bcortex ([a-z]+)(?: [A-Z-]|`| +cortex|\n)", README)) - {"leases"}
    assert commands >= {"batch", "status", "resume", "cancel", "set", "limit", "drain"}
    for command in sorted(commands):
        assert f"cortex {command}" in _help(command)
    for command, words in re.findall(r"`cortex ((?:program )?[a-z-]+) ([^`]*--[^`]*)`", README):
        for option in re.findall(r"--[a-z-]+", words):
            assert option in _help(command), (command, option)


def test_the_options_about_limits_are_taken_as_they_stand(cortex) -> None:
    requests(Path("in.jsonl"), 3)
    section = README.partition("## Limits, and what goes wrong")[2].partition("\n## ")[0]
    said = dict(re.findall(r"`(--[a-z-]+)(?: ([^ `]+))?`", section))
    for name in ("--cluster", "--fallback", "--max-cost", "--via"):  # asked of other jobs
        said.pop(name, None)
    assert len(said) >= 12, said
    numbers = {"--concurrency": "10", "--rpm": "6000", "--itpm": "1e6", "--otpm": "1e6", "--priority": "2"}
    words = [word for name, value in said.items() for word in (name, value or numbers.get(name, "")) if word]
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "JOB", "--max-cost", 1)
    prices = ("--price", "input=3,output=15", "--fallback", "sim,seed=2,input=3,output=15")
    done = cortex(*command, *prices, *words)
    assert done.code == 0, done.err
    for shown in re.findall(r"`cortex (set [^`]*|drain JOB|resume JOB|limit [^`]*)`", section):
        words = shown.replace("sonnet", "sim").split()
        assert "Traceback" not in (done := cortex(*words)).err
        assert "--help" not in done.err, done.err


@functools.cache
def _help(command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "actors.cli", *command.split(), "--help"], cwd=ROOT, capture_output=True, text=True, check=True,
        env={"COLUMNS": "200"},
    ).stdout  # fmt: skip
