"""Python types of answers in other processes: their files are brought there, or their code from a prompt."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from actors.cli.options.options import Options
from actors.cli.remote.package import package
from actors.common.errors import CommandError
from tests.support.repository_rules import ROOT

SHAPES = """
import msgspec
from limits import MOST

class Small(msgspec.Struct):
    n: int

    def __post_init__(self):
        if self.n > MOST:
            raise ValueError(f"n is above {MOST}")
"""
STORE = """
import pickle, sys
from actors.cluster.shipping.kv_store import ClusterStore
from actors.programs import loader
from cortex.programs.parts.typed_answers import registered
from cortex.programs.shards import sharded
from cortex.programs.table import Table
from cortex.state.program import params_of

class Kv(dict):
    def _internal_kv_put(self, key, value, overwrite=False):
        self[key] = value
    def _internal_kv_get(self, key):
        return self.get(key)
"""
SENDS = (
    STORE
    + """
from ray import cloudpickle
from actors.programs.schemas import answer_schema
found = answer_schema(SCHEMA)
program = sharded(Table(prompt="{{x}}", schema=found.schema, answer_type=found.answer_type), int(sys.argv[1]))
where, params, kv = loader.place_of(type(program)), params_of(program), Kv()
ClusterStore(kv, cloudpickle.CloudPickler, "j", own=True).share(where, params, "")
pickle.dump((dict(kv), where, params, loader.fingerprint(where, params)), open("../parcel", "wb"))
print(found.answer_type.place)
"""
)
RECEIVES = (
    STORE
    + """
kv, where, params, fingerprint = pickle.load(open("parcel", "rb"))
kv = Kv(kv)
store = ClusterStore(kv, None, "j~1", own=False)
assert store.fingerprint(where, params) == fingerprint
program = store.load(where, params, "")
(place,) = program.answer_types()
key = f"cortex/program/j/{place}".encode()
before = kv[key]
store.share(where, params, "j~1")
assert kv[key] is before, "a shard has the types of its parent"
for text in sys.argv[1:]:
    try:
        print(registered(place).read(text))
    except ValueError as error:
        print(error)
"""
)
FROM_PROMPT = """
import pydantic
class Even(pydantic.BaseModel):
    n: int
    @pydantic.field_validator("n")
    @classmethod
    def even(cls, value):
        if value % 2:
            raise ValueError("n must be even")
        return value
SCHEMA = Even
"""


def _run(folder: Path, code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *args], capture_output=True, text=True, check=False, cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a type, and a module that the type imports."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "shapes.py").write_text(SHAPES)
    (folder / "limits.py").write_text("MOST = 9\n")
    return folder


@pytest.mark.parametrize("schema", ["shapes.py:Small", "shapes:Small"])
@pytest.mark.parametrize("shards", ["1", "2"])
def test_a_type_in_a_file_is_brought_to_a_machine_that_has_not_the_file(
    mine: Path, tmp_path: Path, schema: str, shards: str
) -> None:
    _run(mine, f"SCHEMA = {schema!r}" + SENDS, shards)
    mine.rename(tmp_path / "gone")
    assert _run(tmp_path, RECEIVES, '{"n":9}', '{"n":10}') == "{'n': 9}\nn is above 9"


def test_a_machine_that_has_the_files_uses_its_own(mine: Path, tmp_path: Path) -> None:
    _run(mine, "SCHEMA = 'shapes.py:Small'" + SENDS, "1")
    assert _run(tmp_path, RECEIVES, '{"n":10}') == "n is above 9"


def test_a_type_of_a_prompt_is_brought_whole(mine: Path, tmp_path: Path) -> None:
    assert _run(mine, FROM_PROMPT + SENDS, "2") == "__main__:Even"
    assert _run(tmp_path, RECEIVES, '{"n":2}', '{"n":3}') == "{'n': 2}\nValue error, n must be even - at `$.n`"


def test_a_type_whose_import_fails_on_a_machine_is_told_in_one_line(mine: Path, tmp_path: Path) -> None:
    (mine / "limits.py").write_text("import only_here\nMOST = 9\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "only_here.py").write_text("")
    _run(mine, f"import sys\nsys.path.append({str(tmp_path / 'site')!r})\nSCHEMA = 'shapes.py:Small'" + SENDS, "1")
    parcel = pickle.loads((tmp_path / "parcel").read_bytes())
    (tmp_path / "site").rename(tmp_path / "away")
    mine.rename(tmp_path / "gone")
    with pytest.raises(AssertionError) as told:
        _run(tmp_path, RECEIVES)
    place = next(iter(parcel[0])).decode().partition("j/")[2]
    assert f"the type {place} cannot be imported: ModuleNotFoundError: No module named" in str(told.value)


@pytest.mark.parametrize(("schema", "named"), [("shapes.py:Small", "shapes.py:Small"), ("shapes:Small", "shapes:Small")])
def test_a_package_of_a_command_holds_the_type_and_what_it_imports(
    mine: Path, monkeypatch: pytest.MonkeyPatch, schema: str, named: str
) -> None:
    monkeypatch.chdir(mine)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("shapes", "limits"):
        sys.modules.pop(module, None)
    made = package({"schema": schema}, Options())
    assert sorted(made.files) == ["limits.py", "shapes.py"]
    assert made.values["schema"] == named
    assert "shapes.py" in zipfile.ZipFile(io.BytesIO(made.zipped())).namelist()
    monkeypatch.setattr("actors.cluster.shipping.bundle.FILE_BYTES_MAX", 20)
    with pytest.raises(CommandError, match=r"shapes\S+ cannot be packaged: .* put it into the image of the nodes"):
        package({"schema": schema}, Options())


def test_a_package_of_a_command_holds_a_schema_of_a_file_as_before(mine: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(mine)
    (mine / "topic.json").write_text('{"type":"object","properties":{"n":{"type":"integer"}}}')
    made = package({"schema": "topic.json"}, Options())
    assert ([*made.files], made.values["schema"]) == (["schema.json"], "schema.json")
