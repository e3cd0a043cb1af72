"""Seconds since the start of this machine, by a clock that nobody sets, and the id of that start.

Linux counts the time in which the machine was suspended in ``CLOCK_BOOTTIME`` (clock_gettime(2)), and gives each start
an id in ``/proc/sys/kernel/random/boot_id`` (random(4)), which containers share with their host. Elsewhere the
monotonic clock serves, and the start has no id.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Final

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

steady_s: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Return the seconds since the machine was started."""


@cache
def boot_id() -> str:
    """Return the id of the machine's start; empty if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
