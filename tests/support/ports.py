"""TCP ports for servers that are started by a number."""

from __future__ import annotations

import random
import socket

FIRST, LAST = 20_000, 32_767
"""Range above the ports that Ray gives to workers (10,002 to 19,999) and below those that Linux gives to sockets that
ask for none (``net.ipv4.ip_local_port_range``, 32,768 to 60,999)."""


def free_port() -> int:
    """Return a port on which nothing listens, and which the kernel gives to no other socket meanwhile.

    A port that the kernel chose may be given away again before the server binds it: a Ray whose agent met that ended
    at once.
    """
    for port in random.SystemRandom().sample(range(FIRST, LAST), 1_000):
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                found.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port of a thousand between {FIRST} and {LAST}")
