"""Clocks that are set by a day or a year, in the middle of a run and between two, and clocks that leap.

Each row is refused once, and told to come again in some seconds. Whatever is done to the clock of the machine, it comes
again then: not later by what the clock was set back, and not at once because it was set ahead. A leap of the clocks
that nobody sets (a machine that was suspended) makes all waits end, and loses no row.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.adversary.preload import Preload, able
from tests.adversary.verdicts import Attack, Row, Verdict
from tests.adversary.victim import WITHIN_S, Victim, kill, results_of, wait, write_requests, wrong_rows
from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import MESSAGE, Asked, http

ROWS = 6
CONCURRENCY = 6
WAITS_S = 4
"""Seconds after which a row is told to come again."""
EARLY_S = 1.0
"""Seconds by which a row may come too early: a server's seconds are whole ones."""
DAY_S, YEAR_S = 86_400, 365 * 86_400
STEPS = {"a day back": -DAY_S, "a day ahead": DAY_S, "a year back": -YEAR_S, "a year ahead": YEAR_S}
LEAPS = {"an hour": 3_600, "a day": DAY_S}


def attacks(short: bool) -> Iterator[Attack | Row]:
    """Yield the attacks."""
    if why := able():
        yield Row("clocks", "", None, f"not tried: {why}")
        return
    steps = {"a day back": -DAY_S} if short else STEPS
    for name, step_s in steps.items():
        yield Attack("clocks", f"{name}, in a run", partial(_set, step_s, False))
    for name, step_s in steps.items():
        yield Attack("clocks", f"{name}, between two runs", partial(_set, step_s, True))
    for name, leap_s in LEAPS.items() if not short else ():
        yield Attack("clocks", f"a leap of {name}", partial(_leap, leap_s))


class _Refusing:
    """Provider that refuses each row once. Times are those of this process, whose clock nobody sets."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.again: dict[str, float] = {}
        self.answers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def answer(self, asked: Asked) -> Any:
        found = re.search(rb"Say (r\d+)", asked.body)
        row, now_s = found[1].decode() if found else "", time.monotonic()
        with self._lock:
            if row and row not in self.first:
                self.first[row] = now_s
                # Overloaded, since of a 429 the limiter learns: one call would follow each silence of the six rows.
                error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
                return http(error, 529, retry_after=str(WAITS_S))
            self.again.setdefault(row, now_s)
            self.answers[row] += 1
        return http({**MESSAGE, "content": [{"type": "text", "text": f"answer of {row}"}]})


_WORDS = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "j", "--concurrency", CONCURRENCY)


def _set(step_s: int, between: bool, folder: Path) -> Verdict:
    """Set the clock once rows wait."""
    names, provider, preload = write_requests(folder / "in.jsonl", ROWS), _Refusing(), Preload(folder)
    with served(provider.answer) as server:
        victim = Victim(folder, server.url, **preload.environment)
        started = victim.start(*_WORDS)
        wait(lambda: bool(provider.first))
        if between:
            time.sleep(0.5)  # what was refused is on the disk
            kill(started)
            victim.ended(started, 10)
        preload.tell(wall_s=step_s)
        ended = victim.run(*_WORDS, within_s=WITHIN_S) if between else victim.ended(started, WITHIN_S)
    waited = [provider.again[row] - first for row, first in provider.first.items() if row in provider.again]
    wrong = [*ended.faults(), *filter(None, [wrong_rows(results_of(folder / "out.jsonl"), names)])]
    if ended.code != 0:
        wrong.append(f"exit code {ended.code} after {ended.took_s:.0f} s: {ended.text[-200:]}")
    if waited and not between and min(waited) < WAITS_S - EARLY_S:
        wrong.append(f"a row came again after {min(waited):.1f} s, told to in {WAITS_S} s")
    return Verdict(not wrong, "; ".join(wrong) or f"{ROWS} rows once, again after {min(waited):.1f} to {max(waited):.1f} s")


def _leap(leap_s: int, folder: Path) -> Verdict:
    names, provider, preload = write_requests(folder / "in.jsonl", ROWS), _Refusing(), Preload(folder)
    with served(provider.answer) as server:
        victim = Victim(folder, server.url, **preload.environment)
        started = victim.start(*_WORDS)
        wait(lambda: bool(provider.first))
        preload.tell(wall_s=leap_s, steady_s=leap_s)
        ended = victim.ended(started, WITHIN_S)
    wrong = [*ended.faults(), *filter(None, [wrong_rows(results_of(folder / "out.jsonl"), names)])]
    if ended.code != 0:
        wrong.append(f"exit code {ended.code} after {ended.took_s:.0f} s: {ended.text[-200:]}")
    again = sum(count - 1 for count in provider.answers.values())
    if again > CONCURRENCY:
        wrong.append(f"{again} rows paid again, {CONCURRENCY} may be")
    return Verdict(not wrong, "; ".join(wrong) or f"{ROWS} rows once, {again} paid again, in {ended.took_s:.0f} s")
