"""The image's recipe: what it says, and that its locks hold all that the project asks for, by hash and from nowhere in
particular. ``tests/e2e/test_image.py`` builds what is in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support.repository_rules import ROOT

IMAGE = ROOT / "k8s" / "image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = re.findall(r"--extra (\w+)", (IMAGE / "lock").read_text())
PIN = re.compile(r"([A-Za-z0-9._-]+)(\[[a-z0-9,-]+\])?==([^\s;]+)( ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def pinned(name: str) -> dict[str, Version]:
    """Name and version of each line of a lock; fails for a line that is neither a pin nor a hash."""
    found = {}
    for line in (IMAGE / name).read_text().splitlines():
        if line.startswith("#") or HASH.fullmatch(line):
            continue
        pin = PIN.fullmatch(line)
        assert pin, f"{name}: {line!r} is no pinned package and no hash"
        found[canonicalize_name(pin[1])] = Version(pin[3])
    return found


def complaints(recipe: str) -> Iterator[str]:
    """What is wrong with a Dockerfile."""
    lines = re.sub(r"\\\n\s*", "", recipe).splitlines()
    if "ARG BASE_DIGEST" not in lines:
        yield "the base's digest is no argument, or has a default"
    for line in lines:
        if line.startswith("FROM ") and "@${BASE_DIGEST}" not in line:
            yield f"the base is not held by its digest: {line}"
        if line.startswith("ADD ") or "curl " in line or "wget " in line:
            yield f"it fetches what nobody checks: {line}"
        if line.startswith(("ARG ", "ENV ")) and re.search(r"KEY|TOKEN|PASSWORD|SECRET", line):
            yield f"a secret would stand in the image: {line}"
        if "pip install" in line:
            yield f"it installs beside the lock: {line}"
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        yield "it runs as root, or as a name that Kubernetes cannot check"
    for line in lines:
        if line.startswith("COPY ") and "--from=" not in line:
            yield from (f"{path} is not there" for path in line.split()[1:-1] if not (ROOT / path).exists())


def test_the_recipe():
    assert list(complaints((ROOT / "Dockerfile").read_text())) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("ARG BASE_DIGEST\n", "ARG BASE_DIGEST=sha256:00\n", "is no argument, or has a default"),
        ("@${BASE_DIGEST} AS build", ":latest AS build", "not held by its digest"),
        ("USER 10001:10001", "USER cortex", "runs as root"),
        ("USER 10001:10001", "USER 0:0", "runs as root"),
        ("COPY actors actors", "COPY actor actor", "actor is not there"),
        ("COPY actors actors", "ADD https://example.com/x /x", "fetches what nobody checks"),
        ("ENV PATH", "ENV API_KEY=x PATH", "a secret would stand"),
        ('RUN ["k8s/image/install", "/opt/cortex"]', "RUN pip install ray", "beside the lock"),
    ],
)
def test_a_recipe_that_is_worse_is_caught(old, new, said):
    recipe = (ROOT / "Dockerfile").read_text()
    assert old in recipe
    assert any(said in line for line in complaints(recipe.replace(old, new, 1)))


def test_the_image_runs_as_whom_the_manifests_say():
    users = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    cluster = (ROOT / "k8s/base/cluster.yaml").read_text()
    assert users == [("10001", "10001")]
    assert "runAsUser: 10001" in cluster and "runAsGroup: 10001" in cluster and "fsGroup: 10001" in cluster


def test_the_lock_has_what_the_project_asks_for():
    pins = pinned("requirements.lock")
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    for each in map(Requirement, asked):
        version = pins.get(canonicalize_name(each.name))
        assert version is not None and version in each.specifier, f"{each}: the lock has {version}; k8s/image/lock writes it anew"


def test_the_lock_of_the_build_has_what_builds_the_wheel_and_uv():
    pins = pinned("build.lock")
    given = [Requirement(line) for line in (IMAGE / "build.in").read_text().splitlines() if not line.startswith("#")]
    assert [str(each) for each in given if each.name != "uv"] == PROJECT["build-system"]["requires"]
    assert "uv" in {each.name for each in given}
    assert all(pins[canonicalize_name(each.name)] in each.specifier for each in given)


def test_a_lock_names_no_place():
    for name in ("requirements.lock", "build.lock"):
        text = (IMAGE / name).read_text()
        assert not re.search(r"://|^\s*-[a-z-]", re.sub(r"--hash=", "", text), re.MULTILINE), name
