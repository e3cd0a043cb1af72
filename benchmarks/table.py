"""Table of rows to a table of answers, compared with plain requests: ``python -m benchmarks.table --json``.

100,000 rows of CSV to Parquet with a template and a schema, over real HTTP at 20 ms an answer, in turns with as many
plain requests of `benchmarks.http` (`cortex batch` on JSON Lines, to JSON Lines), inline and on a private Ray. The
rate is the server's view; ``whole_s`` includes the check of the input and the writing of the Parquet file; ``cpu_us``
is the CPU of all our processes a row. The Parquet file is read back: each row once, with its own answer, each field in
its column.
"""

from __future__ import annotations

import argparse
import csv
import resource
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import http
from benchmarks.harness import command, figures, rows
from benchmarks.harness.server import RunningServer

FIELDS = {
    "number": {"type": "integer", "minimum": 0},
    "parity": {"enum": ["even", "odd"]},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "said": {"type": "string", "maxLength": 20},
}
"""Fields of the benchmarks' server in structured output."""
SCHEMA = {"type": "object", "properties": FIELDS, "required": list(FIELDS), "additionalProperties": False}
PROMPT = "Repeat this and nothing else: row {{number}}\n\n{{product}}: {{text}}"
CLUSTERS = {"inline": "inline", "ray": "local"}
PRODUCTS = ("kettle", "lamp", "chair", "desk")
TEXT = "It came on time, works as told, and I would buy it again."


def write_table(path: Path, count: int) -> None:
    """Write the input: an id, a number that the server finds again, and further columns."""
    with path.open("w", newline="", encoding="utf-8") as out:
        table = csv.writer(out)
        table.writerow(["id", "number", "product", "text", "stars"])
        table.writerows(
            [f"r{number:06d}", f"{number:06d}", PRODUCTS[number % 4], TEXT, number % 5] for number in range(count)
        )


def check_table(path: Path, count: int) -> None:
    """Check that every row stands there once, with its own answer and no error. Raises ``rows.Lost``."""
    import pyarrow.parquet as pq

    found = pq.read_table(path).to_pydict()
    if list(found) != ["id", *FIELDS, "answer", "error"]:
        raise rows.Lost(f"{path.name} has the columns {list(found)}")
    if any(found["error"]) or any(found["answer"]):
        raise rows.Lost(f"{path.name}: {next(each for each in found['error'] + found['answer'] if each)}")
    wrong = [
        id_ for id_, number, parity, share, answer in zip(found["id"], *(found[name] for name in FIELDS), strict=True)
        if (id_, answer, parity, share)
        != (f"r{number:06d}", f"row {number:06d}", ("even", "odd")[number & 1], number % 1_000 / 1_000)
    ]  # fmt: skip
    if wrong:
        raise rows.Lost(f"{path.name}: {len(wrong)} rows have another's answer, the first is {wrong[0]}")
    rows.check_all(zip(found["id"], found["said"], strict=True), count)


class Bench:
    """Runs of the benchmark, in a folder of their own."""

    def __init__(self, folder: Path, url: str, calls: int, concurrency: int) -> None:
        self._folder = folder
        self._url = url
        self._calls = calls
        self._concurrency = concurrency
        self._runs = 0
        self._requests = http.Bench(folder, url, calls, concurrency, concurrency)
        self._input, self._schema = folder / "rows.csv", folder / "schema.json"
        write_table(self._input, calls)
        self._schema.write_bytes(msgspec.json.encode(SCHEMA))

    def take(self, road: str) -> float:
        """Run a variant, named like ``table_inline``; return its seconds in all."""
        what, _, where = road.partition("_")
        return self._table(CLUSTERS[where]) if what == "table" else self._requests.roads[where]()

    def _table(self, cluster: str) -> float:
        self._runs += 1
        state, output = self._folder / f"table-{self._runs}", self._folder / f"answers-{self._runs}.parquet"
        run = command.batch(
            self._input, output, state, "--base-url", self._url, "--model", rows.MODEL, "--cluster", cluster,
            "--concurrency", str(self._concurrency), "--prompt", PROMPT, "--schema", str(self._schema), "--id", "id",
            "--max-output-tokens", "64",
        )  # fmt: skip
        entries = (run.summary["outcome"], run.summary["rows_succeeded"], run.summary["attempts"])
        if entries != ("complete", self._calls, self._calls):
            raise rows.Lost(f"{self._calls} rows on {cluster}, and the summary says {entries}")
        check_table(output, self._calls)
        return run.whole_s


def cpu_s() -> float:
    """Return the CPU seconds of our ended processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds. Raises ``rows.Lost`` where a row is not answered exactly once."""
    roads = [f"{what}_{where}" for where in given.clusters.split(",") for what in ("http", "table")]
    taken: dict[str, list[tuple[float, float, float]]] = {road: [] for road in roads}
    found: dict[str, Any] = {"machine": figures.machine(), "calls": given.calls, "rounds": given.rounds}
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as name,
        RunningServer(given.delay_ms) as server,
    ):
        bench = Bench(Path(name), server.url, given.calls, given.concurrency)
        for round_ in range(given.rounds):
            for road in roads if round_ % 2 == 0 else roads[::-1]:
                server.reset()
                before_s = cpu_s()
                whole_s = bench.take(road)
                used_us = (cpu_s() - before_s) / given.calls * 1e6
                counts = server.counts()
                http.check_counts(counts, given.calls, road)
                taken[road].append((counts.calls_per_s, whole_s, used_us))
                text = f"{counts.calls_per_s:7.0f} calls/s, {whole_s:5.1f} s whole, {used_us:5.0f} µs of CPU a row"
                figures.said(f"round {round_ + 1} {road:12} {text}", given.json)
    for road in roads:
        rates, wholes, cpus = zip(*taken[road], strict=True)
        found[road] = {
            "calls_per_s": figures.median(rates, 0), "rounds": [round(rate) for rate in rates],
            "whole_s": figures.median(wholes), "cpu_us": figures.median(cpus),
        }  # fmt: skip
    for where in given.clusters.split(","):
        for key, place in (("ratio", 0), ("ratio_whole", 1), ("ratio_cpu", 2)):
            pairs = zip(taken[f"table_{where}"], taken[f"http_{where}"], strict=True)
            shares = [mine[place] / theirs[place] for mine, theirs in pairs]
            found[f"table_{where}"][key] = figures.median(shares, 3)
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clusters", default="inline,ray", help="inline, ray, or both separated by a comma")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--concurrency", type=int, default=300, help="permits of a cortex batch")
    parser.add_argument("--folder", default=None, help="folder for inputs, journals and results during the run")
    figures.tell(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
