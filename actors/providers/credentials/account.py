"""Accounts at providers: from what the user says of a provider to a credential, and to what a client is made from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from actors.providers.credentials.base_url import read_base_url
from actors.providers.credentials.credential import (
    FILE_OPTION,
    CloudPlatform,
    Credential,
    CredentialError,
    RequestAuth,
    key_in,
    sendable,
    without_password,
)
from actors.providers.registry import DEFAULT, Provider, apart, is_own_server, load, missing_extra, named, row_of
from policies.estimates.price import Price
from policies.failures.timeout import TimeoutPolicy

_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_FIELDS: Final = ("region", "project", "resource")


class ProviderLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Location of an account as the user gives it: the provider, and what is needed to find the account there. Holds no
    secret."""

    provider: str = ""
    """Name of the provider; empty: the default one."""
    region: str = ""
    project: str = ""
    resource: str = ""
    place: Mapping[str, str] = {}
    """Further words of the row's ``place`` with their values."""
    base_url: str = ""
    key_file: str = ""
    """Path of the file with the key."""
    model: str = ""
    settings: Any = None
    """Settings of a provider that runs in this process: the simulator's."""
    host: str = ""
    """Name of the server whose address stands in ``base_url``, as in ``Credential``."""

    def at(self, word: str) -> str:
        """Value of a word of the row's ``place``; empty where the user did not say it."""
        return str(getattr(self, word)) if word in _FIELDS else self.place.get(word, "")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Account at a provider, ready for calls: what its routes and its client are made from."""

    endpoint: str
    """Name of the account in routes."""
    credential: Credential | None = None
    model: str = ""
    """Name of the model in requests and replies; empty: as the user names it."""
    context_window: int | None = None
    """Tokens of prompt and reply together; None: as the prices' package knows them."""
    price: Price | None = None
    """None: as the prices' package knows it."""
    settings: bytes = b""
    """Settings of the client, in a form of its own."""
    notice: str = ""
    """Notice for the user about the provider, in one line."""
    close: Callable[[], None] = lambda: None
    """Stop what was started for this account."""


class ClientSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification from which a client is made. Holds a secret: it is never written to disk and no representation
    shows it."""

    endpoint: str
    """Endpoint of the client's routes."""
    provider: str = ""
    """Name of the provider's row; empty: the default one."""
    credential: Credential | None = None
    settings: bytes = b""
    """Settings of the client, in a form of its own (``Account.settings``)."""
    concurrency: int = 100
    """Most calls at once, and so most connections."""
    timeouts: TimeoutPolicy = TimeoutPolicy()
    prepared: RequestAuth = RequestAuth()
    """Requests that an SDK has prepared already, so that the client need not import that SDK."""
    metrics_from: tuple[str, ...] = ()
    """URLs of the metrics of the server's replicas; empty: ``/metrics`` at the root of its address."""


def opened(location: ProviderLocation, environ: Mapping[str, str], *, start: bool = True) -> Account:
    """Return the account that a location leads to.

    ``start``: False starts no server, for what is priced or planned alone. Raises ``CredentialError``, one line that
    says what is missing and how to give it.
    """
    row = row_of(location.provider)
    if row.account:
        found: Account = load(row.account)(row, location, environ, start=start)
        return found
    credential = credential_of(location, environ)
    return Account(endpoint=endpoint_named(credential), credential=credential)


def credential_of(location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True) -> Credential:
    """Return the credential that a location leads to.

    ``required``: False also returns one without a key, for what can be found out without. Raises ``CredentialError``.
    """
    row = row_of(location.provider)
    if line := missing_extra(row):
        raise CredentialError(line)
    found: Credential = load(row.credential)(row, location, environ, required=required)
    if found.platform is not None:
        for word in row.place:
            value = dict(found.platform.place).get(word, "") or getattr(found.platform, word, "")
            if value and not _WORD.fullmatch(value):
                raise CredentialError(f"--provider {row.name}: {value!r:.60} is no {word}")
    return found


def by_key(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential of a provider that is opened by an API key: the default of ``Provider.credential``.

    The key is that in the file that the user named, else in ``key_variable``, else in the file
    that the row's other variable names. Raises ``CredentialError``, for a missing key unless ``may_lack_key``.
    """
    base_url = base_url_of(row, location, environ)
    file = location.key_file or key_file(row, environ, base_url)
    if file:
        key = key_in(file, FILE_OPTION if location.key_file else row.key_file_variable)
    else:
        variable = key_variable(row, environ, base_url)
        key = sendable(variable, environ.get(variable, ""))
    if required and not key and row.key_variable and not may_lack_key(row, base_url):
        raise missing_key(row, location)
    platform = None if row.name == DEFAULT else platform_of(row, location)
    return Credential.with_network(
        environ, headers_variable=row.headers_variable, api_key=key, key_file=file, base_url=base_url,
        platform=platform, host=location.host,
    )  # fmt: skip


def platform_of(row: Provider, location: ProviderLocation) -> CloudPlatform:
    """Return the account's place in a provider as the user said it."""
    further = tuple((word, value) for word in row.place if word not in _FIELDS and (value := location.at(word)))
    return CloudPlatform(
        name=row.name, region=location.region, project=location.project, resource=location.resource, place=further
    )


def base_url_of(row: Provider, location: ProviderLocation, environ: Mapping[str, str]) -> str:
    """Return the address that the user named by option or variable, in one spelling; empty for the provider's own.
    Raises ``CredentialError``."""
    variable = row.base_url_variable
    if location.base_url.strip():
        return read_base_url("--base-url", location.base_url, row.appended, row.root)
    return read_base_url(variable, environ.get(variable, ""), row.appended, row.root)


def may_lack_key(row: Provider, base_url: str) -> bool:
    """Return whether calls to an address may be made without a key: a server of the user's own
    (``is_own_server``), under a row that has such servers."""
    return is_own_server(base_url, row)


def key_variable(row: Provider, environ: Mapping[str, str], base_url: str = "") -> str:
    """Return the environment variable whose key is sent to an address; empty: the provider's own.

    A server of the user's own has a variable to itself. Where that is not set it gets the provider's key, as from the
    SDKs: gateways at other hosts are opened by it.
    """
    own = row.server_key_variable if may_lack_key(row, base_url) else ""
    return own if own and environ.get(own, "").strip() else row.key_variable


def key_file(row: Provider, environ: Mapping[str, str], base_url: str = "") -> str:
    """Return the path of the file from which the key is read; empty where the key is in the environment, or nowhere."""
    if environ.get(key_variable(row, environ, base_url), "").strip():
        return ""
    return environ.get(row.key_file_variable, "").strip()


def missing_key(row: Provider, location: ProviderLocation) -> CredentialError:
    """Return the error for a provider without a key."""
    if row.name != DEFAULT:
        own = ", or --base-url with a server of your own, which may need none" if row.server_key_variable else ""
        return CredentialError(f"--provider {row.name}: no key: {row.how_to_open}{own}")
    what = f"for --model {location.model}" if location.model else "and no --model"
    without_key = " or ".join(f"--model {name}" for name in apart())
    others = ", ".join(name for name in named() if name != DEFAULT)
    return CredentialError(
        f"no key in the environment {what}: set {row.key_variable}, or give --api-key-file with the path of a file "
        f"that holds it, or --base-url with a server of your own, which may need none, or take {without_key}; "
        f"other providers are --provider {others}"
    )


def missing_word(row: Provider, word: str, example: str, variable: str) -> CredentialError:
    """Return the error for a word of the account's place that neither option nor variable says."""
    how = f"give --provider {row.name},{word}={example}, or set {variable}"
    return CredentialError(f"--provider {row.name}: no {word}: {how}")


def first_set(environ: Mapping[str, str], *names: str) -> str:
    """Return the value of the first of these variables that is set; empty where none is."""
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


# -- endpoints -------------------------------------------------------------------------------------------------------


def address_named(base_url: str) -> str:
    """Return an address as routes are named by it: one spelling, no password; the default provider's own for none."""
    try:
        parts = urlsplit(without_password(base_url))
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return base_url  # the client that opens it says what is wrong with it
    if not host:
        return base_url.rstrip("/") or row_of(DEFAULT).base_url
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}.get(parts.scheme):
        host += f":{port}"
    return urlunsplit(parts._replace(netloc=host, path=parts.path.rstrip("/")))


def endpoint_named(credential: Credential) -> str:
    """Return the endpoint of a credential's routes."""
    if credential.platform is None:
        return address_named(credential.base_url)
    address = f"+{address_named(credential.base_url)}" if credential.base_url else ""
    return credential.platform.endpoint + address
