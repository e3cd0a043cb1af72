"""Samples that a drill scrapes, and the alert rules evaluated over them by Prometheus' own test runner.

Each page is read every ``STEP_S`` while the incident runs, so every value is one that a process really exported. The rules
ask for minutes, which a test has not. Where a drill stands still, `Recording.stands` therefore repeats its last scrapes,
``SCRAPE_S`` apart, for the minutes that it names: gauges have the same values again, counters grow as they did in these
scrapes, and a moment such as the last progress stays where it is or goes along, as it did. REPEATED: such minutes show what
the rules say of an incident that stays as it was measured; they do not show what a longer incident does besides.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from k8s.boards.queries import metrics_in
from tests.e2e import tools
from tests.support.patience import PATIENCE_S
from tests.support.repository_rules import ROOT

RULES: Final = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"
STEP_S: Final = 0.25
SCRAPE_S: Final = 15
"""Seconds between two scrapes in the minutes that are repeated: the interval of ``k8s/prometheus/monitor.yaml``."""
PER_SCRAPE: Final = int(SCRAPE_S / STEP_S)
OVER_S: Final = 1.0
"""Seconds whose scrapes are repeated, at least."""
MOMENT: Final = 1e9
"""Least value that is a Unix time."""
TIMEOUT_S: Final = 10.0
SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
GROWS = ("_total", "_sum", "_count", "_bucket")
Values = dict[str, float]


@dataclass(frozen=True)
class Scrape:
    """Samples of one scrape, by series; none where the page did not answer. ``slot``: its time in steps."""

    slot: int
    values: Values


@dataclass(frozen=True)
class Still:
    """Stretch that is repeated after ``slot``. ``since``: slot after which its scrapes were made; ``times``: scrapes that
    are added; ``drifts``: gauges that go on as they went, such as the free bytes of a disk that fills."""

    since: int
    slot: int
    times: int
    drifts: tuple[str, ...] = ()


def stored(scrapes: list[Scrape], stills: list[Still], began_s: float) -> dict[str, dict[int, float | None]]:
    """Return what Prometheus would have stored of one page: values by series and slot; None: stale."""
    told = _Stored(scrapes, stills, began_s)
    return told.series


class _Stored:
    def __init__(self, scrapes: list[Scrape], stills: list[Still], began_s: float) -> None:
        self.series: dict[str, dict[int, float | None]] = {}
        self._stills, self._began_s = stills, began_s
        self._grown: Values = {}
        self._went_on: dict[str, list[tuple[float, int]]] = {}
        """Moments that went along with a stretch: their value at its end, and the number of the stretch."""
        self._there: set[str] = set()
        self._shift = 0
        coming = list(stills)
        for scrape in scrapes:
            while coming and coming[0].slot < scrape.slot:
                self._repeat(scrapes, coming.pop(0))
            self._put(scrape.slot + self._shift, {key: self._moved(key, at, scrape) for key, at in scrape.values.items()})
        for still in coming:
            self._repeat(scrapes, still)

    def _put(self, slot: int, values: Values) -> None:
        for key in self._there - values.keys():
            self.series[key][slot] = None
        for key, value in values.items():
            self.series.setdefault(key, {})[slot] = value
        self._there = set(values)

    def _moved(self, key: str, value: float, scrape: Scrape) -> float:
        if value < MOMENT:
            return value + self._grown.get(key, 0.0)
        since_s = value - self._began_s
        if since_s > scrape.slot * STEP_S + 1:  # to come
            return since_s
        along = {number for last, number in self._went_on.get(key, ()) if value >= last}
        later = (
            each.times for number, each in enumerate(self._stills)
            if number in along or (each.slot + 1) * STEP_S <= since_s
        )  # fmt: skip
        return since_s + SCRAPE_S * sum(later)

    def _repeat(self, scrapes: list[Scrape], still: Still) -> None:
        these = [each for each in scrapes if still.since < each.slot <= still.slot]
        if these:
            first, last = these[0], these[-1]
            took_s = max(STEP_S, (last.slot - first.slot) * STEP_S)
            pace = {key: (last.values[key] - first.values.get(key, last.values[key])) / took_s for key in last.values}
            for number in range(1, still.times + 1):
                again, on_s = these[(number - 1) % len(these)], number * SCRAPE_S
                values = {}
                for key, value in last.values.items():
                    if _name(key).endswith(GROWS) or _name(key) in still.drifts:
                        values[key] = max(0.0, self._moved(key, value, last) + pace[key] * on_s)
                    elif value >= MOMENT:
                        values[key] = self._moved(key, value, last) + (on_s if pace[key] else 0)
                    else:
                        values[key] = again.values.get(key, value)
                self._put(still.slot + self._shift + number * PER_SCRAPE, values)
            for key, value in last.values.items():
                if value >= MOMENT and pace[key]:
                    self._went_on.setdefault(key, []).append((value, self._stills.index(still)))
                if _name(key).endswith(GROWS):
                    self._grown[key] = self._grown.get(key, 0.0) + pace[key] * still.times * SCRAPE_S
        self._shift += still.times * PER_SCRAPE


def _name(key: str) -> str:
    return key.partition("{")[0]


def written(series: dict[str, dict[int, float | None]]) -> list[dict[str, str]]:
    """Return series as promtool reads them."""
    found = []
    for key, values in series.items():
        words, at = list[str](), 0
        for slot, value in sorted(values.items()):
            words += [f"_x{slot - at}"] * (slot > at)
            words.append("stale" if value is None else f"{value:.12g}")
            at = slot + 1
        found.append({"series": key, "values": " ".join(words)})
    return found


class _Target:
    """Page that is scraped in a thread of its own. ``prefix`` and ``labels`` are those of the road."""

    def __init__(self, url: str, labels: dict[str, str], began_s: float) -> None:
        self.scrapes: list[Scrape] = []
        self._url, self._labels, self._began_s = url, labels, began_s
        self._wanted = set(metrics_in(RULES.read_text()))
        self.over, self.lock = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self._scrape, daemon=True)
        self.thread.start()

    def _scrape(self) -> None:
        slot = -1
        while not self.over.wait(max(0.0, (slot + 1) * STEP_S - (time.time() - self._began_s))):
            with self.lock:
                slot = max(slot + 1, int((time.time() - self._began_s) / STEP_S))
                self.scrapes.append(Scrape(slot, self._read()))

    def _read(self) -> Values:
        found = {}
        with contextlib.suppress(OSError), urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
            own = ",".join(f'{name}="{value}"' for name, value in self._labels.items())
            for line in answer.read().decode().splitlines():
                sample = SAMPLE.match(line)
                if sample is not None and sample["name"].removeprefix("ray_") in self._wanted:
                    labels = ",".join(part for part in (sample["labels"], own) if part)
                    found[f"{sample['name']}{{{labels}}}"] = float(sample["value"])
        return found


@dataclass
class Recording:
    """Scrapes of one drill, and which alerts must fire when. Slots are those of what is stored."""

    began_s: float = field(default_factory=time.time)
    targets: list[_Target] = field(default_factory=list)
    stills: list[Still] = field(default_factory=list)
    moments: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Alerts that fire at a slot, and none besides."""
    cause: int = -1
    """Slot of the last cause, of those that were scraped."""

    def scrape(self, url: str, **labels: str) -> _Target:
        """Scrape a page from now on."""
        self.targets.append(_Target(url, labels, self.began_s))
        return self.targets[-1]

    def stands(
        self, minutes: float, drifts: tuple[str, ...] = (), whole: Callable[[], bool] | None = None
    ) -> int:  # fmt: skip
        """Let the time stand still: the scrapes of the next ``OVER_S`` are repeated for so long; where it takes longer until
        a round of an incident is ``whole``, those since its cause. Return the slot at which they end."""
        before = [(each, len(each.scrapes)) for each in self.targets]
        since = int((time.time() - self.began_s) / STEP_S)
        time.sleep(OVER_S)
        for each, count in before:  # the first may have begun before, and one alone has no pace
            tools.until(lambda each=each, count=count: len(each.scrapes) > count + 2, PATIENCE_S, "scrapes")
        if whole is not None:
            tools.until(whole, PATIENCE_S, "a whole round")
            since = self.cause
        with contextlib.ExitStack() as none_under_way:
            for each in self.targets:
                none_under_way.enter_context(each.lock)
            slot = int((time.time() - self.began_s) / STEP_S)
            time.sleep(max(0.0, (slot + 1) * STEP_S - (time.time() - self.began_s)))
        self.stills.append(Still(since, slot, int(minutes * 60 / SCRAPE_S), drifts))
        return self._shifted(slot)

    def caused(self) -> int:
        """Note that an incident is caused now; return its slot."""
        self.cause = int((time.time() - self.began_s) / STEP_S)
        return self._shifted(self.cause)

    def risen(self, *parts: str) -> float:
        """Return by how much series with these parts in their names have risen since the last cause."""
        found = 0.0
        for each in self.targets:
            these = [scrape for scrape in each.scrapes if scrape.slot > self.cause and scrape.values]
            for key in these[-1].values if these else ():
                if all(part in key for part in parts):
                    found += these[-1].values[key] - these[0].values.get(key, 0.0)
        return found

    def after(self, slot: int, minutes: float) -> int:
        """Return the slot so many minutes later."""
        return slot + int(minutes * 60 / STEP_S)

    def _shifted(self, slot: int) -> int:
        return slot + sum(each.times * PER_SCRAPE for each in self.stills)

    def expect(self, *alerts: str, at: int) -> None:
        """Expect these alerts, and no others, at a slot of what is stored."""
        self.moments.append((at, frozenset(alerts)))

    def close(self) -> None:
        """Scrape no more."""
        for each in self.targets:
            each.over.set()
        for each in self.targets:
            each.thread.join()

    def failed(self, promtool: str, folder: Path, rules: Path = RULES) -> str:
        """Evaluate the rules; return what promtool says of moments at which other alerts fire than expected."""
        self.close()
        series: dict[str, dict[int, float | None]] = {}
        for each in self.targets:
            series |= stored(each.scrapes, self.stills, self.began_s)
        return evaluated(promtool, folder, series, self.moments, rules)


def evaluated(
    promtool: str, folder: Path, series: dict[str, dict[int, float | None]],
    moments: list[tuple[int, frozenset[str]]], rules: Path = RULES,
) -> str:  # fmt: skip
    """Return what promtool says of moments at which other alerts fire than expected; empty if there are none."""
    end_s = int(max(slot for values in series.values() for slot in values) * STEP_S)
    asked = list(_asked(moments, end_s))
    tests = [{"interval": f"{int(STEP_S * 1000)}ms", "input_series": written(series), "promql_expr_test": asked}]
    (folder / "alerts.yaml").write_text(
        yaml.dump(
            {"rule_files": [str(rules)], "evaluation_interval": f"{SCRAPE_S}s", "tests": tests},
            Dumper=yaml.CSafeDumper, width=10**9,
        )
    )  # fmt: skip
    done = subprocess.run(
        [promtool, "test", "rules", str(folder / "alerts.yaml")], capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr if done.returncode else ""


def _asked(moments: list[tuple[int, frozenset[str]]], end_s: int) -> Iterator[dict[str, Any]]:
    def check(expr: str, at_s: float, alerts: frozenset[str]) -> dict[str, Any]:
        firing = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(alerts)]
        return {"expr": expr, "eval_time": f"{int(at_s)}s", "exp_samples": firing}

    for slot, alerts in moments:
        yield check('group by (alertname) (ALERTS{alertstate="firing"})', slot * STEP_S, alerts)
    ever = frozenset[str]().union(*(alerts for _, alerts in moments))
    yield check(f'group by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{end_s + 1}s]))', end_s, ever)
