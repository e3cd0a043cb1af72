"""Choice of the proxy for an address: pure, from values of HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_SEPARATORS: Final = re.compile(r"[,\s]+")


def of_environ(environ: Mapping[str, str], name: str) -> str:
    """Return the value of a variable in either case. The lower one counts where both are set, also an empty one, as in
    ``urllib.request.getproxies_environment``, which aiohttp uses."""
    return environ.get(name.lower(), environ.get(name.upper(), "")).strip()


def proxy_used(url: str, https_proxy: str, http_proxy: str, no_proxy: str) -> str:
    """Return the proxy through which a URL is asked; empty for a direct connection.

    The scheme of the URL chooses the proxy, as in ``aiohttp.helpers.get_env_proxy_for_url``. ``no_proxy`` lists, apart
    by commas or blanks, what is asked directly: ``*``; a host, which stands for the hosts below it too, with or without
    a leading ``.`` or ``*.`` (``urllib.request.proxy_bypass_environment``, https://bugs.python.org/issue39057); an IP
    address or a network (https://github.com/psf/requests, ``should_bypass_proxies``); each with or without a port.
    """
    parts = urlsplit(url)
    proxy = https_proxy if parts.scheme == "https" else http_proxy
    if not proxy or not no_proxy:
        return proxy
    host = (parts.hostname or "").rstrip(".").lower()
    port = parts.port or _PORTS.get(parts.scheme, 0)
    entries = filter(None, _SEPARATORS.split(no_proxy.lower()))
    return "" if any(_names(entry, host, port) for entry in entries) else proxy


def _names(entry: str, host: str, port: int) -> bool:
    """Return True if an entry of NO_PROXY names this host."""
    if entry == "*" or _in_network(entry.strip("[]"), host):
        return True
    bare, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit():
        if int(entry_port) != port:
            return False
        entry = bare
        if _in_network(entry.strip("[]"), host):
            return True
    entry = entry.strip("[]").removeprefix("*").strip(".")
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _in_network(network: str, host: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
