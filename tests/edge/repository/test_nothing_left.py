"""``.ci/nothing_left.py``, under which make test runs: what outlives its command is found, named, ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository_rules import ROOT

# A grandchild in a session of its own, that says its id and then stays: with an environment or without one.
ORPHAN = """
import subprocess, sys
code = "import os, time; print(os.getpid(), flush=True); time.sleep(float({stay!r}))"
started = subprocess.Popen(
    [sys.executable, "-c", code], env={env}, start_new_session=True, stdout=subprocess.PIPE, text=True
)
print(started.stdout.readline().strip(), flush=True)
sys.exit({code})
"""


def _run(source: str, grace_s: float = 0.5) -> tuple[int, str, str]:
    checker = [sys.executable, str(ROOT / ".ci" / "nothing_left.py"), "--grace", str(grace_s)]
    command = [*checker, sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


elsewhere_marked = pytest.mark.skipif(sys.platform != "linux", reason="there the environment is the mark")


@pytest.mark.parametrize("env", ["None", pytest.param("{}", marks=elsewhere_marked)])
def test_an_orphan_is_found_named_and_ended(env):
    code, out, err = _run(ORPHAN.format(stay=60, env=env, code=0))
    orphan = int(out)
    assert code == 1
    assert f"left running after the command ended: {orphan} " in err
    with pytest.raises(ProcessLookupError):
        os.kill(orphan, 0)


def test_an_orphan_that_ends_within_the_grace_is_none():
    assert _run(ORPHAN.format(stay=0.3, env="None", code=0), grace_s=20)[0] == 0


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(code):
    assert _run(f"raise SystemExit({code})")[0] == code


def test_a_command_ended_by_a_signal_is_a_failure():
    assert _run("import os; os.kill(os.getpid(), 9)")[0] == 137
