"""A program whose files are not where its actors live: they are brought there, with what they import from beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.cli.options.options import Options
from actors.cli.remote.package import package
from actors.cluster.shipping import bundle
from actors.cluster.shipping.bundle import ProgramBundle, packed, unpacked
from actors.common.errors import CommandError
from actors.ports.runtime import ClusterError
from actors.programs import loader
from tests.support.repository_rules import ROOT

TRIAGE = """
import cortex
from helper import WORDS
from kinds.all import KINDS
class Triage(cortex.Program):
    def answer(self, k):
        return [WORDS, KINDS, type(self).tools["double"](4)]
class Other(cortex.Program):
    pass
Triage.tools = {"double": cortex.tool(repeatable=True)(lambda x: FACTOR * x)}
FACTOR = 2
"""
SENDS = """
import sys, cortex
from actors.programs import loader as programs
from actors.cluster.shipping import export as travel
from ray import cloudpickle
type_ = programs.find(sys.argv[1]) if sys.argv[1] != "-" else Triage
where = programs.place_of(type_)
open("../parcel", "wb").write(travel.pack(where, (), cloudpickle.CloudPickler))
print(where, programs.fingerprint(where, b""))
"""
RECEIVES = """
import sys
from actors.programs import loader as programs
from actors.cluster.shipping import export as travel
where = sys.argv[1]
travel.unpack(where, open("parcel", "rb").read())
type_ = programs.find(where)
assert programs.place_of(type_) == where, (programs.place_of(type_), where)
print(type_.answer(type_(), None), flush=True)
if where.endswith("Triage") and not where.startswith("__main__"):
    module = sys.modules[type_.__module__]
    if hasattr(module, "Other"):
        assert programs.place_of(module.Other) == where.replace("Triage", "Other")
        assert programs.find(where.replace("Triage", "Other")) is module.Other, "a child job is found, too"
"""


@pytest.fixture
def author(tmp_path: Path) -> Path:
    folder = tmp_path / "author"
    (folder / "kinds").mkdir(parents=True)
    (folder / "triage.py").write_text(TRIAGE)
    (folder / "helper.py").write_text("WORDS = 'sky'\n")
    (folder / "unused.py").write_text("raise SystemExit\n")
    (folder / "kinds" / "__init__.py").write_text("")
    (folder / "kinds" / "all.py").write_text(
        "from pathlib import Path\nKINDS = (Path(__file__).parent / 'prompt.txt').read_text()\n"
    )
    (folder / "kinds" / "prompt.txt").write_text("of all kinds")
    (folder / "kinds" / "weights.bin").write_bytes(b"0" * 100)
    return folder


def python(folder: Path, *words: str) -> str:
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("way", ["file", "module", "script", "prompt"])
def test_a_program_runs_where_its_files_are_not(author: Path, tmp_path: Path, way: str) -> None:
    if way == "script":
        (author / "script.py").write_text(TRIAGE + SENDS)
        where = python(author, "script.py", "-").split()[0]
    elif way == "prompt":
        where = python(author, "-c", TRIAGE + SENDS, "-").split()[0]
    else:
        where = python(author, "-c", SENDS, "triage.py:Triage" if way == "file" else "triage:Triage").split()[0]
    author.rename(tmp_path / "gone")
    assert python(tmp_path, "-c", RECEIVES, where) == "['sky', 'of all kinds', 8]"
    (brought,) = [path for path in tmp_path.glob("*/*") if path.parent.name.startswith("cortex-code-")]
    names = {path.relative_to(brought).as_posix() for path in brought.rglob("*") if path.is_file()}
    assert {"helper.py", "kinds/all.py", "kinds/prompt.txt"} <= names
    assert not names & {"unused.py", "kinds/weights.bin"}, "what it does not import stays at home, and what is no text"


def test_a_machine_that_has_the_files_takes_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("A = 1\n")
    assert unpacked(ProgramBundle(str(tmp_path), {"a.py": b"A = 1\n"}, ("a",))) == {}
    assert unpacked(ProgramBundle()) == {}


def test_code_of_two_versions_stands_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    moved = [
        unpacked(ProgramBundle("/author", {"brought_here.py": text}, ("brought_here",)))
        for text in (b"A = 1\n", b"A = 2\n")
    ]
    first, second = (Path(each["/author/brought_here.py"]) for each in moved)
    assert first != second and first.read_text() == "A = 1\n"
    assert sys.path[0] == str(second.parent) and oct(second.parent.parent.stat().st_mode)[-3:] == "700"


def test_nothing_is_written_beside_the_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ClusterError, match="is outside the folder"):
        unpacked(ProgramBundle("/author", {"../../stolen.py": b""}, ()))
    assert not list(tmp_path.rglob("stolen.py"))


@pytest.mark.skipif(os.name == "nt", reason="it has no such modes")
def test_code_is_not_read_from_a_folder_that_others_may_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle.tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"cortex-code-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ClusterError, match="belongs to another user"):
        unpacked(ProgramBundle("/author", {"a.py": b""}, ()))


def small(monkeypatch: pytest.MonkeyPatch, file_bytes: int, bytes_: int) -> None:
    monkeypatch.setattr(bundle, "FILE_BYTES_MAX", file_bytes)
    monkeypatch.setattr(bundle, "BYTES_MAX", bytes_)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A program in a package of its author's, with a text that it reads."""
    folder = tmp_path / "author"
    (folder / "sorting").mkdir(parents=True)
    (folder / "sorting" / "__init__.py").write_text("")
    (folder / "sorting" / "all.py").write_text("import cortex\nclass Sort(cortex.Program):\n    pass\n")
    (folder / "sorting" / "words.csv").write_text("sky\n" * 100)
    monkeypatch.setattr(bundle.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder, "sorting.all:Sort"
    loader.forget("sorting.all:Sort")
    for name in ("sorting.all", "sorting"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((300, 9_000), r"author/sorting/words\.csv has 400 bytes, and at most 300 of one file are sent: put it"),
        ((9_000, 300), r"its files below .*author have 4\d\d bytes, and at most 300 are sent: put it"),
    ],
)
def test_what_is_too_large_is_said_where_it_is_missing_and_there_alone(
    written: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int], said: str
) -> None:
    """It was left at home silently: the program failed there, or ran without, as if it had been installed."""
    folder, where = written
    small(monkeypatch, *bounds)
    made = packed(loader.find(where))
    assert unpacked(made) == {}, "this machine has all of it"

    (folder / "sorting").rename(tmp_path / "sorting")
    with pytest.raises(ClusterError, match=f"which does not have it: .*{said}") as caught:
        unpacked(made)
    assert "\n" not in str(caught.value)

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # another folder on the image of the nodes
    moved = unpacked(made)
    assert Path(moved[f"{folder}/sorting/words.csv"]).read_text() == "sky\n" * 100
    (tmp_path / "sorting" / "words.csv").write_text("sea\n" * 100)
    sys.path.pop(0)  # where it was brought to
    with pytest.raises(ClusterError, match=said):
        unpacked(made)


def test_what_is_too_large_is_not_sent_over_http_either(
    written: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, 300, 9_000)
    with pytest.raises(CommandError, match=r"sorting\.all:Sort cannot be packaged: .*words\.csv has 400 bytes"):
        package({"program": written[1]}, Options())
    small(monkeypatch, 9_000, 300)
    with pytest.raises(CommandError, match=r"cannot be packaged: its files below .* have 4\d\d bytes, and at most 300"):
        package({"program": written[1]}, Options())
    small(monkeypatch, 9_000, 9_000)
    assert len(package({"program": written[1]}, Options()).files) == 3
