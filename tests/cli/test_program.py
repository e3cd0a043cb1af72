"""``program list`` tells which programs there are; ``program new`` writes one that runs, with its test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cortex.programs import READY
from tests.cli.cli_runner import environment


def test_the_ready_programs_with_their_first_line_and_parameters(cortex):
    reported = json.loads(cortex("program", "list", "--json").out)["programs"]
    assert [each["program"] for each in reported] == sorted(READY)
    hanoi = next(each for each in reported if each["program"] == "hanoi")
    assert hanoi["does"].startswith("Move ``disks`` disks from peg 0 to peg 2")
    assert hanoi["parameters"][0] == {"name": "disks", "type": "int", "default": "default 3"}
    assert all(each["does"] for each in reported)
    answer = cortex("program", "list").out
    assert "hanoi: Move ``disks``" in answer
    assert "    -p disks=…   int, default 3" in answer


@pytest.mark.parametrize("file", ["triage.py", "my-own flows/sort-it.py"])
def test_a_new_program_runs_tells_its_parameters_and_passes_its_own_test(cortex, file):
    Path(file).parent.mkdir(exist_ok=True)
    done = cortex("program", "new", file)
    assert done.code == 0
    assert "cortex run " in done.said()[0] and "pytest " in done.said()[0]
    run = cortex("run", file, "--model", "sim", "--sim", "error=0", "--json")
    assert (run.code, len(run.last["answer"])) == (0, 2)
    assert "-p texts=…   list[str], default [" in cortex("run", file, "--help").out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    tested = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "1 passed" in tested.stdout


def test_nothing_is_written_over_and_no_file_that_could_not_be_imported(cortex):
    Path("mine.py").write_text("# mine")
    cortex("program", "new", "mine.py").refused("mine.py exists")
    assert Path("mine.py").read_text() == "# mine"
    for bad in ("mine", "mine.txt", "1st.py", "class.py", "no spaces.py"):
        cortex("program", "new", bad).refused(f"{bad} is no name for a flow")
    cortex("program", "new", "nowhere/mine.py").refused("cannot write nowhere/mine.py: No such file")
