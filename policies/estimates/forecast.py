"""Forecast of a total over all rows from a sample of rows.

The generalized regression estimator (Sarndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, 6.4): a line
is fitted through the drawn rows, value against prompt size, each with the weight of the rows it represents, and summed
over all rows, whose sizes are known. Values need not follow size: if they do not, the line is flat and the sum equals
that of a plain stratified sample; if they do, the interval is narrow.

The interval covers the residuals about the line: the variance of a stratified sample with the finite population
correction (Cochran, Sampling Techniques, 1977, 5.4), and Student's t. The interval covers the draw only: a provider
that answers differently tomorrow is not included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import msgspec

CONFIDENCE: Final = 0.9
"""Probability over repeated draws that the true total is between low and high."""


class EstimatedTotal(msgspec.Struct, frozen=True):
    """Estimated total over all rows, with the ends of its interval."""

    low: float
    """Lower end of the interval."""
    expected: float
    """Estimate."""
    high: float
    """Upper end of the interval; infinity if the sample is too small."""

    def scaled(self, by: float) -> EstimatedTotal:
        """Return this total times ``by``."""
        return EstimatedTotal(self.low * by, self.expected * by, self.high * by)

    def less(self, known: float) -> EstimatedTotal:
        """Return this total less ``known``, never below 0."""
        return EstimatedTotal(*(max(0.0, each - known) for each in (self.low, self.expected, self.high)))

    def within(self, most: float) -> EstimatedTotal:
        """Return this total with each figure at most ``most``."""
        return EstimatedTotal(*(min(each, most) for each in (self.low, self.expected, self.high)))


class SampledStratum(msgspec.Struct, frozen=True):
    """Drawn rows of a stratum: the stratum's number of rows, and size and value of each drawn row."""

    rows: int
    """Number of rows in the stratum."""
    sizes: tuple[float, ...]
    """Sizes of the drawn rows, in bytes."""
    values: tuple[float, ...]
    """Values of the drawn rows, in the same order."""


def total(strata: Sequence[SampledStratum], size_of_all: float, confidence: float = CONFIDENCE) -> EstimatedTotal:
    """Estimate the total over all rows, whose sizes sum to ``size_of_all``.

    Strata without a known value are taken to be like the others. Raises ValueError if no row is known.
    """
    known = [each for each in strata if each.values]
    count = sum(len(each.values) for each in known)
    base, slope = line(strata)
    all_rows = sum(each.rows for each in strata)
    expected = max(base * all_rows + slope * size_of_all, 0.0)
    variance = sum(_variance(each, base, slope) for each in known) * (all_rows / sum(each.rows for each in known)) ** 2
    free = count - len(known) - (slope != 0)
    if free < 1:
        whole = count >= all_rows
        return EstimatedTotal(expected if whole else 0.0, expected, expected if whole else math.inf)
    reach = student_t(free, 0.5 + confidence / 2) * math.sqrt(variance)
    return EstimatedTotal(max(expected - reach, 0.0), expected, expected + reach)


def line(strata: Sequence[SampledStratum]) -> tuple[float, float]:
    """Return the weighted least squares line: value of a row at size 0, and value per byte.

    Raises ValueError if no row is known.
    """
    known = [(each, each.rows / len(each.values)) for each in strata if each.values]
    if not known:
        raise ValueError("no row is known")
    n = x = y = 0.0
    for each, weight in known:
        n += weight * len(each.sizes)
        x += weight * sum(each.sizes)
        y += weight * sum(each.values)
    mean_x, mean_y = x / n, y / n
    xx = xy = 0.0
    for each, weight in known:
        for size, value in zip(each.sizes, each.values, strict=True):
            xx += weight * (size - mean_x) ** 2
            xy += weight * (size - mean_x) * (value - mean_y)
    slope = xy / xx if xx > 1e-9 * mean_x * mean_x * n else 0.0
    return mean_y - slope * mean_x, slope


def _variance(each: SampledStratum, base: float, slope: float) -> float:
    """Variance of the sum over a stratum, from the residuals about the line."""
    count = len(each.values)
    if count < 2 or count >= each.rows:
        return 0.0
    rests = [value - base - slope * size for size, value in zip(each.sizes, each.values, strict=True)]
    mean = sum(rests) / count
    spread = sum((rest - mean) ** 2 for rest in rests) / (count - 1)
    return each.rows**2 * (1 - count / each.rows) * spread / count


def student_t(free: int, share: float) -> float:
    """Return the quantile ``share`` (0.5 or more) of Student's t with ``free`` degrees of freedom.

    Exact for one and two degrees; otherwise the expansion of Abramowitz and Stegun, 26.7.5, with an error of 3 in 1,000
    at three.
    """
    if free == 1:
        return math.tan(math.pi * (share - 0.5))
    if free == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = NormalDist().inv_cdf(share)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / free**power for power, term in enumerate(terms)))


def parts(values: Sequence[tuple[float, float]], count: int) -> tuple[float, ...]:
    """Return the means of ``count`` equal parts of (value, weight) pairs, ascending; empty for no pairs.

    Means instead of medians, so that a few very large values count in the total.
    """
    ordered = sorted(values)
    whole = sum(weight for _, weight in ordered)
    if not whole:
        return ()
    size = whole / count
    found: list[float] = []
    part, room = 0.0, size
    for value, weight in ordered:
        while weight > room and len(found) < count - 1:
            found.append((part + value * room) / size)
            weight -= room
            part, room = 0.0, size
        part += value * weight
        room -= weight
    found.append(part / size)
    return tuple(found)
