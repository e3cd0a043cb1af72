"""Whoever looks on while channels work, and changes nothing: traces, metrics, logs.

A watch sees each turn once it is on disk: what happened, what was decided, and K as it is then. It is a fold over
turns, as K is; one that raises is let go, and the job goes on.
"""

from __future__ import annotations

import logging
from typing import Protocol

from cortex import commands, events
from cortex.state import State

_log = logging.getLogger("cortex.watching")


class Took:
    """How long the parts of one turn took, in seconds; when it was over, in seconds since 1970."""

    __slots__ = ("absorb_s", "at_s", "commit_s", "select_s", "step_s", "waited_s")

    def __init__(self) -> None:
        self.at_s = self.step_s = self.commit_s = 0.0
        self.absorb_s = 0.0
        """Of the step: what came was folded in; 0 where nothing came that could be."""
        self.select_s = 0.0
        """Of the step: the next calls were chosen and rendered."""
        self.waited_s = 0.0
        """From the moment at which its first event was there until all were on disk."""


class Watch(Protocol):
    """Looks on at one job."""

    def took(self, took: Took) -> None:
        """How long the turn took that is told next."""

    def turn(self, seq: int, turn: events.Turn, out: list[commands.Command], k: State) -> None:
        """A turn was committed under this number; ``out`` is what it leads to. Nothing of it may be changed."""

    def close(self) -> None:
        """The channel ends, and perhaps goes on elsewhere."""


class Telemetry(Protocol):
    """What looks on in one process."""

    def watch(self, job: str, folder: str) -> Watch:
        """Somebody to look on at this job, whose channel comes to life here. ``folder``: where its state is."""

    def close(self) -> None:
        """The process ends."""


class Nobody:
    """Looks on at nothing."""

    def watch(self, job: str, folder: str) -> Watch:
        """Nobody."""
        return Watches([])

    def close(self) -> None:
        """Nothing waits."""


class Watches:
    """Several as one."""

    def __init__(self, each: list[Watch]) -> None:
        self._each = each

    def took(self, took: Took) -> None:
        """All of them hear it."""
        for watch in list(self._each):
            try:
                watch.took(took)
            except Exception:
                self._let_go(watch)

    def turn(self, seq: int, turn: events.Turn, out: list[commands.Command], k: State) -> None:
        """All of them see it."""
        for watch in list(self._each):
            try:
                watch.turn(seq, turn, out, k)
            except Exception:
                self._let_go(watch)

    def _let_go(self, watch: Watch) -> None:
        """Whoever looks on must not take the job along."""
        self._each.remove(watch)
        _log.exception("%s looks on no more", type(watch).__name__)

    def close(self) -> None:
        """All of them."""
        for watch in self._each:
            try:
                watch.close()
            except Exception:
                _log.exception("%s did not end well", type(watch).__name__)
