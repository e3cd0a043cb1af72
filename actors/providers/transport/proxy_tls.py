"""Proxy and trusted certificates for a host, from a Credential: the environment of this process is never read."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from urllib.parse import urlsplit

from actors.providers.credentials.credential import Credential
from actors.providers.transport.failures import ConfigurationFault


async def network_of(address: str, credential: Credential) -> tuple[ssl.SSLContext | None, str | None]:
    """Return what a connection to an address needs: the trusted certificates, None for plain HTTP; and the proxy, None
    for a direct connection. Raises ConfigurationFault."""
    context = await asyncio.to_thread(ssl_context, credential) if address.startswith("https:") else None
    return context, proxy_for(address, credential)


def proxy_for(url: str, credential: Credential) -> str | None:
    """Return the proxy for this URL; None where none is set, or NO_PROXY names the host (name, suffix, `*`, CIDR)."""
    parts = urlsplit(url)
    proxy = credential.https_proxy if parts.scheme == "https" else credential.http_proxy
    host = parts.hostname or ""
    if not proxy or _bypassed(host, parts.port, credential.no_proxy):
        return None
    return proxy


def ssl_context(credential: Credential) -> ssl.SSLContext:
    """Return the trusted certificates: SSL_CERT_FILE, else SSL_CERT_DIR, else those that the SDK trusts (the system's).

    Raises ConfigurationFault where the file or folder named cannot be used here.
    """
    if not credential.ca_file and not credential.ca_dir:
        import httpx2  # comes with the SDK

        return httpx2.create_ssl_context(trust_env=False)
    name, path = ("SSL_CERT_FILE", credential.ca_file) if credential.ca_file else ("SSL_CERT_DIR", credential.ca_dir)
    try:
        if credential.ca_file:
            return ssl.create_default_context(cafile=path)
        return ssl.create_default_context(capath=path)
    except (OSError, ssl.SSLError) as error:
        why = error.strerror or str(error)
        raise ConfigurationFault(f"{name}={path} cannot be used on this machine: {why}") from None


def _bypassed(host: str, port: int | None, no_proxy: str) -> bool:
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return any(_names(entry, host.lower(), port) for entry in entries if entry)


def _names(entry: str, host: str, port: int | None) -> bool:
    """Return whether an entry of NO_PROXY (`*`, an address, a network, a name or suffix, perhaps with a port) names
    this host."""
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        pass  # a name, or an entry with a port
    bare, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit():
        if int(entry_port) != port:
            return False
        entry = bare
    entry = entry.strip("[]").removeprefix("*").removeprefix(".")
    return host == entry or host.endswith(f".{entry}")
