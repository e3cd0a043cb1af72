"""Clock of a job: seconds since 1970 that neither stand still nor jump when the clock of a machine is set.

The time of a job is an offset plus the seconds since its machine was started, a count that nobody sets. The offset is a
fact in the journal, together with the id of that start: a later run on the same machine continues the same count, and
thus knows how long nothing ran, whatever was done to the clock meanwhile. Elsewhere the store's clock tells it (a
database has one), or else the machine's clock, as far as that has not gone back.

The machine's clock, *wall time* here, is for people and for deadlines given as a date. Each turn says how far it is
ahead of the job's time. The entrance of time into K is ``Channel._turn``; nothing else brings it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from actors.journal.journal import Journal

FACT = "clock"
"""Name of the fact in the journal."""
STEP_S = 1.0
"""Seconds by which wall time must have moved against the job's time to count as set, in seconds. NTP slews a clock by
at most 0.5 ms a second and steps it from an offset of 128 ms (https://www.ntp.org/documentation/4.2.8-series/ntpd/):
nothing that a deadline notices, and each change is written."""
LOOK_S = 1.0
"""Seconds between two comparisons of the clocks."""
LOOK_FAR_S = 5.0
"""Seconds at most until a job that waits for its deadline compares the clocks again."""


class Clocks(Protocol):
    """Clocks of one machine, as a runtime has them."""

    def now_s(self) -> float:
        """Return wall time, in seconds since 1970."""

    def steady_s(self) -> float:
        """Return the seconds since the machine was started."""

    def boot_id(self) -> str:
        """Return the id of that start."""


class KeptClock(msgspec.Struct, frozen=True):
    """Fact ``clock``: time of a job at the start of a machine."""

    boot: str
    """Id of that start (``Runtime.boot_id``)."""
    base_s: float
    """The job's time at that moment, in seconds since 1970."""


def base_at(
    kept: KeptClock | None, boot: str, steady_s: float, wall_s: float, last: tuple[float, float], idle_s: float | None
) -> float:
    """Return the job's time at the start of the machine.

    ``last``: the job's time in its last turn, and how far wall time was ahead then; (0, 0) if it has no turn.
    ``idle_s``: seconds since the last turn by the clock of the store; None if it has none.
    """
    last_s, ahead_s = last
    if not last_s:
        return wall_s - steady_s
    if kept is not None and boot and kept.boot == boot and kept.base_s + steady_s >= last_s:
        return kept.base_s
    passed_s = idle_s if idle_s is not None else wall_s - ahead_s - last_s
    return last_s + max(0.0, passed_s) - steady_s


class JobClock:
    """Clock of one job in one incarnation of its channel."""

    __slots__ = ("_ahead_s", "_base_s", "_look_s", "_steady_s", "_wall_s")

    def __init__(self, runtime: Clocks, base_s: float, ahead_s: float = 0.0) -> None:
        self._steady_s, self._wall_s = runtime.steady_s, runtime.now_s
        self._base_s, self._ahead_s, self._look_s = base_s, ahead_s, 0.0

    def now_s(self) -> float:
        """Return the job's time."""
        return self._base_s + self._steady_s()

    def ahead_s(self, now_s: float) -> float:
        """Return the seconds by which wall time is ahead of the job's time ``now_s``, negative if it is behind.

        0 below ``STEP_S``. The clocks are compared once in ``LOOK_S``.
        """
        if not self._look_s <= now_s:
            return self._ahead_s
        self._look_s = now_s + LOOK_S
        if self.was_set():
            self._ahead_s = float(round(self._wall_s() - self.now_s()))
        return self._ahead_s

    def was_set(self) -> bool:
        """Return True if wall time has moved since ``ahead_s`` was last told: the clock of the machine was set."""
        return abs(self._wall_s() - self.now_s() - self._ahead_s) >= STEP_S


def clock_of(runtime: Clocks, journal: Journal, last: tuple[float, float], idle_s: float | None) -> JobClock:
    """Return the clock of a job whose epoch was just taken, and note its offset in the journal. Raises ``StoreError``.
    """
    found, boot = journal.meta(FACT), runtime.boot_id()
    kept = msgspec.json.decode(found, type=KeptClock) if found else None
    base_s = base_at(kept, boot, runtime.steady_s(), runtime.now_s(), last, idle_s)
    now = KeptClock(boot, base_s)
    if now != kept:
        journal.set_meta(FACT, msgspec.json.encode(now))
    return JobClock(runtime, base_s, last[1])
