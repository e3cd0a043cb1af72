"""Credential of a provider: its key, and the way to its address, read once from an environment and passed on as a
value.

A `Credential` is made where the user's environment is known (the driver) and given to branches in a call; a branch
never reads its own environment. No representation shows a secret: `repr`, `str` and rich show a fingerprint.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from actors.providers.credentials.proxy import of_environ, proxy_used
from actors.providers.credentials.secret_forms import wide_redactor
from actors.providers.registry import DEFAULT, PROVIDERS, row_of

REDACTED: Final = "[redacted]"
"""Text that stands in place of a secret."""

FILE_OPTION: Final = "--api-key-file"
PROXY_NAMES: Final = ("https_proxy", "http_proxy", "all_proxy")
_AUTH_HEADERS: Final = frozenset({"authorization", "x-api-key"})
_FILE_BYTES_MAX: Final = 16_384
_SECRET_LENGTH_MIN: Final = 6  # shorter values stand in ordinary text by accident
# Keys of a provider's form are redacted wherever they come from: a gateway's own, say.
_KEY_LIKE: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{12,}|(?<=[Bb]earer )(?=[^\s\d]{0,64}\d)[A-Za-z0-9._~+/=-]{8,}")


class CredentialError(ValueError):
    """A key or header that is missing or cannot be sent. One line; names the variable, never its value."""


class CloudPlatform(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Account at a provider other than the default one: where it is, and secrets beside an API key.

    No representation shows a secret.
    """

    name: str
    """Name of the provider's row in ``actors.providers.registry``."""
    region: str = ""
    project: str = ""
    resource: str = ""
    place: tuple[tuple[str, str], ...] = ()
    """Further words of the row's ``place`` with their values, in the row's order."""
    profile: str = ""
    """Name of a profile in the user's configuration from which the credentials are taken."""
    identity: str = ""
    """Public part of a pair of keys (the access key ID of AWS): it tells accounts apart."""
    secrets: tuple[tuple[str, str], ...] = ()
    """Secrets by name."""

    def secret(self, name: str) -> str:
        """Secret of this name; empty where there is none."""
        return dict(self.secrets).get(name, "")

    @property
    def endpoint(self) -> str:
        """Name of the account in a route's endpoint: the provider, and the account's place there."""
        words = (self.project, self.resource, self.region, *(value for _, value in self.place))
        return f"{self.name}://{'/'.join(filter(None, words))}"

    def __repr__(self) -> str:
        return f"CloudPlatform({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("endpoint", self.endpoint)]


class RequestAuth(msgspec.Struct, frozen=True, array_like=True):
    """Address and headers of each request to a provider, as its SDK makes them.

    They hold the key: no representation shows them.
    """

    requests: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = ()
    """Path, address and headers of each kind of request."""

    def __bool__(self) -> bool:
        return bool(self.requests)

    def __repr__(self) -> str:
        return f"RequestAuth({len(self.requests)})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("requests", len(self.requests))]


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """Key of an account, and the way to the provider. Encodes with msgspec; no representation shows a secret."""

    api_key: str = ""
    key_file: str = ""
    """Absolute path of the file that the key was read from; it is read again when the key is refused."""
    auth_token: str = ""
    custom_headers: tuple[tuple[str, str], ...] = ()
    """The user's own headers, sent with each request."""
    base_url: str = ""
    """Address that the user names; empty: the provider's own."""
    https_proxy: str = ""
    http_proxy: str = ""
    no_proxy: str = ""
    ca_file: str = ""
    """Path of a PEM file that replaces the system's trusted certificates (`SSL_CERT_FILE`)."""
    ca_dir: str = ""
    """Path of a folder that does (`SSL_CERT_DIR`)."""
    platform: CloudPlatform | None = None
    """Account at a provider of another name; None for the default provider, and any server that speaks its API."""
    host: str = ""
    """Name of the server whose address stands in ``base_url``: it is sent as the host, and its certificate must be for
    this name; empty: as ``base_url`` says."""

    @classmethod
    def with_network(
        cls, environ: Mapping[str, str], *, headers_variable: str = "", api_key: str = "", key_file: str = "",
        auth_token: str = "", base_url: str = "", platform: CloudPlatform | None = None, host: str = "",
    ) -> Credential:  # fmt: skip
        """Return a credential of these parts, with the network settings and the headers that the environment names.

        Read are ``headers_variable`` (lines of `name: value`), HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY (in either
        case, the lower one first), SSL_CERT_FILE and SSL_CERT_DIR. Raises CredentialError, for a proxy only where it is
        the one that the address would be asked through.
        """
        https, http, any_scheme = (of_environ(environ, name) for name in PROXY_NAMES)
        found = cls(
            api_key=api_key,
            key_file=absolute(key_file),
            auth_token=auth_token,
            custom_headers=_headers(headers_variable, environ.get(headers_variable, "")),
            base_url=base_url,
            platform=platform,
            https_proxy=_with_scheme(https or any_scheme),
            http_proxy=_with_scheme(http or any_scheme),
            no_proxy=of_environ(environ, "no_proxy"),
            ca_file=environ.get("SSL_CERT_FILE", ""),
            ca_dir=environ.get("SSL_CERT_DIR", ""),
            host=host,
        )
        if address := base_url or row_of(found.provider).base_url:  # a cloud's own is known when it is asked
            found.proxy_for(address)
        return found

    @property
    def has_key(self) -> bool:
        """True if there is a key, a token or a header of the user's that serves as one."""
        by_header = any(name.lower() in _AUTH_HEADERS for name, _ in self.custom_headers)
        return bool(self.api_key or self.auth_token or by_header)

    def proxy_for(self, url: str) -> str:
        """Return the proxy through which a URL is asked; empty for a direct connection. Raises CredentialError for a
        proxy that is no http or https URL: SOCKS is not supported; and for any before one of several servers of a
        name, since a proxy looks up names itself."""
        name = "HTTPS_PROXY" if url.startswith("https:") else "HTTP_PROXY"
        no_proxy = self.no_proxy
        if self.host and not proxy_used(at_host(url, self.host), "any", "any", no_proxy):
            return ""
        found = checked_url(f"{name} or ALL_PROXY", proxy_used(url, self.https_proxy, self.http_proxy, no_proxy))
        if found and self.host:
            raise CredentialError(
                f"{name} or ALL_PROXY: a proxy does not reach each server of {self.host}: add {self.host} to NO_PROXY, "
                "or leave out dns+"
            )
        return found

    @property
    def provider(self) -> str:
        """Name of the provider's row."""
        return DEFAULT if self.platform is None else self.platform.name

    @property
    def fingerprint(self) -> str:
        """First 12 hex digits of SHA-256 over everything that identifies the payer: it tells accounts apart and gives
        access to nothing."""
        digest = hashlib.sha256(b"cortex credential\0")
        parts = [self.api_key, self.auth_token, *(x for pair in self.custom_headers for x in pair)]
        if self.platform is not None:
            parts += [self.platform.name, self.platform.identity, self.platform.profile]
        for part in parts:
            digest.update(part.encode() + b"\0")
        return digest.hexdigest()[:12]

    @property
    def endpoint(self) -> str:
        """Endpoint of the credential's routes; its address is not normalised (``account.endpoint_named``)."""
        address = without_password(self.base_url)
        if self.platform is None:
            return address or row_of(DEFAULT).base_url
        return f"{self.platform.endpoint}+{address.rstrip('/')}" if address else self.platform.endpoint

    def renewed(self) -> Credential | None:
        """Return the credential with the key that its file holds now; None where there is no file, or the key is the
        same, or the file cannot be read at this moment, since it is being replaced."""
        if not self.key_file:
            return None
        try:
            key = key_in(self.key_file)
        except CredentialError:
            return None
        return None if key == self.api_key else msgspec.structs.replace(self, api_key=key)

    def secrets(self) -> tuple[str, ...]:
        """Return every text that must not be seen, the longest first, in each form in which it may come back."""
        found = set(self._secret_texts())
        found |= {quote(secret, safe="") for secret in found}
        found |= {base64.b64encode(pair.encode()).decode() for pair in self._proxy_pairs()}
        return tuple(sorted((s for s in found if len(s) >= _SECRET_LENGTH_MIN), key=lambda s: (-len(s), s)))

    def redactor(self) -> Callable[[str], str]:
        """Return a function that takes every secret of this credential, in each form in which it may come back
        (``secret_forms``), and all that looks like a key, out of a text."""
        own = "|".join(re.escape(secret) for secret in self.secrets())
        pattern = re.compile(f"{own}|{_KEY_LIKE.pattern}" if own else _KEY_LIKE.pattern)
        wide = wide_redactor(self.secrets(), REDACTED)
        return lambda text: wide(pattern.sub(REDACTED, text))

    def is_setting(self, header: str) -> bool:
        """Return whether a header of the user's is a setting, as `anthropic-beta` is, rather than a secret: an error
        that names it must stay readable."""
        row = PROVIDERS.get(self.provider)
        prefix = row.setting_headers if row is not None else ""
        return bool(prefix) and header.lower().startswith(prefix)

    def _secret_texts(self) -> Iterator[str]:
        yield self.api_key
        yield self.auth_token
        if self.platform is not None:
            yield self.platform.identity
            yield from (value for _, value in self.platform.secrets)
        for name, value in self.custom_headers:
            if not self.is_setting(name):
                yield value
                yield value.rpartition(" ")[2]  # the token of "Bearer TOKEN"
        for _, password in self._pairs_in_urls():
            yield password

    def _proxy_pairs(self) -> Iterator[str]:
        return (f"{user}:{password}" for user, password in self._pairs_in_urls())

    def _pairs_in_urls(self) -> Iterator[tuple[str, str]]:
        for url in (self.base_url, self.https_proxy, self.http_proxy):
            with contextlib.suppress(ValueError):  # a proxy that is not used is not checked
                if "@" in url and (parts := urlsplit(url)).password:
                    yield unquote(parts.username or ""), unquote(parts.password)

    def __repr__(self) -> str:
        return f"Credential({self.fingerprint}, {self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:  # rich would else show every field
        return [("fingerprint", self.fingerprint)]


def absolute(path: str) -> str:
    """Return a path that holds in any folder; empty for an empty one. Links stay: a mounted secret is renewed by moving
    one."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def key_in(path: str, name: str = FILE_OPTION) -> str:
    """Return the key that a file holds, alone on its one line. Raises CredentialError, which calls the file by
    ``name``, the option or variable that gave it."""
    shown = f"{name}: {_KEY_LIKE.sub(REDACTED, ' '.join(path.split()))}"  # some put the key itself there
    try:
        with open(os.path.expanduser(path), "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialError(f"{shown} is not a regular file")
            text = file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        if isinstance(error, CredentialError):
            raise
        answer = getattr(error, "strerror", None) or "no path"
        raise CredentialError(f"{shown}: {answer[0].lower()}{answer[1:]}") from None
    if not text:
        raise CredentialError(f"{shown} is empty: write the key into it")
    if len(text.splitlines()) > 1:
        raise CredentialError(f"{shown} holds several lines: write the key alone into it")
    return sendable(shown, text)


def _without_waiting(path: str, flags: int) -> int:
    """Open without blocking: reading a pipe would else wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def without_password(url: str) -> str:
    """Return the URL without its `user:password@`, fit to be shown."""
    if "@" not in url:
        return url
    if "://" not in url:
        return url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
    except ValueError:
        return f"{url.partition('://')[0]}://{url.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def at_host(url: str, host: str) -> str:
    """Return a URL with another host; port and path stay."""
    parts = urlsplit(url)
    named = f"[{host}]" if ":" in host else host
    user, at, _ = parts.netloc.rpartition("@")
    port = f":{parts.port}" if parts.port is not None else ""
    return urlunsplit(parts._replace(netloc=f"{user}{at}{named}{port}"))


def checked_url(name: str, url: str) -> str:
    """Return the URL, or "" for none. Raises CredentialError, naming `name`, for text that is no http or https URL with
    a host."""
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        sound = False
    if not sound or re.search(r"\s", url):
        raise CredentialError(f"{name} must be an http:// or https:// URL with a host, not {_shown(url)}")
    return url


def _shown(url: str) -> str:
    return repr(f"…@{url.rpartition('@')[2]}" if "@" in url else url)


def _with_scheme(proxy: str) -> str:
    """Complete `host:port`, which means an http proxy, as in curl."""
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def sendable(name: str, value: str) -> str:
    """Return the value without the blanks and newline that `$(cat file)` and secret mounts leave around it. Raises
    CredentialError, naming `name`, for a character that cannot be sent in a header."""
    value = value.strip()
    if not value.isascii() or not value.isprintable():
        raise CredentialError(f"{name} holds a character that cannot be sent in a header")
    return value


def _headers(variable: str, text: str) -> tuple[tuple[str, str], ...]:
    """Read lines of `name: value`, as the SDK does; the last of a name wins."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name:
            continue
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise CredentialError(f"{variable} holds a header whose name cannot be sent")
        found[name.lower()] = (name, sendable(variable, value))
    return tuple(found.values())
