"""Where it happens: a Ray of three nodes on one machine, of which two may die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from actors.cluster.orphan_cleanup import below
from tests.cluster.cluster_processes import Head, another_node

OTHERS = 2


class Ground:
    """The nodes beside the head, where journals and drivers stand. A node that dies is replaced in the background."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.replaced = 0
        self._nodes: dict[int, ExitStack] = {}
        self._replacing: threading.Thread | None = None
        self._failed: Exception | None = None

    def add(self, count: int = 1) -> None:
        """More nodes, started side by side."""
        with ThreadPoolExecutor(count) as starting:
            for started in [starting.submit(self._add) for _ in range(count)]:
                started.result()

    def _add(self) -> None:
        held = ExitStack()
        self._nodes[held.enter_context(another_node(self.head)).pid] = held

    def root_of(self, pid: int) -> int:
        """The process from which all of a process' node descends."""
        for root in (self.head.pid, *self._nodes):
            if pid in {each for each, _ in below(root)}:
                return root
        return 0

    @property
    def whole(self) -> bool:
        """Whether all nodes are there."""
        return self._replacing is None or not self._replacing.is_alive()

    def kill(self, root: int) -> None:
        """``kill -9`` of all processes of a node; another one will join."""
        held = self._nodes.pop(root)
        for pid in (root, *(pid for pid, _ in below(root))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._replacing = threading.Thread(target=self._replace, args=(held,))
        self._replacing.start()

    def _replace(self, held: ExitStack) -> None:
        try:
            held.close()
            time.sleep(1.0)  # a while with a node less
            self.add()
            self.replaced += 1
        except Exception as error:
            self._failed = error

    @property
    def others(self) -> tuple[int, ...]:
        """The nodes that may die, by the process at the root of each."""
        return tuple(self._nodes)

    def settle(self) -> None:
        """Wait until all nodes are there again. Raises what kept one from joining."""
        if self._replacing is not None:
            self._replacing.join()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """End the nodes."""
        if self._replacing is not None:
            self._replacing.join()
        for held in self._nodes.values():
            held.close()


@contextlib.contextmanager
def ground(head: Head) -> Iterator[Ground]:
    """Two nodes beside the head; they end with the block."""
    made = Ground(head)
    try:
        made.add(OTHERS)
        yield made
    finally:
        made.close()


class Size(NamedTuple):
    """What a process holds."""

    files: int
    threads: int
    mb: float
    """Resident."""


def look(pid: int) -> Size:
    """The size of a process; nothing where it is gone."""
    try:
        place = Path(f"/proc/{pid}")
        mb = int((place / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        return Size(len(os.listdir(place / "fd")), len(os.listdir(place / "task")), mb)
    except OSError:
        return Size(0, 0, 0.0)


def largest(sizes: Sequence[Size]) -> Size:
    """The most of each."""
    return Size(*map(max, zip(*sizes, strict=True)))
