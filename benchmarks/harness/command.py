"""`cortex batch` as its users run it: a process of its own, from the command line to the summary."""

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
"""Settings of whoever runs the benchmark that would change what is measured."""


class Run(msgspec.Struct):
    """One finished `cortex batch`."""

    summary: dict[str, Any]
    whole_s: float
    """From the start of the process to its end: imports, the check of the input, Ray, closing."""


MODULE = "actors.cli"


def arguments(input_: Path, output: Path, state: Path, *options: str, module: str = MODULE) -> list[str]:
    """The command."""
    where = ["-o", str(output), "--state", str(state), "--overwrite", "--json"]
    return [sys.executable, "-m", module, "batch", str(input_), *where, *options]


def environment() -> dict[str, str]:
    """Ours, with a key that opens nothing and no proxy on the way to this machine. A Ray that is started in it stands
    where a private one of ours does: bare Ray and peers on Ray have the priority that ours have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
    return {**kept, "ANTHROPIC_API_KEY": KEY, "NO_PROXY": "127.0.0.1", NICENESS: "0"}


def batch(
    input_: Path, output: Path, state: Path, *options: str, environ: Mapping[str, str] | None = None,
    module: str = MODULE,
) -> Run:  # fmt: skip
    """Run it to its end. Raises ``RuntimeError`` with what it said where it did not complete."""
    began = time.perf_counter()
    ended = subprocess.run(
        arguments(input_, output, state, *options, module=module), env=environment() | dict(environ or {}),
        capture_output=True, text=True,
    )  # fmt: skip
    whole_s = time.perf_counter() - began
    if ended.returncode != 0:
        raise RuntimeError(f"cortex batch ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    return Run(msgspec.json.decode(ended.stdout.splitlines()[-1]), whole_s)
