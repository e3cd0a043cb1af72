"""Programs of a user's own on a cluster, wherever their code stands: tools, child jobs, and one that changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster_processes import PATIENCE_S, environment

PROGRAM = """
from __future__ import annotations
import os
import cortex

class Doubles(cortex.Program):
    numbers: list[int]

    def begin(self, k):
        for number in self.numbers:
            yield cortex.Goal("number", number)

    def select(self, k):
        for goal in k.open("number"):
            yield cortex.RunTool(goal, "double", {"number": goal.value})

@cortex.tool(repeatable=True)
def double(number):
    return FACTOR * number

FACTOR = 2
Doubles.tools = {"double": double}

class Sums(cortex.Program):
    parts: list[list[int]]

    def begin(self, k):
        for part in self.parts:
            yield cortex.Goal("part", part)
        yield cortex.Goal("call", "Answer yes or no: is the sky blue?")

    def select(self, k):
        for goal in k.open("part"):
            yield cortex.Spawn(goal, Doubles(numbers=goal.value))
        for goal in k.open("call"):
            part = cortex.Part(cortex.Role.GOAL, goal.value)
            yield cortex.Ask(goal, cortex.Prompt("call", (part,)))

    def absorb(self, k, goal, reply):
        yield cortex.Resolve(goal, reply.text in ("yes", "no"))

    def answer(self, k):
        return [goal.answer for kind in ("part", "call") for goal in k.goals_of(kind)]
"""
RUN = """
import sys
done = cortex.run({name}(parts=[[1, 2], [3]]), model="sim", cluster=sys.argv[1], state=sys.argv[2], progress=False)
print(done.outcome, done.answer, done.why, flush=True)
"""


def _run(words: list[str], address: str, folder: Path, code: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *words, address, str(folder / "state")], input=code, capture_output=True, text=True,
        cwd=folder, env=environment(), timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def _told(factor: int) -> str:
    return f"complete [[{factor}, {2 * factor}], {3 * factor}, True]"


@pytest.mark.usefixtures("runtime")
@pytest.mark.long
def test_a_program_from_a_prompt_runs_on_a_cluster(address: str, folder: Path) -> None:
    """Its tools run on workers, its child jobs in channels of their own; none of them finds a file to read."""
    assert _run(["-"], address, folder, PROGRAM + RUN.format(name="Sums")) == _told(2)


@pytest.mark.usefixtures("runtime")
@pytest.mark.long
def test_a_script_is_not_run_again_by_the_actors(address: str, folder: Path) -> None:
    (folder / "script.py").write_text(PROGRAM + RUN.format(name="Sums"))
    assert _run(["script.py"], address, folder) == _told(2)


@pytest.mark.usefixtures("runtime")
@pytest.mark.long
def test_a_module_that_changed_between_two_runs_is_the_new_one_on_living_workers_too(
    address: str, folder: Path
) -> None:
    run = "import cortex, mine\n" + RUN.format(name="mine.Sums")
    (folder / "mine.py").write_text(PROGRAM)
    assert _run(["-B", "-"], address, folder, run) == _told(2)
    (folder / "mine.py").write_text(PROGRAM.replace("FACTOR = 2", "FACTOR = 50"))
    assert _run(["-B", "-"], address, folder, run) == _told(50)


@pytest.mark.long
@pytest.mark.usefixtures("runtime")
def test_a_program_in_a_file_brings_the_other_programs_of_that_file(address: str, folder: Path) -> None:
    (folder / "mine.py").write_text(PROGRAM)
    run = "import cortex\nfrom actors.programs.loader import find\n" + RUN.format(name="find('mine.py:Sums')")
    assert _run(["-"], address, folder, run) == _told(2)


TYPED = """
import cortex, msgspec, pydantic, sys
from beside import MOST

class Small(msgspec.Struct):
    n: int

    def __post_init__(self):
        if self.n > MOST:
            raise ValueError(f"n is above {MOST}")

class Odd(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def odd(cls, value):
        if value % 2 == 0:
            raise ValueError("n must be odd")
        return value

if __name__ == "__main__":
    for type_, shards in ((Small, 1), (Odd, 2)):
        found = cortex.batch(["a", "b", "c"], "{{text}}", schema=type_, model="sim", cluster=sys.argv[1],
                             state=sys.argv[2], progress=False, shards=shards)
        print(found.rows[2]["error"], flush=True)
"""


@pytest.mark.long
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("words", [["-"], ["script.py"]])
def test_types_of_a_prompt_and_of_a_script_check_answers_on_a_cluster(
    address: str, folder: Path, words: list[str]
) -> None:
    (folder / "beside.py").write_text("MOST = -1\n")
    (folder / "script.py").write_text(TYPED)
    told = "malformed: n is above -1\nmalformed: Value error, n must be odd - at `$.n`"
    assert _run(words, address, folder, TYPED if words == ["-"] else None) == told


@pytest.mark.long
@pytest.mark.usefixtures("runtime")
def test_a_type_that_the_cluster_cannot_import_is_refused_before_anything_is_asked(address: str, folder: Path) -> None:
    own = "import sys\nif 'default_worker' in ' '.join(sys.argv):\n    raise ImportError('there is no such library')\n"
    (folder / "shapes.py").write_text(own + "import msgspec\nclass Point(msgspec.Struct):\n    x: int\n")
    (folder / "t.csv").write_text("id,text\n1,a\n")
    command = [sys.executable, "-m", "actors.cli", "batch", "t.csv", "--prompt", "{{text}}", "--id", "id", "--model"]
    command += ["sim", "--schema", "shapes.py:Point", "-o", "o.csv", "--cluster", address, "--state", "state"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(), timeout=PATIENCE_S, check=False
    )
    told = f"cortex: the type {folder.resolve()}/shapes.py:Point cannot be imported: ImportError: there is no such library"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, told), done.stderr
    assert not (folder / "o.csv").exists()
