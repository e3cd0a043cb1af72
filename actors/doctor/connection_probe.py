"""A connection tried by hand: where the road to a host ends, if it does."""

from __future__ import annotations

import socket
import ssl
import time
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def host_port(url: str) -> tuple[str, int]:
    """Where a URL leads."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def connect_s(url: str, timeout_s: float) -> float:
    """Seconds that a TCP connection to a URL's host takes. Raises ``OSError``."""
    begun_s = time.perf_counter()
    with socket.create_connection(host_port(url), timeout_s):
        return time.perf_counter() - begun_s


def handshake(url: str, context: ssl.SSLContext, timeout_s: float) -> str:
    """TLS's version and until when the certificate holds. Raises ``ssl.SSLError`` or ``OSError``."""
    host, port = host_port(url)
    with (
        socket.create_connection((host, port), timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        until = (secure.getpeercert() or {}).get("notAfter", "")
        return f"{secure.version()}" + (f", its certificate holds until {until}" if until else "")


def reason(error: BaseException) -> str:
    """What an error of the network says, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return str(getattr(error, "strerror", None) or error)
