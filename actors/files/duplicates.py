"""Search for duplicate names among very many, in eight bytes a name.

The first reading keeps a hash of each name. Hashes that occur twice are suspects, and a second reading compares the
suspects' names themselves, so that two different names are never taken for duplicates.
"""

from __future__ import annotations

from array import array
from typing import Final

SUSPECTS_MAX: Final = 500_000
"""Duplicate names beyond which the input is refused as a mistake. Only suspects are held in full."""

_BUCKETS: Final = 1_024
_MASK: Final = (1 << 64) - 1


class TooManyDuplicates(ValueError):
    """More than ``SUSPECTS_MAX`` names are duplicates."""


class HashBuckets:
    """Hashes of the names so far, in buckets, so that the search for repeats needs little further memory."""

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(_BUCKETS)]
        self._add = [bucket.append for bucket in self._buckets]

    def add(self, name: str) -> None:
        """Add a name."""
        number = hash(name) & _MASK
        self._add[number % _BUCKETS](number)

    def repeated(self) -> frozenset[int]:
        """Return the hashes that occurred more than once. Raises `TooManyDuplicates`."""
        found: set[int] = set()
        for bucket in self._buckets:
            if len(seen := set(bucket)) < len(bucket):
                for number in bucket:
                    if number in seen:
                        seen.remove(number)
                    else:
                        found.add(number)
                if len(found) > SUSPECTS_MAX:
                    raise TooManyDuplicates
        return frozenset(found)


class FirstOccurrences:
    """Line of the first occurrence of each suspect name."""

    def __init__(self, suspects: frozenset[int]) -> None:
        self._suspects = suspects
        self._first: dict[str, int] = {}

    def line_of_first(self, name: str, line: int) -> int:
        """Return the line of an earlier occurrence of this name; 0 if there is none, and ``line`` is then noted as the
        first.
        """
        if hash(name) & _MASK not in self._suspects:
            return 0
        first = self._first.setdefault(name, line)
        return 0 if first == line else first
