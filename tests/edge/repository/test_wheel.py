"""The wheel holds the three packages, their type markers, the licence and nothing else."""

from __future__ import annotations

import configparser
import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.repository_rules import PACKAGES, ROOT, sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as pip builds it, without asking any index."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = "-m pip wheel . --quiet --no-deps --no-index --no-build-isolation".split()
    subprocess.run([sys.executable, *command, "-w", str(folder)], cwd=ROOT, check=True)
    (built,) = folder.iterdir()
    return zipfile.ZipFile(built)


def test_wheel_holds_the_packages_and_nothing_else(wheel):
    expected = {str(path.relative_to(ROOT)) for path in sources(PACKAGES)}
    expected |= {f"{package}/py.typed" for package in PACKAGES}
    expected |= {f"actors/report/page/page.{ending}" for ending in ("html", "css", "js")}
    expected |= {"actors/cli/demo_rows.csv"}
    expected |= {f"actors/programs/released/0.1.0/{name}.txt" for name in ("batch", "shards", "table")}
    described = {name for name in wheel.namelist() if name.partition("/")[0].endswith(".dist-info")}
    assert set(wheel.namelist()) - described == expected
    assert {name.partition("/")[2] for name in described} == {
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "licenses/LICENSE",
    }
    assert {Path(name).name for name in expected} >= {"__init__.py", "py.typed"}


def test_wheel_declares_its_command_and_licence(wheel):
    (folder,) = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    base, seeing = {"claims", "dev", "docs", "e2e", "local", "release", "test"}, {"otlp-grpc", "profile", "report"}
    roads = {"azure", "bedrock", "cluster", "entra", "gcs", "parquet", "postgres", "s3", "vertex"}
    assert set(metadata.get_all("Provides-Extra")) == base | seeing | roads
    commands = configparser.ConfigParser()
    commands.read_string(wheel.read(f"{folder}/entry_points.txt").decode())
    assert dict(commands["console_scripts"]) == {"cortex": "actors.cli:main"}
    assert dict(commands["pytest11"]) == {"cortex": "actors.fakes.pytest_plugin"}
