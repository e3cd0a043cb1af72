"""Figures of fixed size over very many values: bins of time, distributions, the largest few."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise
from typing import Any

GROWTH = 1.01
"""Two values within 1 % of each other are one to a ``QuantileSketch``: so exact are its quantiles."""
_LOG = math.log(GROWTH)


class TimeAxis:
    """A time that is cut into bins of equal width. Seconds since 1970."""

    def __init__(self, begin_s: float, end_s: float, bins: int) -> None:
        self.begin_s = begin_s
        self.bins = bins
        self.width_s = max(end_s - begin_s, 0.001) / bins

    def bin(self, at_s: float) -> int:
        """The bin of a moment; one before the first, or after the last, falls into that one."""
        return min(self.bins - 1, max(0, int((at_s - self.begin_s) / self.width_s)))

    def middles(self) -> list[float]:
        """Seconds from the beginning to the middle of each bin."""
        return [round((place + 0.5) * self.width_s, 3) for place in range(self.bins)]


class BinnedSeries:
    """One value a bin."""

    def __init__(self, axis: TimeAxis) -> None:
        self.axis = axis
        self.values = [0.0] * axis.bins

    def add(self, at_s: float, amount: float = 1.0) -> None:
        """Something happened at this moment."""
        self.values[self.axis.bin(at_s)] += amount

    def hold(self, from_s: float, to_s: float, level: float = 1.0) -> None:
        """Something was so from one moment to another: each bin gets the level times the seconds of it."""
        if to_s <= from_s or not level:
            return
        axis, values = self.axis, self.values
        first, last = axis.bin(from_s), axis.bin(to_s)
        if first == last:
            values[first] += level * (to_s - from_s)
            return
        values[first] += level * (axis.begin_s + (first + 1) * axis.width_s - from_s)
        for place in range(first + 1, last):
            values[place] += level * axis.width_s
        values[last] += level * (to_s - axis.begin_s - last * axis.width_s)

    def means(self) -> list[float]:
        """The mean level of each bin."""
        return [round(max(0.0, value) / self.axis.width_s, 3) for value in self.values]

    def counts(self) -> list[float]:
        """What was added to each bin."""
        return [round(value, 6) for value in self.values]


class QuantileSketch:
    """How values above zero are distributed, each kept to within 1 %; how many, their sum, the least and the most."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        self._zeros = 0
        self._counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        """One more value; what is below zero counts as zero."""
        self.count += 1
        self.least = min(self.least, value)
        if value <= 0:
            self._zeros += 1
            return
        self.total += value
        self.most = max(self.most, value)
        key = math.floor(math.log(value) / _LOG + 1e-9)
        self._counts[key] = self._counts.get(key, 0) + 1

    def quantile(self, share: float) -> float:
        """The value that this share of all values does not pass; 0 where there is none."""
        rank = max(1, math.ceil(share * self.count))
        seen = self._zeros
        if seen >= rank or not self.count:
            return 0.0
        for key in sorted(self._counts):
            seen += self._counts[key]
            if seen >= rank:
                break
        return float(min(self.most, max(self.least, GROWTH ** (key + 0.5))))

    def bars(self, whole: bool, a_decade: int = 20) -> list[tuple[float, float, int]]:
        """(from, to, how many) in steps that grow with the values. ``whole``: the values are whole numbers."""
        if not self._counts:
            return [(0.0, 1.0, self._zeros)] if self._zeros else []
        edges = _edges(GROWTH ** min(self._counts), GROWTH ** (max(self._counts) + 1), whole, a_decade)
        counts = [0] * (len(edges) - 1)
        place = 0
        for key in sorted(self._counts):
            value = math.floor(GROWTH ** (key + 1) - 1e-9) if whole else GROWTH ** (key + 0.5)
            while place < len(counts) - 1 and value >= edges[place + 1]:
                place += 1
            counts[place] += self._counts[key]
        bars = [(low, high, count) for (low, high), count in zip(pairwise(edges), counts, strict=True)]
        return [(0.0, edges[0], self._zeros), *bars] if self._zeros else bars


def _edges(least: float, most: float, whole: bool, a_decade: int) -> list[float]:
    first = math.floor(math.log10(least) * a_decade)
    last = math.ceil(math.log10(most) * a_decade)
    found = [10 ** (each / a_decade) for each in range(first, max(last, first + 1) + 1)]
    if not whole:
        return [float(f"{edge:.4g}") for edge in found]
    rounded = sorted({max(1, round(edge)) for edge in found} | {math.floor(most) + 1})
    return [float(edge) for edge in rounded if edge <= math.floor(most) + 1]


class LargestValues:
    """The largest few of very many; of equals the first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[float, int, Any]] = []
        self._met = 0

    def takes(self, weight: float) -> bool:
        """Whether something of this weight would be among them now."""
        return len(self._heap) < self._size or weight > self._heap[0][0]

    def offer(self, weight: float, what: Any) -> None:
        """One more."""
        self._met += 1
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (weight, -self._met, what))
        elif weight > self._heap[0][0]:
            heapq.heapreplace(self._heap, (weight, -self._met, what))

    def largest(self) -> list[Any]:
        """The largest first."""
        return [what for _, _, what in sorted(self._heap, key=lambda each: (-each[0], -each[1]))]
