"""Ten calls of a cold `cortex batch`: ``python -m benchmarks.start --json``.

Baselines: ``import anthropic`` alone, and a bare start of Ray.

Each runs from the start of a fresh process to its end, in turns; medians over the rounds. The first result counts when
its bytes are in the output file. Cortex asks a server on this machine over HTTP, so the SDK is imported before the
first byte. The bare Ray (``--clusters inline,local``) is ``import ray``, ``ray.init`` without the parts that a private
Ray leaves out (``actors.cluster.bootstrap``), and one actor that has answered.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from actors.cluster.bootstrap import NOT_NEEDED, OBJECT_STORE_BYTES, QUIET
from benchmarks.harness import command, figures, rows
from benchmarks.harness.server import RunningServer

OVER_S_MAX = {"inline": 1.0, "local": 2.0}
"""Goals: seconds of the whole command beyond ``import anthropic``, and on Ray beyond a bare start of Ray as well."""
BARE_RAY = """
import ray
from ray._private.node import Node
for name in %r:
    setattr(Node, name, lambda node, **options: setattr(node, "_webui_url", ""))
ray.init(address="local", include_dashboard=False, object_store_memory=%d,
         log_to_driver=False, logging_level="ERROR")
class Echo:
    async def echo(self):
        return 1
assert ray.get(ray.remote(Echo).options(num_cpus=0).remote().echo.remote()) == 1
print("there", flush=True)
ray.shutdown()
"""
LOOK_S = 0.002
PATIENCE_S = 120.0


def first_result(input_: Path, folder: Path, cluster: str, url: str) -> tuple[float, float]:
    """Return the seconds from the start of `cortex batch` to its first result, and to its end."""
    output = folder / "results.jsonl"
    where = ["--cluster", cluster, "--base-url", url, "--model", rows.MODEL]
    argv = command.arguments(input_, output, folder / "state", *where)
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
    """Return the seconds of a fresh process for one statement."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], env=command.environment(), check=True)
    return time.perf_counter() - began


def bare_ray() -> float:
    """Return the seconds from the start of a fresh process until an actor on its own Ray has answered."""
    script = BARE_RAY % (NOT_NEEDED, OBJECT_STORE_BYTES)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=command.environment() | QUIET, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    there = process.stdout.readline()
    took_s = time.perf_counter() - began
    if process.wait(PATIENCE_S) or there.strip() != "there":
        raise RuntimeError("no bare Ray started")
    return took_s


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds."""
    clusters = given.clusters.split(",")
    times: dict[str, list[float]] = {"import_anthropic": [], "nothing": []}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, RunningServer(0.0) as server:
        input_ = Path(name) / "requests.jsonl"
        rows.write_input(input_, given.calls)
        for round_ in range(-1, given.rounds):  # uncounted round: byte code is compiled, files are cached
            found = {"import_anthropic": alone("import anthropic"), "nothing": alone("pass")}
            if "local" in clusters:
                found["bare_ray"] = bare_ray()
            for cluster in clusters:
                folder = Path(name) / f"{cluster}-{round_}"
                folder.mkdir()
                found[cluster], found[f"{cluster}_whole"] = first_result(input_, folder, cluster, server.url)
                rows.check_all(rows.results(folder / "results.jsonl"), given.calls)
            if round_ < 0:
                continue
            for what, value in found.items():
                times.setdefault(what, []).append(value)
            figures.said("  ".join(f"{what} {value:.2f} s" for what, value in found.items()), given.json)
    alone_s = figures.median(times["import_anthropic"], 3)
    facts: dict[str, Any] = {
        "import_anthropic_s": alone_s,
        "python_alone_s": figures.median(times["nothing"], 3),
        "calls": given.calls,
        "rounds": given.rounds,
        "machine": figures.machine(),
    }
    if "local" in clusters:
        facts["bare_ray_s"] = figures.median(times["bare_ray"], 3)
    for cluster in clusters:
        whole_s = figures.median(times[f"{cluster}_whole"], 3)
        beside = [times["import_anthropic"], *([times["bare_ray"]] if cluster == "local" else [])]
        over = [whole - sum(each) for whole, *each in zip(times[f"{cluster}_whole"], *beside, strict=True)]
        facts[cluster] = {
            "first_result_s": figures.median(times[cluster], 3), "whole_s": whole_s,
            "over_s": figures.median(over, 3), "over_s_max": OVER_S_MAX[cluster],
        }  # fmt: skip
    facts["reached"] = all(facts[cluster]["over_s"] <= OVER_S_MAX[cluster] for cluster in clusters)
    return facts


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clusters", default="inline", help="inline, local, or both separated by a comma")
    figures.tell(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
