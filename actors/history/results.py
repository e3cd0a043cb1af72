"""Results on their way to a sink: the latest ones in memory, all others read back out of the journal.

A results file is a projection of the journal, so whoever comes late, or again, gets the same results in the same order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from actors.history.result_history import Load, lines
from actors.journal.journal import Journal
from actors.ports.runtime import Runtime
from cortex.state.commands import EmitResult

BUFFER_BYTES_MAX = 8_000_000
READ_MAX = 2_000
READ_BYTES_MAX = 4_000_000
"""In one answer to who asks for results: on a cluster it passes through Ray's object store, which is small."""


class ResultBuffer:
    """The latest results of a running job."""

    def __init__(self, next_index: int) -> None:
        self._recent: deque[tuple[EmitResult, int]] = deque()
        self._bytes = 0
        self.next_index = next_index

    def add(self, results: Sequence[EmitResult]) -> None:
        """More results; the oldest leave where there are too many bytes."""
        recent, index, total = self._recent, self.next_index, self._bytes
        for result in results:
            if result.index != index:  # what is between is read back out of the journal
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
        """All so many results of the job; None where not all of them are in memory."""
        found = [result for result, _ in self._recent]
        whole = len(found) == count == self.next_index and (not found or found[0].index == 0)
        return found if whole else None

    def read(self, index: int) -> list[tuple[int, Any]] | None:
        """Results from an index on; None where they have left memory and the journal must be asked."""
        first = self._recent[0][0].index if self._recent else self.next_index
        if index < first:
            return None
        found = list(self._from(index - first))
        if sum([size for _, size in found]) >= READ_BYTES_MAX:
            found = _within(found)
        return [(result.index, result.value) for result, _ in found]

    def _from(self, skip: int) -> Iterable[tuple[EmitResult, int]]:
        """The next ones; who reads as they come is near the end, and walks from there."""
        left = max(0, len(self._recent) - skip)
        if left >= min(skip, READ_MAX):
            return islice(self._recent, skip, skip + READ_MAX)
        return [*islice(reversed(self._recent), left)][::-1]


def _within(found: list[tuple[EmitResult, int]]) -> list[tuple[EmitResult, int]]:
    """The first of these, up to the one with which they are as large as an answer may be."""
    total = 0
    for count, (_, size) in enumerate(found, 1):
        total += size
        if total >= READ_BYTES_MAX:
            return found[:count]
    return found


def _size(value: Any) -> int:
    """Bytes of a result, about."""
    return len(value) if isinstance(value, (bytes, str)) else 200


class ResultProjection:
    """Results read out of a journal from an index on, without a channel: what ``attach`` and ``results`` show.

    ``source`` is a reader of its own, closed with the projection. It may be read again when the journal has grown.
    """

    def __init__(self, source: Journal, load: Load, index: int) -> None:
        self._journal = source
        self.index = index
        self._lines = lines(source, load, index)

    def read(self, count: int = READ_MAX) -> list[tuple[int, Any]]:
        """The next results; an empty list at the journal's end."""
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
        """Let go of the journal."""
        self._lines.close()
        self._journal.close()


class PastResults:
    """Results that have left the outlet, for whoever comes late: one reading, which goes on while they ask in order.

    It is read in threads, and two may ask at once, as after a kill: one waits for the other.
    """

    def __init__(self, opened: Callable[[], Journal], runtime: Runtime) -> None:
        self._opened, self._runtime = opened, runtime
        self._one = threading.RLock()
        self._reading: ResultProjection | None = None

    def read(self, index: int) -> list[tuple[int, Any]]:
        """The next results from an index on. Raises ``StoreError``, and may be asked again."""
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
        """Let go of the journal."""
        with self._one:
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.close()
