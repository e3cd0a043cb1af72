"""Summaries of fixed size over any number of values: bins of time, distributions, the largest values."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise
from typing import Any

GROWTH = 1.01
"""Ratio of two neighbouring bucket bounds of a ``QuantileSketch``: its quantiles are exact to within 1 %."""
_LOG = math.log(GROWTH)


class TimeAxis:
    """Time span cut into bins of equal width. Unix time."""

    def __init__(self, begin_s: float, end_s: float, bins: int) -> None:
        self.begin_s = begin_s
        self.bins = bins
        self.width_s = max(end_s - begin_s, 0.001) / bins

    def bin(self, at_s: float) -> int:
        """Return the index of a moment's bin; moments outside the span fall into the first or last bin."""
        return min(self.bins - 1, max(0, int((at_s - self.begin_s) / self.width_s)))

    def middles(self) -> list[float]:
        """Return the seconds from the beginning to the middle of each bin."""
        return [round((place + 0.5) * self.width_s, 3) for place in range(self.bins)]


class BinnedSeries:
    """Series with one value a bin."""

    def __init__(self, axis: TimeAxis) -> None:
        self.axis = axis
        self.values = [0.0] * axis.bins

    def add(self, at_s: float, amount: float = 1.0) -> None:
        """Add an amount at a moment."""
        self.values[self.axis.bin(at_s)] += amount

    def hold(self, from_s: float, to_s: float, level: float = 1.0) -> None:
        """Add a level held from one moment to another: each bin gets the level times the seconds within it."""
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

    def before(self, at_s: float) -> float:
        """Return the sum of the bins that ended before a moment."""
        return sum(self.values[: self.axis.bin(at_s)])

    def means(self) -> list[float]:
        """Return the mean level of each bin."""
        return [round(max(0.0, value) / self.axis.width_s, 3) for value in self.values]

    def counts(self) -> list[float]:
        """Return the sum of each bin."""
        return [round(value, 6) for value in self.values]


class QuantileSketch:
    """Distribution of values above zero, each kept to within 1 %, with their number, sum, minimum and maximum."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        self._zeros = 0
        self._counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Add a value; values below zero count as zero."""
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
        """Return the value that this share of all values does not exceed; 0 without values."""
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
        """Return bars (from, to, count) in steps that grow with the values. ``whole``: values are whole numbers.
        ``a_decade``: bars per factor of ten."""
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
    """Collection of the largest of any number of values; of equal values the first are kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[float, int, Any]] = []
        self._met = 0

    def takes(self, weight: float) -> bool:
        """Return whether something of this weight would be kept now."""
        return len(self._heap) < self._size or weight > self._heap[0][0]

    def offer(self, weight: float, what: Any) -> None:
        """Offer ``what``; it is kept if its weight is among the largest."""
        self._met += 1
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (weight, -self._met, what))
        elif weight > self._heap[0][0]:
            heapq.heapreplace(self._heap, (weight, -self._met, what))

    def largest(self) -> list[Any]:
        """Return the kept objects, the largest first."""
        return [what for _, _, what in sorted(self._heap, key=lambda each: (-each[0], -each[1]))]
