"""Attacks, their verdicts, and the table of both.

A module of this folder named in ``KINDS`` has a function ``attacks(short)`` that returns its attacks. To add a kind:
write the module and its name there. A kind without a module is told as not tried, so that nobody takes it for tried.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

KINDS = ("kills", "servers", "disks", "flips", "clocks", "bills")
"""kills: kill -9 at random moments. servers: hostile HTTP. disks: full, gone, read-only. flips: bits of a journal.
clocks: set back and forth. bills: usage beyond what was reserved."""


class Verdict(NamedTuple):
    """Verdict of an attack: whether every promise held, and what was seen."""

    held: bool
    told: str


class Attack(NamedTuple):
    """Attack of a kind. ``run`` gets an empty folder; what it raises is a verdict as well."""

    kind: str
    name: str
    run: Callable[[Path], Verdict]


class Row(NamedTuple):
    """Row of the table. ``held``: None if the attack was not tried."""

    kind: str
    name: str
    held: bool | None
    told: str
    took_s: float = 0.0


def attacks_of(kinds: Iterable[str], short: bool) -> Iterator[Attack | Row]:
    """Yield the attacks of these kinds, and a row for each kind that has none yet."""
    for kind in kinds:
        name = f"tests.adversary.{kind}"
        if importlib.util.find_spec(name) is None:
            yield Row(kind, "", None, "not tried: there is no attack of this kind yet")
            continue
        yield from importlib.import_module(name).attacks(short)


def tried(attack: Attack) -> Row:
    """Carry out an attack in a folder of its own, and return its row."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ct-", dir="/tmp") as folder:
        try:
            verdict = attack.run(Path(folder))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            verdict = Verdict(False, f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})")
    return Row(attack.kind, attack.name, verdict.held, verdict.told, time.monotonic() - began_s)


def line(row: Row) -> str:
    """Return a row of the table as text."""
    word = {True: "held", False: "BROKEN", None: "-"}[row.held]
    return f"{row.kind:<8} {row.name:<34} {word:<7} {row.took_s:>6.1f} s  {' '.join(row.told.split())[:400]}"


def summary(rows: Sequence[Row]) -> str:
    """Return the last line: how many attacks were tried, and how many found a way."""
    held = [row.held for row in rows]
    return f"{len(rows) - held.count(None)} attacks: {held.count(True)} held, {held.count(False)} BROKEN, " + (
        f"not tried: {', '.join(row.kind for row in rows if row.held is None) or 'none'}"
    )
