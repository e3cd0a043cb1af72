"""Places of a worker: how many runs it has under way at once, and of which tools."""

from __future__ import annotations

from typing import Final

RUNS_MAX: Final = 256
"""Runs that a worker has under way at once, each in a thread of its own, and so its threads for tools. Tools that are
worth a worker mostly wait: a thread that waits takes 30 KB (256 threads in ``time.sleep`` on CPython 3.12: 8 MB)."""
TOOL_RUNS_MAX: Final = 224
"""Runs among them of one tool."""
SHARE: Final = 7
"""Runs of a tool for each place that is free. Alone a tool has ``TOOL_RUNS_MAX``; of two that want more
each has 119 or 120."""
FIRST_MAX: Final = 32
"""Runs beyond ``RUNS_MAX``, each of a tool with no run under way: that many further tools begin at once."""


def has_place(runs: int, total: int, most: int = TOOL_RUNS_MAX) -> bool:
    """Return whether one more run of a tool may begin: ``runs`` of it are under way, of ``total`` runs of all tools.

    ``most``: runs that the tool may have by its own bound.

    A run cannot be stopped, so a place that slow tools hold is free only when one of them ends. Each tool may therefore
    have a multiple of the places that are still free (A. Choudhury and E. Hahne, "Dynamic queue length thresholds for
    shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2), 1998): some stay free for the next tool,
    however many are slow.
    """
    if not runs:
        return total < RUNS_MAX + FIRST_MAX
    return runs < most and runs < SHARE * (RUNS_MAX - total)
