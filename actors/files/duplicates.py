"""Finding the names that stand twice among very many, in eight bytes a name.

The first reading keeps a hash of each name. Hashes that came twice are suspects, and a second reading looks at the
suspects' names themselves, so that no two names are ever taken for one.
"""

from __future__ import annotations

from array import array
from typing import Final

SUSPECTS_MAX: Final = 500_000
"""Names that may stand twice before the input is taken for a mistake: they alone are held in full."""

_BUCKETS: Final = 1_024
_MASK: Final = (1 << 64) - 1


class TooManyDuplicates(ValueError):
    """More names stand twice than are held."""


class HashBuckets:
    """Hashes of the names so far, in buckets, so that looking for repeats needs little memory beside them."""

    def __init__(self) -> None:
        self._buckets = [array("Q") for _ in range(_BUCKETS)]
        self._add = [bucket.append for bucket in self._buckets]

    def add(self, name: str) -> None:
        """One more name."""
        number = hash(name) & _MASK
        self._add[number % _BUCKETS](number)

    def repeated(self) -> frozenset[int]:
        """Hashes that came more than once. Raises `TooManyDuplicates`."""
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
    """Where each suspect name stood first."""

    def __init__(self, suspects: frozenset[int]) -> None:
        self._suspects = suspects
        self._first: dict[str, int] = {}

    def line_of_first(self, name: str, line: int) -> int:
        """The line where this name stood before; 0 where it did not, and then this line is its first."""
        if hash(name) & _MASK not in self._suspects:
            return 0
        first = self._first.setdefault(name, line)
        return 0 if first == line else first
