"""Context and statistics of figures: machine, versions, medians, output."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

_PACKAGES = ("anthropic", "aiohttp", "httpx2", "msgspec", "ray", "uvloop")


def machine() -> dict[str, Any]:
    """Return machine, versions and the load at the start, which shows whether other work was running."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def median(values: Sequence[float], digits: int = 1) -> float:
    """Return the median, rounded."""
    return round(statistics.median(values), digits)


def tell(found: dict[str, Any]) -> None:
    """Print the result as one JSON object on the last line of standard output."""
    print(msgspec.json.encode(found).decode(), flush=True)


def said(line: str, json_only: bool) -> None:
    """Print a line of progress, unless only JSON is wanted."""
    if not json_only:
        print(line, flush=True)
