"""Selection of a job's results: the failed, the last, or a random sample."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from cortex.state.commands import EmitResult


def sample_results(
    found: Iterable[EmitResult], *, failed: bool = False, sample: int = 0, tail: int = 0
) -> Iterator[EmitResult]:
    """Yield selected results, in their order. ``sample`` and ``tail`` are counts; 0 means all. At most that many
    results are in memory. The sample depends on the indexes alone, so that it is the same each time."""
    some: Iterable[EmitResult] = (line for line in found if line.failed) if failed else found
    if tail:
        some = deque(some, maxlen=tail)
    if sample:
        some = sorted(heapq.nsmallest(sample, some, key=_draw), key=lambda line: line.index)
    yield from some


def _draw(line: EmitResult) -> bytes:
    return blake2b(b"%d" % line.index, digest_size=8).digest()
