"""Probe of a connection: TCP and TLS apart, to tell which of them fails."""

from __future__ import annotations

import socket
import ssl
import time
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def host_port(url: str) -> tuple[str, int]:
    """Return host and port of a URL; the default port is that of the scheme."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


def connect_s(url: str, timeout_s: float) -> float:
    """Return the seconds of a TCP connection to a URL's host. Raises ``OSError``."""
    begun_s = time.perf_counter()
    with socket.create_connection(host_port(url), timeout_s):
        return time.perf_counter() - begun_s


def handshake(url: str, context: ssl.SSLContext, timeout_s: float, name: str = "") -> str:
    """Return the TLS version and the end of the certificate's validity, which must be for ``name``; empty: for the
    URL's host. Raises ``ssl.SSLError`` or ``OSError``."""
    host, port = host_port(url)
    with (
        socket.create_connection((host, port), timeout_s) as plain,
        context.wrap_socket(plain, server_hostname=name or host) as secure,
    ):
        until = (secure.getpeercert() or {}).get("notAfter", "")
        return f"{secure.version()}" + (f", its certificate holds until {until}" if until else "")


def reason(error: BaseException) -> str:
    """Return the text of a network error in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return str(getattr(error, "strerror", None) or error)
