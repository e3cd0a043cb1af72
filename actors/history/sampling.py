"""Some of a job's results: those that failed, the last ones, or some from all over."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from cortex.state.commands import EmitResult


def sample_results(
    found: Iterable[EmitResult], *, failed: bool = False, sample: int = 0, tail: int = 0
) -> Iterator[EmitResult]:
    """Of the results, in their order. ``sample`` and ``tail`` are counts, 0: all. Flat memory: no more than these are
    held. The same sample of the same results each time, whatever they say."""
    some: Iterable[EmitResult] = (line for line in found if line.failed) if failed else found
    if tail:
        some = deque(some, maxlen=tail)
    if sample:
        some = sorted(heapq.nsmallest(sample, some, key=_draw), key=lambda line: line.index)
    yield from some


def _draw(line: EmitResult) -> bytes:
    return blake2b(b"%d" % line.index, digest_size=8).digest()
