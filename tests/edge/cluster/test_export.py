"""A program that no file holds reaches other processes whole: fields, options, methods, the classes it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.programs import loader
from tests.support.repository_rules import ROOT

DEFINES = """
from typing import ClassVar
import msgspec, cortex, sys
from actors.programs import loader as programs
from actors.cluster.shipping import export as travel
from cortex.state.program import params_of

WORDS = ("a", "b")

class Inner(msgspec.Struct, array_like=True, frozen=True):
    number: int
    name: str = "n"

def helper(x):
    return WORDS, x

class Base(cortex.Program):
    texts: list[str]
    inner: Inner | None = None
    many: list[int] = msgspec.field(default_factory=list, name="lots")
    keeps: ClassVar[bool] = False
    tools: ClassVar = {"double": cortex.tool(repeatable=True)(lambda x: 2 * x)}

    def select(self, k):
        yield helper(self.texts)

    @property
    def size(self):
        return len(self.texts)

class Sub(Base, tag="sub"):
    more: int = 3

    def __post_init__(self):
        if self.more < 0:
            raise ValueError("more must not be negative")

    def select(self, k):
        yield from super().select(k)
        yield Inner(self.more)
"""
SENDS = (
    DEFINES
    + """
from ray import cloudpickle
where = programs.place_of(Sub)
open(sys.argv[1], "wb").write(travel.pack(where, (), cloudpickle.CloudPickler))
print(where, programs.fingerprint(where, b""))
"""
)
RECEIVES = """
import sys
from actors.programs import loader as programs
from actors.cluster.shipping import export as travel
from cortex.state.program import build
where = sys.argv[2]
travel.unpack(where, open(sys.argv[1], "rb").read())
type_ = programs.find(where)
made = build(type_, b'{"type": "sub", "texts": ["x"], "inner": [3], "lots": [1], "more": 4}')
(words, texts), inner = made.select(None)
assert (words, texts, inner.number, inner.name) == (("a", "b"), ["x"], 4, "n"), (words, texts, inner)
assert made.size == 1 and made.many == [1] and made.inner.number == 3
assert type_.keeps is False and type_.tools["double"](4) == 8 and type_.tools["double"].repeatable
assert build(type_, b'{"type": "sub", "texts": []}').many == []
for bad in (b'{"type": "sub"}', b'{"type": "sub", "texts": [], "more": -1}'):
    try:
        build(type_, bad)
    except ValueError:
        continue
    raise AssertionError(bad)
print(where, programs.fingerprint(where, b""))
"""


def _run(code: str, *args: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False, cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_program_from_a_prompt_is_made_again_elsewhere(tmp_path: Path) -> None:
    text = _run(SENDS, "parcel", folder=tmp_path)
    assert text.startswith("__main__:Sub ")
    assert _run(RECEIVES, "parcel", "__main__:Sub", folder=tmp_path).split()[0] == "__main__:Sub"


def test_a_program_from_a_script_is_not_run_again_elsewhere_and_has_the_same_fingerprint(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SENDS + "\nprint('ran')\n")
    done = subprocess.run(
        [sys.executable, str(script), "parcel"], capture_output=True, text=True, check=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    where, fingerprint = done.stdout.split()[:2]
    assert where == f"{script}:Sub"
    script.unlink()
    assert _run(RECEIVES, "parcel", where, folder=tmp_path) == f"{where} {fingerprint}"


def test_a_program_that_holds_what_cannot_travel_is_told_in_one_line(tmp_path: Path) -> None:
    code = SENDS.replace('WORDS = ("a", "b")', "import threading\nWORDS = threading.Lock()")
    with pytest.raises(AssertionError, match=r"ClusterError: the program Sub cannot be sent .* put it into a file"):
        _run(code, "parcel", folder=tmp_path)


def test_a_module_that_changed_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = tmp_path / "changing_program.py"
    text = "import cortex\nclass P(cortex.Program):\n    def answer(self, k):\n        return {}\n"
    module.write_text(text.format(1))
    first = loader.find("changing_program:P")
    module.write_text(text.format(22))
    assert loader.find("changing_program:P") is first
    loader.forget("changing_program:P")
    second = loader.find("changing_program:P")
    assert (first.answer(None, None), second.answer(None, None)) == (1, 22)  # type: ignore[arg-type]
    loader.forget("changing_program:P")
