"""The Makefile, where a line of it could be lost without anybody seeing it."""

from __future__ import annotations

import os
import subprocess

from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

SEEN = 'include Makefile\nseen: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"\n'


def test_what_the_tests_start_is_compiled_once_also_where_python_is_told_to_write_nothing() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    ended = subprocess.run(
        ["make", "-s", "-f", "-", "seen"], cwd=ROOT, input=SEEN, capture_output=True, text=True, timeout=PATIENCE_S,
        env=environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "[]\n"), ended.stderr
