"""What will all rows come to, by what a few of them came to?

The generalized regression estimator (Sarndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, 6.4): a line
through the drawn rows, of what each came to by the size of its prompt, each with the weight of the rows that it stands
for; its sum over all rows, whose sizes are known. It needs not be true that tokens follow size: where they do not, the
line is flat and the sum that of a plain stratified sample; where they do, little is left to chance.

The interval is what the rest about the line leaves open: the variance of a stratified sample, with the share that was
drawn taken off (Cochran, Sampling Techniques, 1977, 5.4), and Student's t. It is about the draw alone: a provider that
answers otherwise tomorrow is in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import msgspec

CONFIDENCE: Final = 0.9
"""How often the bill is between low and high, where rows are drawn anew each time."""


class Total(msgspec.Struct, frozen=True):
    """A sum over all rows: the estimate, and the two ends of its interval."""

    low: float
    expected: float
    high: float

    def scaled(self, by: float) -> Total:
        """The same at another rate."""
        return Total(self.low * by, self.expected * by, self.high * by)

    def less(self, known: float) -> Total:
        """What is left of it when so much is done; never below nothing."""
        return Total(*(max(0.0, each - known) for each in (self.low, self.expected, self.high)))

    def within(self, most: float) -> Total:
        """No part of it above what cannot be passed."""
        return Total(*(min(each, most) for each in (self.low, self.expected, self.high)))


class Drawn(msgspec.Struct, frozen=True):
    """The drawn rows of a stratum: how many rows it has, and of each that was drawn its size and what it came to."""

    rows: int
    sizes: tuple[float, ...]
    values: tuple[float, ...]


def total(strata: Sequence[Drawn], size_of_all: float, confidence: float = CONFIDENCE) -> Total:
    """What all rows come to, whose sizes together are ``size_of_all``. Strata of which nothing is known are taken for
    like the others. Raises ValueError where nothing at all is known.
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
        return Total(expected if whole else 0.0, expected, expected if whole else math.inf)
    reach = student_t(free, 0.5 + confidence / 2) * math.sqrt(variance)
    return Total(max(expected - reach, 0.0), expected, expected + reach)


def line(strata: Sequence[Drawn]) -> tuple[float, float]:
    """The weighted least squares line: what a row comes to at size 0, and for each byte. Raises ValueError where no row
    is known."""
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


def _variance(each: Drawn, base: float, slope: float) -> float:
    """Of the sum over a stratum: that of its rests about the line."""
    count = len(each.values)
    if count < 2 or count >= each.rows:
        return 0.0
    rests = [value - base - slope * size for size, value in zip(each.sizes, each.values, strict=True)]
    mean = sum(rests) / count
    spread = sum((rest - mean) ** 2 for rest in rests) / (count - 1)
    return each.rows**2 * (1 - count / each.rows) * spread / count


def student_t(free: int, share: float) -> float:
    """The number below which a Student variable of so many degrees of freedom is with this probability, 0.5 or more.

    Exact for one and two, else the expansion of Abramowitz and Stegun, 26.7.5: off by 3 in 1,000 at three.
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
    """The means of so many equal parts of (value, weight) pairs, ascending; none of nothing.

    Means, not middles: a few very large values count in what all come to.
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
