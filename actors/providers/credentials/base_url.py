"""Base URL of a server, read as users write it."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from actors.providers.credentials.credential import CredentialError, without_password
from actors.providers.remedies import for_address

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BROKEN_SCHEME: Final = re.compile(r"https?:?/|https?:(?!\d)", re.IGNORECASE)
_HOST: Final = re.compile(r"[\w.-]+")
_KEY_IN_QUERY: Final = re.compile(r"(?:^|&)[^=&]*(?:key|token|secret|code|sig)[^=&]*=", re.IGNORECASE)
_FORM: Final = "must be an http:// or https:// URL with a host"
BY_NAME: Final = "dns+"
"""Prefix of the address of a name, each of whose addresses is a server (``actors.routing.server_discovery``)."""
METRICS_PATH: Final = "/metrics"
"""Path of the metrics of vLLM, SGLang, llama.cpp and TGI."""


def read_base_url(name: str, text: str, appended: tuple[str, ...] = (), root: str = "") -> str:
    """Return the base URL in a text in one spelling; empty for an empty text. A second pass changes nothing.

    ``name``: the option or variable, for errors. ``appended``: paths that the client appends itself, longest first
    (``Provider.appended``). An address that ends in one of them is accepted without: the SDK of Anthropic appends
    ``/v1/messages`` to any base URL (``anthropic._base_client._prepare_url``), that of OpenAI expects the ``/v1``, and
    users copy either (https://github.com/NousResearch/hermes-agent/issues/24833,
    https://github.com/BerriAI/litellm/issues/36956, where the siblings of that class take the suffix off). ``root``:
    path that an address without any has (``Provider.root``): one that has it says no more.

    Scheme and host become lower case, trailing slashes, an empty query and a fragment are dropped (RFC 3986, 3.5 and
    6.2.2). A missing scheme means http for a host of this machine or network: an address of a private range, or a name
    without a dot; for other hosts it is refused, since a key could leave without encryption. The SDKs refuse all of
    them. A query is refused: a path appended to it would become part of its value. User and password are kept. Raises
    ``CredentialError``, whose text holds neither password nor query.
    """
    url = text.strip().strip("'\"").strip()
    if not url:
        return ""
    shown = repr(_shown(url))
    if re.search(r"[\s\\]", url) or not url.isprintable():
        raise CredentialError(f"{name} {_FORM}, not {shown}")
    url = url if _SCHEME.match(url) else _with_scheme(name, url, shown)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        address = bool(host) and ":" in host and bool(ipaddress.ip_address(host))
    except ValueError:
        raise CredentialError(f"{name} {_FORM}, not {shown}") from None
    sound = parts.scheme in ("http", "https") and (address or _HOST.fullmatch(host)) and port != 0
    if not sound:
        raise CredentialError(f"{name} {_FORM}, not {shown}")
    if parts.query:
        raise CredentialError(f"{name} has a query after {shown}: {_without_query(url, parts.query)}")
    user, at, _ = parts.netloc.rpartition("@")
    netloc = f"{user}{at}" + (f"[{host}]" if address else host) + (f":{port}" if port is not None else "")
    path = _without(parts.path, appended)
    return urlunsplit((parts.scheme, netloc, "" if path.lower() == root else path, "", ""))


def read_server_url(name: str, text: str, appended: tuple[str, ...] = (), root: str = "") -> str:
    """Return what ``read_base_url`` returns, also for an address after the prefix ``BY_NAME``, which stays. Raises
    ``CredentialError``."""
    if not is_by_name(text):
        return read_base_url(name, text, appended, root)
    bare = text.strip()[len(BY_NAME) :]
    url = read_base_url(f"{name} {BY_NAME}", bare, appended, root) if _SCHEME.match(bare) else ""
    host = urlsplit(url).hostname or ""
    if not host or _is_address(host):
        raise CredentialError(f"{name} {BY_NAME}: write {BY_NAME}http://NAME:PORT, with a name that has addresses")
    return BY_NAME + url


def is_by_name(text: str) -> bool:
    """Return whether an address begins with the prefix ``BY_NAME``, in any case."""
    return text.strip()[: len(BY_NAME)].lower() == BY_NAME


def read_metrics_url(name: str, text: str) -> str:
    """Return the URL of a server's metrics in one spelling: that of ``read_base_url``, with the path ``/metrics`` where
    the text has none, or the ``/v1`` of an API.

    ``name``: the option, for errors. A query, a user and a password are refused, since the URL is kept with the job.
    Raises ``CredentialError``, whose text holds none of them.
    """
    bare, _, query = text.partition("?")
    url = read_base_url(name, bare, ("/v1",))
    if not url:
        raise CredentialError(f"{name} {_FORM}, like http://gpu:8000/metrics")
    if query or without_password(url) != url:
        what = "a query" if query else "a user or password"
        raise CredentialError(f"{name} holds {what}, which would be stored with the job: leave it out")
    return url if urlsplit(url).path else f"{url}{METRICS_PATH}"


def _without_query(url: str, query: str) -> str:
    """Return what to do about an address with a query: copied from Azure's portal, or as one calls Gemini by hand."""
    if _KEY_IN_QUERY.search(query):
        told = "leave it out, and set a key in CORTEX_SERVER_KEY or the provider's own variable, or by --api-key-file"
    else:
        told = "leave it out, since a path is appended"
    return for_address(_shown(url), told)


def _without(path: str, appended: tuple[str, ...]) -> str:
    """Return a path without trailing slashes and without the paths that the client appends."""
    path = path.rstrip("/")
    while found := next((each for each in appended if path.lower().endswith(each)), ""):
        path = path[: -len(found)].rstrip("/")
    return path


def _with_scheme(name: str, url: str, shown: str) -> str:
    if _BROKEN_SCHEME.match(url) or (url.startswith("/") and not url.startswith("//")):
        raise CredentialError(f"{name} {_FORM}, not {shown}")
    url = url.lstrip("/")
    if _is_address(url):
        url = f"[{url}]" if ":" in url else url
    try:
        host = urlsplit(f"//{url}").hostname or ""
    except ValueError:
        host = ""
    if not host:
        raise CredentialError(f"{name} {_FORM}, not {shown}")
    if not is_near(host):
        raise CredentialError(f"{name} has no scheme: give https://{_shown(url)}, or http:// for no encryption")
    return f"http://{url}"


def is_near(host: str) -> bool:
    """Return True for a host of this machine or of a private network: a name without a dot, a private or loopback
    address, a name below ``.local`` (RFC 6762), ``.internal`` or ``.localhost`` (RFC 6761)."""
    host = host.rstrip(".").lower()
    if _is_address(host):
        found = ipaddress.ip_address(host)
        return found.is_private or found.is_loopback or found.is_unspecified or found.is_link_local
    return "." not in host or host.endswith((".local", ".internal", ".localhost"))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shown(url: str) -> str:
    """Return an address without user, password, query and fragment; it may be no URL at all."""
    bare = re.split(r"[?#]", url, maxsplit=1)[0]
    if "@" not in bare:
        return bare
    try:
        return without_password(bare) if _SCHEME.match(bare) else f"…@{bare.rpartition('@')[2]}"
    except ValueError:
        return f"…@{bare.rpartition('@')[2]}"
