"""Time to the first result, beside ``import anthropic`` alone: ``python -m benchmarks.start --json``.

Both from the start of a fresh process, in turns, medians over the rounds. The first result counts when its bytes are in
the output file. The provider is simulated and answers at once, so what is measured is ours.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import command, figures, rows

OVER_S_MAX = 1.0
"""How long after ``import anthropic`` alone the first result may come."""
LOOK_S = 0.002
PATIENCE_S = 120.0


def first_result(input_: Path, folder: Path, cluster: str) -> tuple[float, float]:
    """Seconds from the start of `cortex batch` to its first result, and to its end."""
    output = folder / "results.jsonl"
    argv = command.arguments(input_, output, folder / "state", "--cluster", cluster, "--model", "sim")
    began = time.perf_counter()
    process = subprocess.Popen(argv, env=command.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    first_s = 0.0
    while not first_s:
        if output.exists() and output.stat().st_size:
            first_s = time.perf_counter() - began
        elif process.poll() is not None or time.perf_counter() - began > PATIENCE_S:
            process.kill()
            assert process.stderr is not None
            raise RuntimeError(f"no result came: {process.stderr.read().decode()[-2_000:]}")
        else:
            time.sleep(LOOK_S)
    if code := process.wait(PATIENCE_S):
        raise RuntimeError(f"cortex batch ended with {code}")
    return first_s, time.perf_counter() - began


def alone(statement: str) -> float:
    """Seconds that a fresh process takes for one statement."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=command.environment(), check=True)
    return time.perf_counter() - began


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    clusters = given.clusters.split(",")
    times: dict[str, list[float]] = {"import_anthropic": [], "nothing": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        input_ = Path(name) / "requests.jsonl"
        rows.write_input(input_, given.calls)
        for round_ in range(-1, given.rounds):  # one round before the first: byte code is made, files are read
            found = {"import_anthropic": alone("import anthropic"), "nothing": alone("pass")}
            for cluster in clusters:
                folder = Path(name) / f"{cluster}-{round_}"
                folder.mkdir()
                found[cluster], found[f"{cluster}_whole"] = first_result(input_, folder, cluster)
                rows.check_all(rows.results(folder / "results.jsonl"), given.calls, echoed=False)
            if round_ < 0:
                continue
            for what, value in found.items():
                times.setdefault(what, []).append(value)
            figures.said("  ".join(f"{what} {value:.2f} s" for what, value in found.items()), given.json)
    alone_s = figures.median(times["import_anthropic"], 3)
    told: dict[str, Any] = {
        "import_anthropic_s": alone_s,
        "python_alone_s": figures.median(times["nothing"], 3),
        "calls": given.calls,
        "rounds": given.rounds,
        "machine": figures.machine(),
    }
    for cluster in clusters:
        first_s = figures.median(times[cluster], 3)
        told[cluster] = {
            "first_result_s": first_s,
            "over_import_anthropic_s": round(first_s - alone_s, 3),
            "whole_s": figures.median(times[f"{cluster}_whole"], 3),
        }
    if "inline" in told:
        told["reached"] = told["inline"]["over_import_anthropic_s"] <= OVER_S_MAX
    return told


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clusters", default="inline", help="inline, local, or both with a comma")
    figures.tell(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
