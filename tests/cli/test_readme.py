"""What the README shows, works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_program_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 25
    (tmp_path / "first.py").write_text(code)
    ran = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert len(re.findall(r"'(?:bug|praise)'", ran.stdout)) == 2


def test_every_command_and_option_it_names_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "actors.cli", "batch", "--help"], cwd=ROOT, capture_output=True, text=True,
        env={"COLUMNS": "200"},
    ).stdout  # fmt: skip
    for option in sorted(set(re.findall(r"`(--[a-z-]+)", README)) - {"--cluster inline"}):
        assert option in shown, option
    for command in sorted(set(re.findall(r"(?m)\bcortex (batch|run|resume|status|jobs|results|cancel)\b", README))):
        helped = subprocess.run(
            [sys.executable, "-m", "actors.cli", command, "--help"], cwd=ROOT, capture_output=True, text=True
        )
        assert helped.returncode == 0, command
