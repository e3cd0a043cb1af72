"""Proxy and trusted certificates for a host, from a Credential: the environment of this process is never read."""

from __future__ import annotations

import asyncio
import ssl

from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.transport.failures import ConfigurationFault


async def network_of(address: str, credential: Credential) -> tuple[ssl.SSLContext | None, str | None]:
    """Return what a connection to an address needs: the trusted certificates, None for plain HTTP; and the proxy, None
    for a direct connection. Raises ConfigurationFault."""
    context = await asyncio.to_thread(ssl_context, credential) if address.startswith("https:") else None
    return context, proxy_for(address, credential)


def proxy_for(url: str, credential: Credential) -> str | None:
    """Return the proxy for this URL (``credentials.proxy.proxy_used``), None for a direct connection. Raises
    ConfigurationFault for a proxy that cannot be used."""
    try:
        return credential.proxy_for(url) or None
    except CredentialError as error:
        raise ConfigurationFault(str(error)) from None


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
