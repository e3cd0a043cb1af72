"""Form of a results file, its reader, and the choice of the newest file of each benchmark."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent


class Invalid(Exception):
    """Error of one results file, in one line: the file, what is wrong, what to do."""


class Goal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of a figure, in the figure's unit; a missing bound is not checked."""

    at_least: float | int | None = None
    at_most: float | int | None = None

    def reached(self, value: float) -> bool:
        """Return whether the value lies within both bounds, the bounds included."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Alternative measured in the same run; without a value the figure itself is a ratio to it."""

    name: str
    value: float | int | None = None
    unit: str = ""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured value: the median over the rounds where ``rounds`` has more than one."""

    name: str
    value: float | int
    unit: str
    goal: Goal | None = None
    baseline: Baseline | None = None
    rounds: list[float | int] = []
    note: str = ""
    table: bool = True
    """False: kept in the file and left out of the table of README.md."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hardware and interpreter in plain terms."""

    cores: int
    cpu: str
    memory_gb: int
    system: str
    python: str


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of one results file.

    ``commit``: abbreviated hash of the code that was measured; in files up to 2026-11-26, of the commit that recorded
    the figures. ``load``: one-minute load averages during the run, in words where known.
    """

    benchmark: str
    date: str
    commit: str
    machine: Machine
    figures: list[Figure]
    load: str = ""
    note: str = ""


def read(path: Path) -> Result:
    """Return the content of a results file. Raise ``Invalid`` if its form or its name is wrong."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Result)
        datetime.date.fromisoformat(found.date)
    except (msgspec.DecodeError, ValueError) as error:
        raise Invalid(f"{path.name}: {error}: correct the file") from None
    if path.name != (name := f"{found.date}-{found.benchmark}.json"):
        raise Invalid(f"{path.name}: holds {found.benchmark} of {found.date}: name it {name}")
    if len({figure.name for figure in found.figures}) != len(found.figures) or not found.figures:
        raise Invalid(f"{path.name}: needs figures, each with a name of its own: correct the file")
    return found


def read_all(folder: Path = FOLDER) -> list[Result]:
    """Return all results of a folder, oldest first. Raise ``Invalid`` at the first wrong file."""
    return [read(path) for path in sorted(folder.glob("*.json"))]


def newest(results: Iterable[Result]) -> list[Result]:
    """Return the last result of each benchmark, sorted by the benchmark's name."""
    last = {result.benchmark: result for result in sorted(results, key=lambda result: result.date)}
    return [last[name] for name in sorted(last)]
