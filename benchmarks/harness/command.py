"""`cortex batch` as users run it: a separate process, from the command line to the summary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from actors.cluster.bootstrap import NICENESS
from benchmarks.harness.baselines import KEY

_HIDDEN = ("CORTEX_", "ANTHROPIC_", "OTEL_", "RAY_")
"""Prefixes of variables in the caller's environment that would change the measurement."""


class Run(msgspec.Struct):
    """Result of one finished `cortex batch`."""

    summary: dict[str, Any]
    whole_s: float
    """Seconds from the start of the process to its end: imports, input check, Ray, closing."""


MODULE = "actors.cli"


def arguments(input_: Path, output: Path, state: Path, *options: str, module: str = MODULE) -> list[str]:
    """Return the command line."""
    where = ["-o", str(output), "--state", str(state), "--overwrite", "--json"]
    return [sys.executable, "-m", module, "batch", str(input_), *where, *options]


def environment() -> dict[str, str]:
    """Return this environment with a placeholder key and without proxies for this machine. A Ray started in it has the
    process priority of a private one, so bare Ray and Ray-based peers compare fairly."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return {**kept, "ANTHROPIC_API_KEY": KEY, "NO_PROXY": "127.0.0.1", NICENESS: "0"}


def batch(
    input_: Path, output: Path, state: Path, *options: str, environ: Mapping[str, str] | None = None,
    module: str = MODULE,
) -> Run:  # fmt: skip
    """Run the command to its end. Raises ``RuntimeError`` with its output if it did not complete."""
    began = time.perf_counter()
    ended = subprocess.run(
        arguments(input_, output, state, *options, module=module), env=environment() | dict(environ or {}),
        capture_output=True, text=True,
    )  # fmt: skip
    whole_s = time.perf_counter() - began
    if ended.returncode != 0:
        raise RuntimeError(f"cortex batch ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    return Run(msgspec.json.decode(ended.stdout.splitlines()[-1]), whole_s)
