"""Results on their way to a sink: the latest ones in memory, all others read back out of the journal.

A results file is a projection of the journal, so whoever comes late, or again, gets the same results in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

from actors.ports import Runtime
from actors.store import Journal
from cortex import commands, journal
from cortex.loop import step
from cortex.program import Program
from cortex.state import State

BUFFER_BYTES_MAX = 8_000_000
READ_MAX = 2_000
READ_BYTES_MAX = 4_000_000
"""In one answer to who asks for results: on a cluster it passes through Ray's object store, which is small."""


class Outlet:
    """The latest results of a running job."""

    def __init__(self, next_index: int) -> None:
        self._recent: deque[tuple[int, Any, int]] = deque()
        self._bytes = 0
        self.next_index = next_index

    def add(self, index: int, value: Any) -> None:
        """One more result; the oldest leave where there are too many bytes."""
        size = _size(value)
        self._recent.append((index, value, size))
        self._bytes += size
        self.next_index = index + 1
        while self._bytes > BUFFER_BYTES_MAX:
            self._bytes -= self._recent.popleft()[2]

    def read(self, index: int) -> list[tuple[int, Any]] | None:
        """Results from an index on; None where they have left memory and the journal must be asked."""
        first = self._recent[0][0] if self._recent else self.next_index
        if index < first:
            return None
        skip = index - first
        some: list[tuple[int, Any]] = []
        total = 0
        for at, value, size in islice(self._recent, skip, skip + READ_MAX):
            some.append((at, value))
            total += size
            if total >= READ_BYTES_MAX:
                break
        return some


def _size(value: Any) -> int:
    """Bytes of a result, about."""
    return len(value) if isinstance(value, (bytes, str)) else 200


class Projection:
    """Results read out of a journal from an index on, without a channel: what ``attach`` and ``results`` show.

    ``source`` is a reader of its own, closed with the projection.
    """

    def __init__(self, source: Journal, runtime: Runtime, index: int) -> None:
        self._journal = source
        self._runtime = runtime
        self._found: deque[tuple[int, Any]] = deque()
        self._bytes = 0
        self.index = index
        self._exhausted = False  # the journal, as it was when reading began, has been read to its end
        self._steps = self._replay()

    def _replay(self) -> Iterator[None]:
        """Replay from the last snapshot that is not beyond the index, a turn at a time."""
        snapshot = self._journal.latest_snapshot(self.index)
        k: State | None = journal.decode_state(snapshot[1]) if snapshot else None
        program: Program | None = self._program(k) if k else None
        for _, turn in self._journal.turns(snapshot[0] if snapshot else self._journal.opened_at()):
            terms = journal.opening(turn)
            if terms is not None or k is None:
                assert terms is not None, "a generation begins with its opening"
                k = journal.open_job(terms)
                program = self._program(k)
            assert program is not None
            for command in step(k, program, turn):
                if type(command) is commands.Emit and command.index >= self.index:
                    self._found.append((command.index, command.value))
                    self._bytes += _size(command.value)
            yield

    def _program(self, k: State) -> Program:
        return self._runtime.load_program(k.terms.program, k.terms.params_json)

    @property
    def ended(self) -> bool:
        """Whether all that the journal holds has been given out."""
        return self._exhausted and not self._found

    def read(self, count: int = READ_MAX) -> list[tuple[int, Any]]:
        """The next results; an empty list at the journal's end."""
        while len(self._found) < count and self._bytes < READ_BYTES_MAX and not self._exhausted:
            self._exhausted = next(self._steps, self) is self
        some: list[tuple[int, Any]] = []
        total = 0
        while self._found and len(some) < count and total < READ_BYTES_MAX:
            some.append(self._found.popleft())
            total += _size(some[-1][1])
        self._bytes -= total
        if some:
            self.index = some[-1][0] + 1
        return some

    def close(self) -> None:
        """Let go of the journal."""
        self._journal.close()
