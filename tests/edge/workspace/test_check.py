"""The check of a folder: what passes, what it says, how it ends, and what it sees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.common.process_owner import process_started
from actors.workspace.check import OUTPUT_BYTES_MAX, checked, script_of
from actors.workspace.snapshots import FolderSnapshots
from tests.support.patience import PATIENCE_S


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("old\n")
    (place / "b.txt").write_text("one\n")
    return place


@pytest.fixture
def checking(folder: Path) -> FolderSnapshots:
    """The folder, claimed."""
    keeping = FolderSnapshots(folder)
    keeping.claim("job")
    return keeping


@pytest.mark.parametrize(
    ("check", "passed", "exit_code", "failing", "said"),
    [
        ("true", True, 0, None, ""),
        ("echo all passed; exit 1", False, 1, None, "all passed"),  # what it says is not what it finds
        ("echo 7 missing", True, 0, 7, "7 missing"),
        ("exit 300000", False, None, None, None),
        ("no-such-command-anywhere", False, 127, None, None),
        ("kill -9 $$", False, -9, None, ""),
        ("echo said >&2; exit 3", False, 3, None, "said"),
        ("read x", False, 1, None, ""),  # nobody is there to answer
    ],
)
def test_a_check_passes_by_its_exit_code_alone(folder, checking, check, passed, exit_code, failing, said):
    found = checked(checking, check, PATIENCE_S)
    assert found["passed"] is passed and found["failing"] == failing
    assert exit_code is None or found["exit"] == exit_code
    assert said is None or found["said"] == said


FUNCTIONS = """
def nothing(folder): return None
def true(folder): return True
def zero(folder): return 0
def none_left(folder): return []
def false(folder): return False
def three(folder): return 3
def findings(folder):
    import pathlib
    return [f"{path.name}: wrong" for path in sorted(pathlib.Path(folder).glob("*.txt"))]
def text(folder): return "a.txt: wrong"
def raises(folder): raise KeyError("inside")
def ends(folder): raise SystemExit(0)
"""


@pytest.mark.parametrize(
    ("name", "passed", "failing", "said"),
    [
        ("nothing", True, None, ""),
        ("true", True, None, ""),
        ("zero", True, None, ""),
        ("none_left", True, None, ""),
        ("false", False, None, ""),
        ("three", False, 3, "3 remaining"),
        ("findings", False, 2, "a.txt: wrong\nb.txt: wrong\n2 remaining"),
        ("text", False, 1, "a.txt: wrong\n1 remaining"),
        ("raises", False, None, "KeyError: 'inside'"),
        ("absent", False, None, "KeyError: 'absent'"),
    ],
)
def test_a_function_says_what_is_left(folder, checking, name, passed, failing, said):
    (folder.parent / "checks.py").write_text(FUNCTIONS)
    found = checked(checking, f"../checks.py:{name}", PATIENCE_S)
    assert (found["passed"], found["failing"]) == (passed, failing)
    assert found["said"] == said or (said and found["said"].endswith(said))


def test_a_module_of_the_folder_is_found_and_none_in_place_of_the_standard_library(folder, checking):
    (folder / "part.py").write_text("left = 3\n")
    (folder / "check.py").write_text(
        "def passes(folder):\n    import json, part\n    return json.loads(str(part.left))\n"
    )
    for name in ("pkgutil", "runpy", "json"):
        (folder / f"{name}.py").write_text("import os\nos._exit(0)\n")
    found = checked(checking, "check.py:passes", PATIENCE_S)
    assert (found["passed"], found["failing"], found["said"]) == (False, 3, "3 remaining")


def test_a_check_sees_no_key(checking, monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "RAY_AUTH_TOKEN", "ITS_TWIN"):
        monkeypatch.setenv(name, "sk-ant-very-secret")
    assert checked(checking, "env", PATIENCE_S)["said"].count("secret") == 0


def test_what_a_check_reads_of_the_process_that_began_it_is_told_without_the_key(folder):
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom actors.workspace.check import checked\n"
        "from actors.workspace.snapshots import FolderSnapshots\nos.environ.pop('ANTHROPIC_API_KEY')\n"
        "keeping = FolderSnapshots(Path(sys.argv[1]))\nkeeping.claim('job')\n"
        "print(checked(keeping, 'tr \"\\\\0\" \"\\\\n\" < /proc/$PPID/environ; echo seen', 120.0)['said'])"
    )
    environ = {**os.environ, "ANTHROPIC_API_KEY": "sk-ant-very-secret", "PYTHONPATH": str(Path.cwd())}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=environ, capture_output=True, text=True, check=True
    )
    assert "seen" in ran.stdout and "very-secret" not in ran.stdout


def _buried(pid: int) -> bool:
    """Whether a process is gone: one that was killed stays until whoever is its parent by now has buried it."""
    until_s = time.monotonic() + PATIENCE_S
    while process_started(pid) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not process_started(pid)


def test_a_check_that_hangs_is_ended_with_all_that_it_started(folder, checking):
    pids = folder.parent / "pids"
    begun_s = time.monotonic()
    found = checked(checking, f"sleep 100 & echo $! > {pids}; echo 2 missing; sleep 100", 3.0)
    assert time.monotonic() - begun_s < 90
    assert (found["passed"], found["exit"], found["failing"]) == (False, None, None)
    assert "did not end within 3 s" in found["said"]
    assert _buried(int(pids.read_text())), "what it had started is gone too"


def test_what_a_check_leaves_running_is_ended_with_it(folder, checking):
    pids = folder.parent / "pids"
    assert checked(checking, f"sleep 100 & echo $! > {pids}", PATIENCE_S)["passed"]
    assert _buried(int(pids.read_text()))


def test_a_check_that_floods_is_cut_in_the_middle(folder, checking):
    found = checked(checking, "echo begin; yes | head -c 5000000; echo 4 missing; false", PATIENCE_S)
    assert len(found["said"]) < OUTPUT_BYTES_MAX + 100
    assert found["said"].startswith("begin") and found["said"].endswith("4 missing") and "left out" in found["said"]
    assert found["failing"] == 4


@pytest.mark.parametrize(
    ("check", "script"),
    [
        ("python3 check.py", ["check.py"]),
        ("python3.11 -u ./sub/check.py --all", ["sub/check.py"]),
        (f"{sys.executable} check.py", ["check.py"]),
        ("./check.sh -q", ["check.sh"]),
        ("check.py:passes", ["check.py"]),
        ("bash check.sh", ["check.sh"]),
        ("python3 main.py | grep ok", []),
        ("test -f a.txt && python3 check.py", []),
        ("diff wanted.txt out.txt", ["diff"]),
        ("make test", ["make"]),
        ("echo 'open", []),
        ("", []),
    ],
)
def test_the_file_that_is_the_check_is_known_where_it_is_plain(check, script):
    assert script_of(check) == script
