"""``.ci/debian``: what is missing is installed where that is possible, else said; it never fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

NEEDED = "sh env timeout date mktemp rm tail cat sleep".split()
SAYS = 'echo "$@" >> "{log}"\nexit {code}\n'


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of commands in which nothing is installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in NEEDED:
        found = next(path for path in map(Path, ("/bin", "/usr/bin")) if (path / name).exists())
        (folder / name).symlink_to(found / name)
    _command(folder, "sleep", "exit 0\n")
    return folder


def _command(folder: Path, name: str, source: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + source)
    (folder / name).chmod(0o755)


def _run(place: Path, *pairs: str) -> str:
    command = [str(ROOT / ".ci" / "debian"), *pairs]
    done = subprocess.run(
        command, env={"PATH": str(place), "TMPDIR": os.fspath(place)}, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_nothing_is_said_where_nothing_is_missing(place):
    _command(place, "browser", "")
    assert _run(place, "browser=browser-package") == ""


@pytest.mark.parametrize("who", ["nobody", "root without apt-get"])
def test_who_cannot_install_is_told_what_is_missing(place, who):
    if who == "nobody":
        _command(place, "apt-get", SAYS.format(log=place / "log", code=0))
        _command(place, "id", "echo 1000\n")
    text = _run(place, "browser=browser-package", "tool=tool-package")
    assert text == "cortex: not installed here, and only root installs with apt-get: browser-package tool-package\n"
    assert not (place / "log").exists()


@pytest.mark.parametrize(("code", "told"), [(0, "installed in"), (100, "apt-get failed; its last lines:")])
def test_root_installs_what_is_missing_and_a_failure_is_told(place, code, told):
    _command(
        place, "apt-get", SAYS.format(log=place / "log", code=code) if code == 0 else f"echo no route\nexit {code}\n"
    )
    _command(place, "id", "echo 0\n")
    _command(place, "tool", "")
    text = _run(place, "browser=browser-package", "tool=tool-package")
    assert "cortex: installing from Debian: browser-package\n" in text
    assert told in text
    if code:
        assert "no route" in text
    else:
        calls = (place / "log").read_text().splitlines()
        assert [line.split()[-1] for line in calls] == ["update", "browser-package"]
