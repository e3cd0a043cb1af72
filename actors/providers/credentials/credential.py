"""The key and the road to a provider, read once from an environment and handed on as a value.

A `Credential` is made where the user's environment is known (the driver) and given to branches in a call; a branch
never looks at its own environment. Nothing prints it: `repr`, `str` and rich show a fingerprint.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

DEFAULT_BASE_URL: Final = "https://api.anthropic.com"
"""Where the official SDK goes when nobody says otherwise."""

REDACTED: Final = "[redacted]"

KEY_FILE: Final = "ANTHROPIC_API_KEY_FILE"
"""Names the variable that holds the path of a file with the key, as secrets are mounted in containers."""
FILE_OPTION: Final = "--api-key-file"
_FILE_BYTES_MAX: Final = 16_384

# Each of these opens a door by itself. A proxy's URL is added when it holds a password.
_SECRET_NAMES: Final = frozenset(
    {
        "ANTHROPIC_API_KEY",
        KEY_FILE,
        "CORTEX_API_KEY_FILE",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_CUSTOM_HEADERS",
        "ANTHROPIC_IDENTITY_TOKEN",
        "ANTHROPIC_WEBHOOK_SIGNING_KEY",
        "ANTHROPIC_FOUNDRY_API_KEY",
        "AWS_BEARER_TOKEN_BEDROCK",  # AWS_SECRET_ACCESS_KEY stays: it opens object stores for input and output, too
        # What a collector of telemetry wants to see. Handed to channels in a call, as keys are to branches.
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    }
)
_PROXY_NAMES: Final = ("https_proxy", "http_proxy", "all_proxy")
_AUTH_HEADERS: Final = frozenset({"authorization", "x-api-key"})
_SECRET_LENGTH_MIN: Final = 6  # shorter values stand in ordinary text by accident
# A key of the provider's that is not ours (a gateway's own, say) is nobody else's business either.
_KEY_LIKE: Final = re.compile(r"\bsk-[A-Za-z0-9_-]{12,}|(?<=[Bb]earer )(?=[^\s\d]{0,64}\d)[A-Za-z0-9._~+/=-]{8,}")


class CredentialError(ValueError):
    """A key or header that cannot be sent. One line; names the variable, never its value."""


class CloudPlatform(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The cloud that serves the model, see ``actors.providers.credentials.clouds``. Never prints its secrets."""

    name: str
    region: str = ""
    project: str = ""
    resource: str = ""
    profile: str = ""
    aws_access_key: str = ""
    aws_secret_key: str = ""
    aws_session_token: str = ""

    @property
    def endpoint(self) -> str:
        """What a route is named by: the cloud and the account's place in it."""
        place = "/".join(filter(None, (self.project, self.resource, self.region)))
        return f"{self.name}://{place}"

    def __repr__(self) -> str:
        return f"Platform({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("endpoint", self.endpoint)]


class RequestAuth(msgspec.Struct, frozen=True, array_like=True):
    """What goes with each request to the provider, as the SDK says. Holds the key: never prints anything."""

    requests: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = ()
    """By path: the address, and the headers."""

    def __bool__(self) -> bool:
        return bool(self.requests)

    def __repr__(self) -> str:
        return f"Prepared({len(self.requests)})"

    def __rich_repr__(self) -> list[tuple[str, int]]:
        return [("requests", len(self.requests))]


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """What opens the provider's door, and how to get there. Encodes with msgspec; never prints its secrets."""

    api_key: str = ""
    key_file: str = ""
    """Absolute path of the file that the key was read from: there it is read again when it is refused."""
    auth_token: str = ""
    custom_headers: tuple[tuple[str, str], ...] = ()
    base_url: str = ""
    """Empty: the provider's own (`DEFAULT_BASE_URL`)."""
    https_proxy: str = ""
    http_proxy: str = ""
    no_proxy: str = ""
    ca_file: str = ""
    """Path of a PEM file that replaces the system's trusted certificates (`SSL_CERT_FILE`)."""
    ca_dir: str = ""
    platform: CloudPlatform | None = None
    """The cloud that serves the model; None for the provider itself, and whoever else speaks its Messages API."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], file: str = "") -> Credential | None:
        """What the environment says; None where it holds no key, no token and no header that is one.

        The key is that in ``file``, which the user named, else ANTHROPIC_API_KEY, else that in the file which
        ANTHROPIC_API_KEY_FILE names; then ANTHROPIC_AUTH_TOKEN (the key wins where both are set, as in the SDK). The
        address is ANTHROPIC_BASE_URL; for the rest see ``on_road``. Raises CredentialError.
        """
        file = file or key_file(environ)
        if file:
            api_key = key_in(file, KEY_FILE if file == key_file(environ) else FILE_OPTION)
        else:
            api_key = sendable("ANTHROPIC_API_KEY", environ.get("ANTHROPIC_API_KEY", ""))
        auth_token = sendable("ANTHROPIC_AUTH_TOKEN", environ.get("ANTHROPIC_AUTH_TOKEN", ""))
        base_url = checked_url("ANTHROPIC_BASE_URL", environ.get("ANTHROPIC_BASE_URL", "").strip())
        found = cls.on_road(
            environ, api_key=api_key, key_file=file, auth_token="" if api_key else auth_token, base_url=base_url
        )
        by_header = any(name.lower() in _AUTH_HEADERS for name, _ in found.custom_headers)
        return found if found.api_key or found.auth_token or by_header else None

    @classmethod
    def on_road(
        cls, environ: Mapping[str, str], *, api_key: str = "", key_file: str = "", auth_token: str = "",
        base_url: str = "", platform: CloudPlatform | None = None,
    ) -> Credential:  # fmt: skip
        """These, and what the environment says of the way there and of what is to be sent along.

        ANTHROPIC_CUSTOM_HEADERS (lines of `name: value`), HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY (in either case,
        the lower one first), SSL_CERT_FILE and SSL_CERT_DIR. Raises CredentialError.
        """
        https, http, any_scheme = (_either_case(environ, name) for name in _PROXY_NAMES)
        return cls(
            api_key=api_key,
            key_file=absolute(key_file),
            auth_token=auth_token,
            custom_headers=_headers(environ.get("ANTHROPIC_CUSTOM_HEADERS", "")),
            base_url=base_url,
            platform=platform,
            https_proxy=checked_url("HTTPS_PROXY or ALL_PROXY", _with_scheme(https or any_scheme)),
            http_proxy=checked_url("HTTP_PROXY or ALL_PROXY", _with_scheme(http or any_scheme)),
            no_proxy=_either_case(environ, "no_proxy"),
            ca_file=environ.get("SSL_CERT_FILE", ""),
            ca_dir=environ.get("SSL_CERT_DIR", ""),
        )

    @property
    def fingerprint(self) -> str:
        """12 hex digits of SHA-256 over everything that identifies the payer: tells accounts apart, opens nothing."""
        digest = hashlib.sha256(b"cortex credential\0")
        parts = [self.api_key, self.auth_token, *(x for pair in self.custom_headers for x in pair)]
        if self.platform is not None:
            parts += [self.platform.name, self.platform.aws_access_key, self.platform.profile]
        for part in parts:
            digest.update(part.encode() + b"\0")
        return digest.hexdigest()[:12]

    @property
    def endpoint(self) -> str:
        """Where it leads, as routes are named by it."""
        address = without_password(self.base_url)
        if self.platform is None:
            return address or DEFAULT_BASE_URL
        return f"{self.platform.endpoint}+{address.rstrip('/')}" if address else self.platform.endpoint

    def renewed(self) -> Credential | None:
        """The same with the key that its file holds by now; None where there is no file, or it holds the same, or
        cannot be read at this moment, since it is being replaced."""
        if not self.key_file:
            return None
        try:
            key = key_in(self.key_file)
        except CredentialError:
            return None
        return None if key == self.api_key else msgspec.structs.replace(self, api_key=key)

    def secrets(self) -> tuple[str, ...]:
        """Every text that must not be seen, the longest first, in each form in which it may come back."""
        found = set(self._secrets_plain())
        found |= {quote(secret, safe="") for secret in found}
        found |= {base64.b64encode(pair.encode()).decode() for pair in self._proxy_pairs()}
        return tuple(sorted((s for s in found if len(s) >= _SECRET_LENGTH_MIN), key=lambda s: (-len(s), s)))

    def redactor(self) -> Callable[[str], str]:
        """A function that takes every secret of this credential, and whatever looks like a key, out of a text."""
        own = "|".join(re.escape(secret) for secret in self.secrets())
        pattern = re.compile(f"{own}|{_KEY_LIKE.pattern}" if own else _KEY_LIKE.pattern)
        return lambda text: pattern.sub(REDACTED, text)

    def _secrets_plain(self) -> Iterator[str]:
        yield self.api_key
        yield self.auth_token
        if self.platform is not None:
            yield self.platform.aws_access_key
            yield self.platform.aws_secret_key
            yield self.platform.aws_session_token
        for name, value in self.custom_headers:
            # `anthropic-beta` and its like are settings, and an error that names them must stay readable.
            if not name.lower().startswith("anthropic-"):
                yield value
                yield value.rpartition(" ")[2]  # the token of "Bearer TOKEN"
        for url in (self.base_url, self.https_proxy, self.http_proxy):
            yield unquote(urlsplit(url).password or "") if "@" in url else ""

    def _proxy_pairs(self) -> Iterator[str]:
        for url in (self.base_url, self.https_proxy, self.http_proxy):
            if "@" in url and (parts := urlsplit(url)).password:
                yield f"{unquote(parts.username or '')}:{unquote(parts.password)}"

    def __repr__(self) -> str:
        return f"Credential({self.fingerprint}, {self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:  # rich would else show every field
        return [("fingerprint", self.fingerprint)]


def key_file(environ: Mapping[str, str]) -> str:
    """The path of the file that the key is read from; empty where it stands in the environment, or nowhere."""
    if environ.get("ANTHROPIC_API_KEY", "").strip():
        return ""
    return environ.get(KEY_FILE, "").strip()


def absolute(path: str) -> str:
    """A path for whoever reads it later, from any folder. Links stay: a mounted secret is renewed by moving one."""
    return os.path.abspath(os.path.expanduser(path)) if path else ""


def key_in(path: str, name: str = FILE_OPTION) -> str:
    """The key that a file holds, alone on its one line. Raises CredentialError, which says by what ``name`` it was
    given."""
    shown = f"{name}: {_KEY_LIKE.sub(REDACTED, ' '.join(path.split()))}"  # some put the key itself there
    try:
        with open(os.path.expanduser(path), "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CredentialError(f"{shown} is not a regular file")
            text = file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        if isinstance(error, CredentialError):
            raise
        said = getattr(error, "strerror", None) or "no path"
        raise CredentialError(f"{shown}: {said[0].lower()}{said[1:]}") from None
    if not text:
        raise CredentialError(f"{shown} is empty: write the key into it")
    if len(text.splitlines()) > 1:
        raise CredentialError(f"{shown} holds several lines: write the key alone into it")
    return sendable(shown, text)


def _without_waiting(path: str, flags: int) -> int:
    """A pipe would else be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def scrub(environ: MutableMapping[str, str], credential: Credential | None = None) -> tuple[str, ...]:
    """Take every secret out of `environ`, in place; returns the names removed, sorted.

    Removed are the variables that hold a key, proxies with a password, and, given a credential, any variable whose
    value contains one of its secrets, whatever its name.
    """
    secrets = credential.secrets() if credential else ()
    removed = sorted(
        name
        for name, value in environ.items()
        if name.upper() in _SECRET_NAMES
        or (name.lower() in _PROXY_NAMES and without_password(value) != value)
        or any(secret in value for secret in secrets)
    )
    for name in removed:
        del environ[name]
    return tuple(removed)


def without_password(url: str) -> str:
    """The URL without its `user:password@`, fit to be shown."""
    if "@" not in url:
        return url
    if "://" not in url:
        return url.rpartition("@")[2]
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def checked_url(name: str, url: str) -> str:
    """The URL, or "" for none. Raises CredentialError, naming `name`, for what is no http or https URL with a host."""
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
    """`host:port` means an http proxy, as in curl."""
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


def _either_case(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper()) or "").strip()


def sendable(name: str, value: str) -> str:
    """The value without the blanks and newline that `$(cat file)` and secret mounts leave around it."""
    value = value.strip()
    if not value.isascii() or not value.isprintable():
        raise CredentialError(f"{name} holds a character that cannot be sent in a header")
    return value


def _headers(text: str) -> tuple[tuple[str, str], ...]:
    """Lines of `name: value`, as the SDK reads them; the last of a name wins."""
    found: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name:
            continue
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise CredentialError("ANTHROPIC_CUSTOM_HEADERS holds a header whose name cannot be sent")
        found[name.lower()] = (name, sendable("ANTHROPIC_CUSTOM_HEADERS", value))
    return tuple(found.values())
