"""The Dockerfile, built by a real buildah from a base of Debian's packages: what is in it runs as the user that it names."""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cortex
from tests.e2e import tools
from tests.support.repository_rules import ROOT

pytestmark = pytest.mark.release  # minutes, and gigabytes: `vfs` copies every layer whole

TAG = "registry.example.com/cortex:test"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables by which buildah keeps to a folder of its own and needs no right that root in a container lacks."""
    if os.geteuid() != 0:
        pytest.skip("debootstrap makes device files: run this as root, or in a container")
    for command in ("buildah", "debootstrap"):
        if shutil.which(command) is None:
            pytest.skip(f"{tools.MISSING}{command}. On Debian, as root: apt-get install {command}")
    folder = tmp_path_factory.mktemp("buildah")
    settings = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(settings)
    variables = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
    yield {**os.environ, **variables, "TMPDIR": str(folder)}
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def run(environment: dict[str, str]) -> Run:
    """A command in a container of the image."""
    faulthandler.cancel_dump_traceback_later()  # a build has a bound of its own, below
    built = subprocess.run([ROOT / "k8s/image/build", TAG], env=environment, capture_output=True, text=True, timeout=1_500, check=False)
    if built.returncode == 3:
        pytest.skip(f"debootstrap made no base: {built.stderr[-300:]}")
    assert built.returncode == 0, built.stdout[-2_000:] + built.stderr[-4_000:]
    made = subprocess.run(["buildah", "from", "--pull=false", TAG], env=environment, capture_output=True, text=True, timeout=300, check=True)
    container = made.stdout.split()[-1]

    def inside(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["buildah", "run", container, "--", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return inside


def test_the_image_runs_a_job_as_its_user(run, environment, tmp_path: Path):
    assert run("id", "-u").stdout.split() == ["10001"]
    assert run("cortex", "--version").stdout.split() == ["cortex", cortex.__version__]
    done = run("cortex", "doctor", "--model", "sim")
    assert done.returncode == 0, done.stdout + done.stderr
    job = "printf 'text\\nIt crashes.\\n' > in.csv && cortex batch in.csv -o out.csv --prompt 'Label: {{text}}' --model sim && cat out.csv"
    done = run("sh", "-c", job)
    assert done.returncode == 0 and "It crashes." in done.stdout, done.stderr
    assert run("touch", "/opt/cortex/x").returncode != 0
