"""Accuracy of plans against the jobs that follow: ``python -m benchmarks.plan --json``.

`cortex plan … --sample` and then `cortex batch` with equal arguments, each in its own process, for three tables of
10,000 rows: prompts of evenly distributed lengths with replies in proportion; a long tail of both, independent of each
other; many short rows with a few long ones. The provider is **simulated**, and a different limit binds each time:
requests a minute and output tokens a minute, told in headers, and input tokens a minute as capped by the user.
Compared are the expected cost with the bill of the job, which reuses the sample's replies and pays for the rest, and
the predicted time with the time from the job's first turn to its last.

`--large` rows of 300 bytes in a CSV are planned first, without a sample: wall time and processor time of the whole
command (the latter is more robust on a shared machine), and its peak memory.
"""

from __future__ import annotations

import argparse
import csv
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import command, figures
from benchmarks.harness.rows import Lost

WORDS = "harbour ship river mayor town water stone bridge night light paper worker metre year letter garden".split()
ASK = "Summarise the text below in at most {{words}} words.\n\n{{text}}"
PRICE = "input=3,output=15"
LATENCY = ("latency_ms=400", "latency_ms_per_output_token=5")
Lengths = Callable[[random.Random], tuple[int, int]]
"""Function that returns the bytes of a row's text and the largest number of words of its answer."""


class Case(msgspec.Struct, frozen=True):
    """Table of rows of certain lengths with the limit that binds."""

    name: str
    lengths: Lengths
    simulated: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def even(chance: random.Random) -> tuple[int, int]:
    """Return evenly distributed lengths, with replies in proportion."""
    size = chance.randint(50, 1_500)
    return size, 2 + size // 30


def long_tail(chance: random.Random) -> tuple[int, int]:
    """Return lengths with few very long prompts and an independent tail of replies."""
    return min(round(chance.lognormvariate(5.7, 1.0)), 20_000), 1 + min(round(chance.lognormvariate(2.8, 0.8)), 300)


def two_kinds(chance: random.Random) -> tuple[int, int]:
    """Return lengths of nine short rows for each long row."""
    return (round(chance.gauss(5_000, 500)), 150) if chance.random() < 0.1 else (round(chance.gauss(150, 20)), 8)


CASES = (
    Case("even", even, ("rpm=4800",)),
    Case("long_tail", long_tail, ("otpm=360000", "burst_s=10")),
    Case("two_kinds", two_kinds, (), ("--itpm", "1800000")),
)


def write_table(path: Path, rows: int, lengths: Lengths, seed: int) -> None:
    """Write a CSV of rows to be summarised."""
    chance = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "words", "text"])
        for number in range(rows):
            size, words = lengths(chance)
            writer.writerow([f"r{number}", words, text(chance, max(size, 20))])


def text(chance: random.Random, size_bytes: int) -> str:
    """Return random sentences of about ``size_bytes``."""
    lines, size = [], 0
    while size < size_bytes:
        sentence = " ".join(chance.choices(WORDS, k=chance.randint(5, 14))).capitalize() + "."
        lines.append(sentence)
        size += len(sentence) + 1
    return " ".join(lines)[:size_bytes]


def words_of(case: Case, table: Path, state: Path, output: Path) -> list[str]:
    """Return the arguments common to both commands."""
    simulated = [word for setting in (*LATENCY, *case.simulated) for word in ("--sim", setting)]
    return [
        str(table), "--prompt", ASK, "--id", "id", "--model", "sim", "--price", PRICE, "--max-output-tokens", "600",
        "-o", str(output), "--state", str(state), "--json", "--concurrency", "200", *simulated, *case.options,
    ]  # fmt: skip


def told(name: str, words: list[str]) -> dict[str, Any]:
    """Return the object of a command's ``--json``. Raises ``Lost`` where the command fails."""
    ended = subprocess.run(
        [sys.executable, "-m", "actors.cli", name, *words], env=command.environment(), capture_output=True, text=True
    )
    if ended.returncode != 0:
        raise Lost(f"cortex {name} ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=dict[str, Any])


def measure(case: Case, rows: int, sample: int, seed: int, folder: Path) -> dict[str, Any]:
    """Plan one table, then ask it. Raises ``Lost`` where a row has no answer."""
    table = folder / f"{case.name}.csv"
    write_table(table, rows, case.lengths, seed)
    words = words_of(case, table, folder / f"state-{case.name}", folder / f"{case.name}.jsonl")
    plan = told("plan", [*words, "--sample", str(sample)])
    job = told("batch", words)
    if (job["rows_succeeded"], job["paid_calls"]) != (rows, rows - sample):
        raise Lost(f"{rows} rows, {sample} sampled: {job['rows_succeeded']} succeeded, {job['paid_calls']} calls paid")
    return compared(plan, job)


def compared(plan: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Compare the figures of a plan with those of the job; shares are relative to the job's."""
    cost, bill = plan["cost_usd"], job["cost_usd"]
    return {
        "planned_usd": round(cost["expected"], 4), "bill_usd": round(bill, 4),
        "cost_off": round(cost["expected"] / bill - 1, 4),
        "between_low_and_high": cost["low"] <= bill <= cost["high"], "worst_usd": round(cost["worst"], 2),
        "planned_s": plan["seconds"], "took_s": job["elapsed_s"],
        "time_off": round(plan["seconds"] / job["elapsed_s"] - 1, 4), "bound_by": plan["bound_by"],
        "sample_usd": round(plan["sample"]["paid_usd"], 4),
    }  # fmt: skip


def large(rows: int, folder: Path) -> dict[str, Any]:
    """Measure a plan without a sample."""
    table = folder / "large.csv"
    filling = "The quick brown fox jumps over the lazy dog. " * 8
    with table.open("w") as file:
        file.write("ticket_id,text\n")
        for number in range(rows):
            row = f"t{number},"
            file.write(f"{row}{filling[: 299 - len(row)]}\n")
    words = ["--prompt", "Label: {{text}}", "--id", "ticket_id", "--model", "claude-haiku-4-5", "--json"]
    began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    plan = told("plan", [str(table), *words, "--max-output-tokens", "8", "--state", str(folder / "state-large")])
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    if plan["rows"]["to_ask"] != rows:
        raise Lost(f"{rows} rows, and the plan says {plan['rows']}")
    found = {"rows": rows, "bytes": table.stat().st_size, "seconds": round(took_s, 2), "cpu_seconds": round(cpu_s, 2)}
    return found | {"peak_mb": round(after.ru_maxrss / 1_024)}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of each table; 0: no tables")
    parser.add_argument("--sample", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="seed of the tables")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--large", type=int, default=500_000, help="rows of the table that is planned only; 0: none")
    given = parser.parse_args()
    wanted = given.cases.split(",")
    if unknown := set(wanted) - {case.name for case in CASES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in CASES)}")
    found: dict[str, Any] = {"machine": figures.machine(), "provider": "simulated", "rows": given.rows}
    found |= {"sample": given.sample, "seed": given.seed}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if given.large:
            found["large"] = large(given.large, Path(folder))
            figures.said(f"large      {found['large']}", given.json)
        for case in CASES if given.rows else ():
            if case.name in wanted:
                found[case.name] = measure(case, given.rows, given.sample, given.seed, Path(folder))
                figures.said(f"{case.name:10} {found[case.name]}", given.json)
    figures.tell(found)


if __name__ == "__main__":
    main()
