"""Published run: 20 disks, 1,048,575 moves with k = 3 votes each, through journal and actors, killed twice.

``cortex run hanoi`` is killed with SIGKILL at each share of ``--kill`` and given again, as a user would. An
independent verifier (``harness.hanoi_verifier``) then checks the moves in the results file. The benchmark continues
after an interruption: the state folder keeps the job and the record of its kills.

The provider is simulated: its reasoner errs so often that a counted vote is right with probability 0.9978, and wrong
votes all agree. ``--http`` runs the provider in its own process, behind the client of a real provider and with its own
counts; such a run does not outlive this process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.claims.hanoi import error_for
from benchmarks.harness import figures
from benchmarks.harness.command import environment
from benchmarks.harness.hanoi_verifier import verified
from benchmarks.limits import Provider
from policies.decisions.voting import chain_success, votes_expected

POLL_S = 0.5
KILLS = (0.33, 0.66)


def main() -> int:
    """Run, kill, resume, verify and report. Exit code 1 where a condition fails, which may be chance in a short run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--p", type=float, default=0.9978, help="probability that a counted vote is right")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kill", type=float, action="append", help="share of moves at a kill (0.33, 0.66)")
    parser.add_argument("--state", default=".million", help="folder of the job")
    parser.add_argument("--cluster", default="inline")
    parser.add_argument("--http", action="store_true", help="ask the simulated provider over HTTP")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args()
    folder = Path(given.state)
    folder.mkdir(parents=True, exist_ok=True)
    settings = [f"error={error_for(given.p)}", f"seed={given.seed}"]
    provider = Provider(*settings) if given.http else None
    try:
        if provider is not None:
            asked = ["--model", "simulated", "--base-url", provider.url]
        else:
            asked = ["--model", "sim", *(word for setting in settings for word in ("--sim", setting))]
        found = _measured(given, folder, asked)
        if provider is not None:
            found["provider"] = {name: provider.stats()[name] for name in _COUNTED}
    finally:
        if provider is not None:
            provider.close()
    figures.tell(found)
    return 0 if all(found["holds"].values()) else 1


_COUNTED = ("requests", "wrong_answers", "largest_prompt_tokens", "prompts_too_long")


def _measured(given: argparse.Namespace, folder: Path, asked: list[str]) -> dict[str, Any]:
    """Run all stretches; return the figures."""
    story = folder / "story.jsonl"
    steps = 2**given.disks - 1
    for share in sorted(given.kill or KILLS):
        if _rows(folder) < share * steps:
            _tell_story(story, _run(given, folder, asked, until=int(share * steps)), given.json)
    last = _run(given, folder, asked, until=None)
    _tell_story(story, last, given.json)
    return _found(given, folder, steps, story)


def _run(given: argparse.Namespace, folder: Path, asked: list[str], until: int | None) -> dict[str, Any]:
    """Run one stretch: to the end, or until the results file has the given number of moves, then kill."""
    command = [
        sys.executable, "-m", "actors.cli", "run", "hanoi", "-p", f"disks={given.disks}", "-p", f"k={given.k}",
        *asked, "--job", "million", "--state", str(folder), "-o", str(folder / "moves.jsonl"),
        "--cluster", given.cluster, "--json",
    ]  # fmt: skip
    before, begun_s = _rows(folder), time.monotonic()
    with (folder / "err.log").open("ab") as log:
        child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=log, text=True)
    if until is not None:
        while child.poll() is None and _rows(folder) < until:
            time.sleep(POLL_S)
        child.send_signal(signal.SIGKILL)
    text, _ = child.communicate()
    elapsed_s = time.monotonic() - begun_s
    facts = {"from": before, "to": _rows(folder), "elapsed_s": round(elapsed_s, 1), "code": child.returncode}
    facts["steps_per_s"] = round((facts["to"] - before) / elapsed_s)
    if until is None and child.returncode == 0:
        facts["summary"] = json.loads(text.splitlines()[-1])
    return facts


_counted: dict[Path, tuple[int, int]] = {}
"""Bytes read of a file, and the lines in them."""


def _rows(folder: Path) -> int:
    """Return the lines of the results file. New bytes alone are read; a truncated file is read from the start."""
    path = folder / "moves.jsonl"
    if not path.exists():
        return 0
    at, lines = _counted.get(path, (0, 0))
    if path.stat().st_size < at:
        at, lines = 0, 0
    with path.open("rb") as file:
        file.seek(at)
        while some := file.read(1 << 20):
            at, lines = at + len(some), lines + some.count(b"\n")
    _counted[path] = at, lines
    return lines


def _tell_story(story: Path, told: dict[str, Any], quiet: bool) -> None:
    with story.open("a") as file:
        file.write(json.dumps(told) + "\n")
        file.flush()
        os.fsync(file.fileno())
    figures.said(f"moves {told['from']:,} to {told['to']:,}: {told['steps_per_s']:,} a second", quiet)


def _found(given: argparse.Namespace, folder: Path, steps: int, story: Path) -> dict[str, Any]:
    stretches = [json.loads(line) for line in story.read_text().splitlines()]
    summary = stretches[-1].get("summary", {})
    counted = summary.get("calls", 0) - summary.get("failures", {}).get("malformed", 0)
    formula = votes_expected(given.p, given.k)
    right, off = verified(given.disks, _moves(folder)), counted / steps / formula - 1
    killed = sum(each["code"] == -signal.SIGKILL for each in stretches)
    return {
        "benchmark": "million", "machine": figures.machine(), "disks": given.disks, "k": given.k, "seed": given.seed,
        "p": given.p, "error": error_for(given.p), "over": "http" if given.http else "in process",
        "success_expected": chain_success(given.p, given.k, steps), "steps": steps,
        "verified": right, "votes_per_step": counted / steps,
        "samples_per_step": summary.get("calls", 0) / steps, "votes_expected": formula,
        "off": off, "killed": killed, "stretches": stretches,
        "holds": {
            "every move is there and right": right, "votes per step within 1 % of the formula": abs(off) < 0.01,
            "killed as often as was asked": killed >= len(given.kill or KILLS),
        },
    }  # fmt: skip


def _moves(folder: Path) -> Iterator[list[int]]:
    with (folder / "moves.jsonl").open() as file:
        yield from map(json.loads, file)


if __name__ == "__main__":
    sys.exit(main())
