"""A release as its user gets it: wheel, sdist and bill of materials, made by ``make``, and the wheel in an empty environment."""

from __future__ import annotations

import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

import cortex
from tests.manifests.test_image import pinned
from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import PACKAGES, ROOT, sources
from tests.unit.repository.test_changelog import complaints

NAME = f"cortex_bounded_calls-{cortex.__version__}"
COMMAND = re.search(r"^(cortex batch .*) --model sim\b", (ROOT / "README.md").read_text(), re.MULTILINE)
TABLE = "ticket_id,text\n1,It crashes.\n2,I love it!\n3,Where is the manual?\n"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make dist sbom`` fills, with this interpreter and without an installation of the tools."""
    faulthandler.cancel_dump_traceback_later()  # a download has a bound of its own, below
    for tool in ("uv", "cyclonedx_py"):
        pytest.importorskip(tool, reason=f"not installed: {tool}. make e2e installs it, or: pip install '.[release]'")
    folder = tmp_path_factory.mktemp("dist")
    command = ["make", "-s", "-o", ".venv/.installed-release", "dist", "sbom", "VENV=.venv"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        [*command, f"PY={sys.executable}", f"DIST={folder}"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def home(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment ``venv`` that has the wheel, its dependencies and nothing else."""
    folder = tmp_path_factory.mktemp("user")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, "venv"], cwd=folder, check=True, timeout=PATIENCE_S)
    install = ["pip", "install", "-q", "--python", "venv/bin/python", f"{dist / NAME}-py3-none-any.whl"]
    done = subprocess.run([*uv, *install], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(home: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{home}/venv/bin:/usr/bin:/bin", "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        ["sh", "-c", command], env=environment, cwd=home, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_readmes_example_and_doctor_run_from_the_wheel_alone(home):
    """The interpreter is asked where it has Cortex from: a checkout on the path would make this no test."""
    assert COMMAND is not None
    (home / "tickets.csv").write_text(TABLE)
    done = run(home, f"{COMMAND[1]} --model sim")
    assert done.returncode == 0, done.stderr
    rows = (home / "labels.csv").read_text().splitlines()
    assert len(rows) == 4 and rows[0].startswith("ticket_id,"), rows
    done = run(home, "cortex doctor --model sim")
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(home, "cortex --version && python -c 'import cortex; print(cortex.__file__)'")
    assert cortex.__version__ in done.stdout and f"{home}/venv/" in done.stdout, done.stdout + done.stderr


def test_the_sdist_has_what_the_wheel_and_the_tests_need(dist):
    with zipfile.ZipFile(dist / f"{NAME}-py3-none-any.whl") as wheel:
        in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    with tarfile.open(dist / f"{NAME}.tar.gz") as sdist:
        in_sdist = {name.partition("/")[2] for name in sdist.getnames()}
    assert {str(path.relative_to(ROOT)) for path in sources(PACKAGES)} <= in_wheel <= in_sdist
    assert {"Makefile", "LICENSE", "README.md", "CHANGELOG.md", ".ci/run", "tests/conftest.py", "k8s/README.md"} <= in_sdist
    strange = {name.partition("/")[0] for name in in_sdist} - {path.name for path in ROOT.iterdir()} - {"PKG-INFO"}
    assert not strange and not [name for name in in_sdist if "__pycache__" in name or ".venv" in name]


def test_the_bill_of_materials_names_every_package_of_the_image_with_its_hash(dist):
    bill = json.loads((dist / "cortex.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (
        "cortex-bounded-calls", cortex.__version__,
    )  # fmt: skip
    named = {(canonicalize_name(each["name"]), each["version"]) for each in bill["components"]}
    assert named == {(name, str(version)) for name, version in pinned("requirements.lock").items()}
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])
    hashed = [each for each in bill["components"] if "hashes" in json.dumps(each)]
    assert len(hashed) == len(bill["components"])


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that git keeps, in a repository of one commit."""
    pytest.importorskip("bumpversion", reason="not installed: bump-my-version. make e2e installs it, or: pip install '.[release]'")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.com"]
    listed = subprocess.run([*git, "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "before"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    return tmp_path


def released(checkout: Path, version: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com",
    }  # fmt: skip
    command = [str(checkout / ".ci" / "release_version"), version]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_one_command_sets_the_version_everywhere_dates_the_changelog_and_tags(checkout):
    """What is left of the old version is about that release, not about this one."""
    old, new = cortex.__version__, "9.8.7"
    done = released(checkout, new)
    assert done.returncode == 0, done.stderr
    named = re.compile(rf"(cortex:|[vV]ersion[_a-zA-Z]*:? ?=? ?\"?|newTag: |tag: \"?){re.escape(old)}\b")
    places = [*checkout.glob("k8s/**/*.*"), checkout / "Dockerfile", checkout / "pyproject.toml", checkout / "cortex/__init__.py"]
    left = [f"{path.relative_to(checkout)}: {line}" for path in places if path.is_file() and path.suffix != ".lock" for line in path.read_text().splitlines() if named.search(line)]
    assert left == []
    log = subprocess.run(["git", "log", "-1", "--format=%s %D"], cwd=checkout, capture_output=True, text=True, check=True).stdout
    assert log.startswith(f"release: version {new} ") and f"tag: v{new}" in log
    changes = (checkout / "CHANGELOG.md").read_text()
    assert complaints(changes) == [] and re.search(rf"^## \[Unreleased\]\n\n## \[{new}\] - \d{{4}}-\d\d-\d\d\n", changes, re.MULTILINE)
    again = released(checkout, new)
    assert again.returncode == 1 and "released already" in again.stderr


def test_the_first_release_has_the_version_that_the_files_have(checkout):
    done = released(checkout, cortex.__version__)
    assert done.returncode == 0, done.stderr
    tags = subprocess.run(["git", "tag"], cwd=checkout, capture_output=True, text=True, check=True).stdout.split()
    assert tags == [f"v{cortex.__version__}"]
    assert f"## [{cortex.__version__}] - " in (checkout / "CHANGELOG.md").read_text()
