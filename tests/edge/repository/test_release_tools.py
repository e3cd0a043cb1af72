"""``.ci/audit.py`` with a pip-audit that only says what it is told, and what ``.ci/release_version`` refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

PIP_AUDIT = """
import os, sys
name = "known" if sys.argv[-1].endswith("known.txt") else "lock"
print(os.environ["SAID_" + name.upper()])
"""
VULN = {"name": "jinja2", "version": "3.1.2", "vulns": [{"id": "PYSEC-1"}]}
CLEAN = {"name": "ray", "version": "2.60.0", "vulns": []}
UNKNOWN = {"name": "ray", "skip_reason": "Dependency not found on PyPI and could not be audited"}


def audit(folder: Path, known: Any, lock: Any, *words: str) -> tuple[int, str]:
    (folder / "pip_audit").mkdir()
    (folder / "pip_audit" / "__init__.py").touch()
    (folder / "pip_audit" / "__main__.py").write_text(PIP_AUDIT)
    told = {"SAID_KNOWN": known, "SAID_LOCK": lock}
    environment = {name: json.dumps({"dependencies": each}) if isinstance(each, list) else each for name, each in told.items()}
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "audit.py"), *words], capture_output=True, text=True, timeout=PATIENCE_S,
        env={**os.environ, **environment, "PYTHONPATH": str(folder)}, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("known", "lock", "words", "code", "said"),
    [
        ([VULN], [CLEAN, CLEAN], (), 0, "audited 2 of "),
        ([VULN], [CLEAN, VULN], (), 1, "jinja2 3.1.2: PYSEC-1\naudited 2 of "),
        ([VULN], [CLEAN, UNKNOWN], (), 0, "ray: not audited\naudited 1 of "),
        ([VULN], [CLEAN, UNKNOWN], ("--required",), 1, "ray: not audited\naudited 1 of "),
        ([VULN], "", (), 1, "audit failed: pip-audit said nothing"),
        ([UNKNOWN], [CLEAN], (), 0, "audit skipped: "),
        ([{**VULN, "vulns": []}], [CLEAN], (), 0, "audit skipped: "),
        ("", [CLEAN], (), 0, "audit skipped: "),
        ("", [CLEAN], ("--required",), 1, "audit skipped: "),
    ],
)
def test_an_audit_passes_only_where_the_service_knows_what_is_known(known, lock, words, code, said, tmp_path):
    found, text = audit(tmp_path, known, lock, *words)
    assert found == code and text.startswith(said), text


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3 "])
def test_a_release_has_three_numbers(version):
    done = subprocess.run(
        [str(ROOT / ".ci" / "release_version"), version], cwd=ROOT, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )
    assert done.returncode == 1 and "give three numbers, make release-version VERSION=1.2.3" in done.stderr
