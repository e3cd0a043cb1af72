"""A script beside somebody's own `actors` or `policies` is told so, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["actors", "policies"])
@pytest.mark.parametrize("form", ["{name}.py", "{name}/__init__.py"])
@pytest.mark.parametrize("door", ["run", "testing.ScriptedModel"])
def test_what_hides_a_package_is_named(tmp_path: Path, name: str, form: str, door: str) -> None:
    hiding = tmp_path / form.format(name=name)
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("x = 1")
    (tmp_path / "script.py").write_text(f"import cortex; cortex.{door}")
    ran = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert f"hides the package {name} of cortex" in last
