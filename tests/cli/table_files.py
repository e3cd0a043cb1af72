"""Tables for tests."""

from __future__ import annotations

import csv
import json
from pathlib import Path

ASK = ("--prompt", "Answer with one of: bug, praise. {{text}}", "--id", "ticket_id")
SIM = ("--model", "sim", "--sim", "error=0")
BAD = ("--accept-bad", "100%")
"""Begins with any number of unreadable records."""


def table(path: Path, count: int) -> Path:
    """A CSV of tickets."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket_id", "text", "team"])
        for i in range(count):
            writer.writerow([f"t{i}", f"It crashes {i} times,\nsays \"Ann\"", f"team {i % 3}"])
    return path


def ragged(path: Path, good: int, bad: int) -> Path:
    """A CSV of tickets, with `bad` lines of one cell too many spread among the `good` ones."""
    lines = [f"t{i},It crashes {i} times" for i in range(good)]
    for i in range(bad):
        lines.insert(2 * i, f"b{i},It crashes, {i} times")
    path.write_text("\n".join(["ticket_id,text", *lines]) + "\n")
    return path


def ids(lines: str) -> list[str]:
    """The ids in JSON Lines, sorted."""
    return sorted(json.loads(line)["ticket_id"] for line in lines.splitlines())
