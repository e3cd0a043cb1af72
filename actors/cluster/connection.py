"""Connection of one process to a Ray, shared by all runs in the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from actors.cluster.bootstrap import PrivateRay
from actors.cluster.orphan_cleanup import end_processes

_log = logging.getLogger("cortex.ray")


def to_log(reported: Any, ignore_prefix: bool = False) -> None:
    """Log lines that Ray would print."""
    _log.debug("%s", reported.get("lines"))


class RayConnection:
    """Connection of this process to a Ray, shared by all its runs; the last user closes it.

    ``shut`` disconnects. It is None if the connection was made by the surrounding program.
    """

    def __init__(self, cluster: str, private: PrivateRay | None, shut: Callable[[], None] | None) -> None:
        self.cluster = cluster
        self.private = private
        self.users = 1
        self._shut = shut

    def close(self) -> None:
        """Disconnect. End a private Ray, and wait until all its processes have ended."""
        processes = self.private.processes() if self.private is not None else ()
        if self._shut is not None:
            self._shut()
        if self.private is not None:
            end_processes(processes, self.private.mark)
            self.private.remove()
