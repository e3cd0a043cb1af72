"""TCP ports for servers that are started by a number."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 20_000, 32_767
"""Range above the ports that Ray gives to workers (10,002 to 19,999) and below those that Linux gives to sockets that
ask for none (``net.ipv4.ip_local_port_range``, 32,768 to 60,999)."""
WORKERS_MAX = 8
"""Processes that run tests side by side, each with ports of its own: a server binds its port seconds after it was found
free, on a busy machine, and meanwhile another process would find it free too."""
_given: set[int] = set()
"""Ports that this process was given. One whose server has not bound it yet looks free."""


def free_port() -> int:
    """Return a port on which nothing listens, and which the kernel gives to no other socket meanwhile.

    A port that the kernel chose may be given away again before the server binds it: a Ray whose agent met that ended
    at once.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS_MAX
    for port in random.SystemRandom().sample(range(FIRST + worker, LAST, WORKERS_MAX), 1_000):
        if port in _given:
            continue
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind(("", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise RuntimeError(f"no free port of a thousand between {FIRST} and {LAST}")
