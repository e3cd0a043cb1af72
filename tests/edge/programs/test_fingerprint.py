"""A changed program is noticed, wherever its source stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import cortex
from actors.programs import loader
from actors.programs.fingerprint import _code_of, fingerprint_of
from actors.programs.released import fingerprint_then
from actors.programs.schemas import answer_schema
from cortex import Program
from cortex.programs.batch import Batch
from cortex.programs.notes import Notes
from cortex.programs.rlm import rlm
from cortex.programs.shards import Shards
from cortex.programs.table import Table
from cortex.state.program import params_of
from tests.support.repository_rules import ROOT

PROGRAM = """
import json
import beside_{n}
from cortex import Program

class P(Program, frozen=True):
    word: str = "x"
"""


def _place(folder: Path, n: str, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / f"program_{n}.py").write_text(PROGRAM.format(n=n))
    (folder / f"beside_{n}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    return f"program_{n}:P"


def test_source_parameters_and_release_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = _place(tmp_path, "a", "A = 1", monkeypatch)
    first = loader.fingerprint(where, b"{}")
    assert loader.fingerprint(where, b"{}") == first
    assert loader.fingerprint(where, b'{"word":"y"}') != first
    monkeypatch.setattr(cortex, "__version__", "99")
    assert loader.fingerprint(where, b"{}") != first


def test_a_module_beside_the_program_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = _place(tmp_path, "b", "B = 1", monkeypatch)
    first = loader.fingerprint(where, b"{}")
    (tmp_path / "beside_b.py").write_text("B = 2")
    assert loader.fingerprint(where, b"{}") != first


def test_the_prompts_of_a_ready_program_are_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint_of(Notes, b"{}", {})
    read = Path.read_bytes

    def changed(self: Path) -> bytes:
        return read(self) + (more if self.name == "notes_prompts.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    more = b"\nMORE = 1\n"
    assert fingerprint_of(Notes, b"{}", {}) != first
    more = b'\n\n"""Prose."""\n# A comment.\nimport json\n'
    assert fingerprint_of(Notes, b"{}", {}) == first


def test_prose_beside_a_ready_flow_counts_since_its_checkpoints_hold_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    first = fingerprint_of(rlm, b"{}", {})
    read = Path.read_bytes

    def changed(self: Path) -> bytes:
        return read(self) + (b"\n# A comment.\n" if self.name == "rlm_prompts.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", changed)
    assert fingerprint_of(rlm, b"{}", {}) != first


@pytest.mark.parametrize(("program", "module"), [(Batch, "batch"), (Table, "table"), (Shards, "shards")])
def test_a_journal_of_release_0_1_0_knows_its_program_again(program: type[Program], module: str) -> None:
    where = f"cortex.programs.{module}:{program.__name__}"
    then = fingerprint_then(where, b"{}")
    assert len(then) == 24 and then != fingerprint_of(program, b"{}", {})
    assert loader.is_unchanged(where, b"{}", then)
    assert not loader.is_unchanged(where, b'{"ordered":true}', then)
    assert not loader.is_unchanged("cortex.programs.notes:Notes", b"{}", "")


def test_a_table_of_release_0_1_0_with_a_schema_begins_anew() -> None:
    """Its answers were checked by fewer rules; the replies that it has paid for are reused."""
    params = params_of(Table(prompt="{{a}}", schema='{"type": "object"}'))
    assert fingerprint_then("table", params) == fingerprint_then("shards", b'{"table":' + params + b"}") == ""
    assert fingerprint_then("table", params_of(Table(prompt='"schema":"{ {{a}}'))) != ""


def test_prose_cut_from_a_source_leaves_its_code() -> None:
    source = '"""Doc."""\nimport os  # why\n\nclass A:\n    """Doc é."""\n    x = "# kept"  # gone\n    """Field."""\n    def f(self): return 1\n'
    assert _code_of(source.encode()) == b'class A:\n    x = "# kept"\n    def f(self): return 1'


SCRIPT = """
import cortex

@cortex.flow
async def asks(ctx, word: str = "x"):
    return await ctx.ask(word)

if __name__ == "__main__":
    import sys
    from actors.programs import loader as programs
    sys.stdout.write(programs.fingerprint(programs.place_of(asks), b"{}"))
"""


def test_a_script_that_is_run_is_the_same_program_as_its_file(tmp_path: Path) -> None:
    """So `cortex resume` goes on with what a script began, and does not begin it anew."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == loader.fingerprint(f"{path}:asks", b"{}")
    path.write_text(SCRIPT.replace("ask(word)", "ask(word + '?')"))
    loader.forget(f"{path}:asks")
    assert done.stdout != loader.fingerprint(f"{path}:asks", b"{}")


def test_the_source_of_a_type_and_the_version_of_its_library_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay must come to the verdicts of the first run."""
    path = tmp_path / "points_of_a_type.py"
    path.write_text("import msgspec\nclass Point(msgspec.Struct):\n    x: int\n")

    def now() -> str:
        found = answer_schema(f"{path}:Point")
        params = params_of(Table(prompt="{{a}}", schema=found.schema, answer_type=found.answer_type))
        two = b'{"shards":2,"table":%b}' % params
        one, shards = loader.fingerprint("table", params), loader.fingerprint(loader.place_of(Shards), two)
        assert one != shards
        return one + shards

    first = now()
    assert now() == first
    path.write_text(path.read_text() + "    # a comment\n")
    second = now()
    assert second[:24] != first[:24] and second[24:] != first[24:]
    monkeypatch.setattr(msgspec, "__version__", "99.0")
    assert now()[:24] != second[:24]


CELL = """
import linecache, sys
import msgspec, pydantic
from actors.programs import loader
from actors.programs.schemas import answer_schema
from cortex.programs.table import Table
from cortex.state.program import params_of

def fingerprint(cell, number, seen):
    name = f"<cell {number} {seen}>"
    if seen:
        linecache.cache[name] = (len(cell), None, cell.splitlines(True), name)
    exec(compile(cell, name, "exec"), globals())
    found = answer_schema(Outer)
    return loader.fingerprint("table", params_of(Table(prompt="{{a}}", schema=found.schema, answer_type=found.answer_type)))

cells = [CELLS]
for seen in (True, False):
    print(*(fingerprint(cell, number, seen) for number, cell in enumerate(cells)))
"""
OUTER = """
def most():
    return 5

class Inner(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def small(cls, value):
        if value > most():
            raise ValueError("too large")
        return value

class Base(pydantic.BaseModel):
    def model_post_init(self, context):
        if len(self.items) > 7:
            raise ValueError("too many")

class Outer(Base):
    items: list[Inner]
"""


def test_what_a_type_of_a_notebook_consists_of_counts(tmp_path: Path) -> None:
    """Its own methods, those of its bases and of the types of its fields, and what they use from other cells."""
    changes = [("items", "items"), ("too large", "is too large"), ("> 7", "> 8"), ("return 5", "return 6")]
    cells = [OUTER.replace(*change) for change in changes]
    code = CELL.replace("CELLS", ", ".join(map(repr, cells)))
    done = [
        subprocess.run(
            [sys.executable, "-"], input=code, capture_output=True, text=True, check=True, cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert done[0] == done[1]
    with_source, without = (len(set(line.split())) for line in done[0].splitlines())
    assert (with_source, without) == (4, 3), "without sources, a function of another cell is not told"
