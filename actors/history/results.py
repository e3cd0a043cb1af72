"""Results for a sink: the latest in memory, all others read from the journal.

A results file is a projection of the journal: a late or repeated reader gets identical results in the same order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from actors.history.result_history import Load, lines
from actors.journal.journal import Journal
from actors.journal.retrying import patiently
from actors.ports.runtime import Runtime
from cortex.state.commands import EmitResult

BUFFER_BYTES_MAX = 8_000_000
"""Most bytes of results in memory."""
READ_MAX = 2_000
"""Most results in one reading."""
READ_BYTES_MAX = 4_000_000
"""Most bytes in one reply with results: on a cluster the reply passes through Ray's object store, which is small."""


class ResultBuffer:
    """Buffer of a running job's latest results."""

    def __init__(self, next_index: int) -> None:
        self._recent: deque[tuple[EmitResult, int]] = deque()
        self._bytes = 0
        self.next_index = next_index

    def add(self, results: Sequence[EmitResult]) -> None:
        """Add results; drop the oldest above ``BUFFER_BYTES_MAX``."""
        recent, index, total = self._recent, self.next_index, self._bytes
        for result in results:
            if result.index != index:  # results in between are read from the journal
                recent.clear()
                total = 0
            value = result.value
            kind = type(value)
            size = len(value) if kind is bytes or kind is str else 200  # about
            recent.append((result, size))
            total += size
            index = result.index + 1
        self.next_index, self._bytes = index, total
        while self._bytes > BUFFER_BYTES_MAX:
            self._bytes -= recent.popleft()[1]

    def all(self, count: int) -> list[EmitResult] | None:
        """Return all ``count`` results of the job; None unless all are in memory."""
        found = [result for result, _ in self._recent]
        whole = len(found) == count == self.next_index and (not found or found[0].index == 0)
        return found if whole else None

    def read(self, index: int) -> list[tuple[int, Any]] | None:
        """Return results from an index on; None if they are no longer in memory and must be read from the journal."""
        first = self._recent[0][0].index if self._recent else self.next_index
        if index < first:
            return None
        found = list(self._from(index - first))
        if sum([size for _, size in found]) >= READ_BYTES_MAX:
            found = _within(found)
        return [(result.index, result.value) for result, _ in found]

    def _from(self, skip: int) -> Iterable[tuple[EmitResult, int]]:
        """Return the next results after ``skip``. A reader that keeps up is near the end, so the search starts there
        if that is nearer."""
        left = max(0, len(self._recent) - skip)
        if left >= min(skip, READ_MAX):
            return islice(self._recent, skip, skip + READ_MAX)
        return [*islice(reversed(self._recent), left)][::-1]


def _within(found: list[tuple[EmitResult, int]]) -> list[tuple[EmitResult, int]]:
    """Return the first results, up to and including the one that reaches ``READ_BYTES_MAX``."""
    total = 0
    for count, (_, size) in enumerate(found, 1):
        total += size
        if total >= READ_BYTES_MAX:
            return found[:count]
    return found


def _size(value: Any) -> int:
    """Return the approximate bytes of a result."""
    return len(value) if isinstance(value, (bytes, str)) else 200


class ResultProjection:
    """Results read from a journal from an index on, without a channel, for ``attach`` and ``results``.

    ``source`` is a journal of the projection's own, which ``close`` closes. Reading may continue after the journal has
    grown. ``at_rest``: of a job that runs or was killed, list the earlier results of rows that are asked again too.
    """

    def __init__(self, source: Journal, load: Load, index: int, at_rest: bool = False) -> None:
        self._journal = source
        self.index = index
        self._lines = lines(source, load, index, at_rest)

    def read(self, count: int = READ_MAX) -> list[tuple[int, Any]]:
        """Return the next results; an empty list at the journal's end."""
        some: list[tuple[int, Any]] = []
        total = 0
        while len(some) < count and total < READ_BYTES_MAX:
            line = next(self._lines, None)
            if line is None:
                break
            some.append((line.index, line.value))
            total += _size(line.value)
        if some:
            self.index = some[-1][0] + 1
        return some

    def close(self) -> None:
        """Close the journal."""
        self._lines.close()
        self._journal.close()


class PastResults:
    """Results that are no longer in memory, for late readers: one projection, which continues while requests are in
    order.

    Read in threads. Two may read at once, as after a kill: a lock makes one wait.
    """

    def __init__(self, opened: Callable[[], Journal], runtime: Runtime) -> None:
        self._opened, self._runtime = opened, runtime
        self._one = threading.RLock()
        self._reading: ResultProjection | None = None

    def read(self, index: int) -> list[tuple[int, Any]]:
        """Return the next results from an index on. Raises ``StoreError``; the call may be repeated."""
        with self._one:
            if self._reading is None or self._reading.index != index:
                self.close()
                load = self._runtime.load_program
                self._reading = ResultProjection(
                    self._opened(), lambda terms: load(terms.program, terms.params_json), index
                )
            try:
                return self._reading.read()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the projection."""
        with self._one:
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.close()


async def listed(
    source: Journal, recent: ResultBuffer, past: PastResults, index: int, end: int
) -> list[tuple[int, Any]]:  # fmt: skip
    """Return the next results of a job from an index on and before ``end``, from memory or from its journal.

    Beyond ``end`` are those of a turn that is being written, and restored ones before the list is final.
    """
    found = recent.read(index)
    if found or index >= end:
        return found or []
    return [each for each in await patiently(source, lambda: past.read(index), apart=True) if each[0] < end]
