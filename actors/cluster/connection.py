"""What one process has of a Ray: the connection that all runs in it share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from actors.cluster.bootstrap import PrivateRay
from actors.cluster.orphan_cleanup import end_processes

_log = logging.getLogger("cortex.ray")


def to_log(reported: Any, ignore_prefix: bool = False) -> None:
    """Log what Ray would print."""
    _log.debug("%s", reported.get("lines"))


class RayConnection:
    """This process's connection to a Ray, shared by all runs in it; the last to go closes it.

    ``shut`` closes it where it was made here, and not by the program that we are part of.
    """

    def __init__(self, cluster: str, private: PrivateRay | None, shut: Callable[[], None] | None) -> None:
        self.cluster = cluster
        self.private = private
        self.users = 1
        self._shut = shut

    def close(self) -> None:
        """Disconnect; end a private Ray, and wait until no process of it is left."""
        processes = self.private.processes() if self.private is not None else ()
        if self._shut is not None:
            self._shut()
        if self.private is not None:
            end_processes(processes, self.private.mark)
            self.private.remove()
