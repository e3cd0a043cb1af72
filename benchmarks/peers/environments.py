"""Virtual environment of each peer, created from PyPI on first use and kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec

FOLDER = "CORTEX_BENCHMARK_PEERS"
"""Variable that names another folder for the environments."""
INSTALL_S = 900
_PINS = Path(__file__).with_name("environments.toml")


class NotInstalled(Exception):
    """Error: reason why a peer has no environment, in one line."""


def pins() -> dict[str, list[str]]:
    """Return the requirements of each environment."""
    return {name: list(kept["requires"]) for name, kept in tomllib.loads(_PINS.read_text()).items()}


def folder() -> Path:
    """Return the folder of the environments."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cortex-benchmarks" / "peers"
    return Path(os.environ.get(FOLDER, cache)).absolute()


def python(name: str) -> Path:
    """Return the Python of an environment, created if missing. Raises ``NotInstalled``."""
    requires = pins()[name]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = hashlib.sha256("\n".join((version, *requires)).encode()).hexdigest()[:10]
    home = folder() / f"{name}-{text}"
    found, whole = home / "bin" / "python", home / "installed"
    if whole.exists():
        return found
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(home)])
        _run([str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requires])
    except (OSError, subprocess.SubprocessError) as error:
        raise NotInstalled(_why(error)) from None
    whole.touch()
    return found


def versions(found: Path) -> dict[str, str]:
    """Return the installed version of every package of an environment."""
    listed = _run([str(found), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]).stdout
    rows: list[dict[str, Any]] = msgspec.json.decode(listed)
    return {row["name"]: row["version"] for row in rows}


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=INSTALL_S)


def _why(error: Exception) -> str:
    answer = getattr(error, "stderr", "") or str(error)
    lines = [line.strip() for line in answer.splitlines() if line.startswith("ERROR")] or answer.strip().splitlines()
    return (lines[-1] if lines else type(error).__name__)[:300]
