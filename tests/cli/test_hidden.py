"""Somebody's own folder named like one of our packages: noticed and named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.common.shadowing import HERE, hidden_line
from tests.cli.cli_runner import ROOT, environment


def test_nothing_is_hidden_here():
    assert HERE == ROOT
    assert hidden_line() == ""


@pytest.mark.parametrize("package", ["policies", "cortex"])
@pytest.mark.parametrize("as_file", [False, True])
def test_a_folder_that_hides_a_package(tmp_path, package, as_file):
    place = tmp_path / f"{package}.py" if as_file else tmp_path / package / "__init__.py"
    place.parent.mkdir(exist_ok=True)
    place.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "actors.cli", "jobs"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    found = place if as_file else place.parent
    assert line.startswith(f"cortex: {found} hides the package {package} of cortex (in {ROOT})")


def test_a_folder_without_modules_hides_nothing(tmp_path):
    (tmp_path / "policies").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "actors.cli", "jobs"], cwd=tmp_path, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0


def test_a_package_that_is_missing(tmp_path):
    assert "hides the package actors" in hidden_line(Path(tmp_path))
