"""What went wrong with one attempt, as a `Failure`: a provider's refusal, a lost connection, an unreadable answer.

Nothing here raises, and no text leaves without passing the credential's redactor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from actors.providers.messages.rate_limit_headers import retry_after_s
from actors.providers.messages.sse import StreamError
from policies.failures.failure import Failure, FailureKind, classify

MESSAGE_CHARS_MAX: Final = 500
"""A failure is journalled and shown; what names the cause stands first."""

Redactor = Callable[[str], str]

_PROXY_AUTH_REQUIRED: Final = 407


class ConfigurationFault(Exception):
    """The road to the provider cannot be opened as it is set: a certificate file, a proxy, an address."""


class RequestUnprepared(Exception):
    """The SDK's client could not make a request: no credentials, or none that can be renewed. Its cause says why."""


class ModelClosed(Exception):
    """A call after `close`."""


def of_answer(status: int, headers: Mapping[str, str], body: bytes, redact: Redactor) -> Failure:
    """The failure in an answer whose status, or whose body, says that there is no message."""
    error_type, message, details = _read_error(body)
    error_type = error_type or headers.get("x-amzn-errortype", "").partition(":")[0]
    if 300 <= status < 400:
        where = headers.get("location", "elsewhere")
        said = f"the address answers with a redirect to {where}: set ANTHROPIC_BASE_URL or --base-url to the right one"
        return Failure(FailureKind.BLOCKED, line(said, redact), status)
    kind = classify(status, error_type, message, details)
    if status == _PROXY_AUTH_REQUIRED:
        kind = FailureKind.UNAUTHORISED
    return Failure(
        kind,
        line(message or f"the provider answered with status {status} and no explanation", redact),
        status,
        redact(error_type)[:100],
        retry_after_s(headers),
    )


def of_stream_error(error: StreamError, status: int, headers: Mapping[str, str], redact: Redactor) -> Failure:
    """The failure that an `error` event inside a stream names."""
    return of_answer(status, headers, msgspec.json.encode({"error": error.error}), redact)


def unreadable(why: str, status: int, redact: Redactor) -> Failure:
    """An answer that came, with a good status, and is no message: cut, garbled, or of another type."""
    return Failure(FailureKind.TRANSIENT, line(why, redact), status)


def of_exception(error: BaseException, redact: Redactor, opens: str = "") -> Failure:
    """The failure behind an exception of aiohttp's, or of the SDK's that wraps one.

    `sent` is False only where the request certainly never left: no connection, no tunnel, no handshake. `opens` says
    what to do where the SDK finds no credentials.
    """
    if isinstance(error, RequestUnprepared) and error.__cause__ is not None:
        return _unprepared(error.__cause__, redact, opens)
    cause = _root(error)
    text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    if isinstance(cause, ModelClosed):
        return Failure(FailureKind.TRANSIENT, "the model was closed before the call", sent=False)
    if isinstance(cause, ConfigurationFault):
        return Failure(FailureKind.BLOCKED, line(str(cause), redact), sent=False)
    if isinstance(cause, aiohttp.ClientConnectorCertificateError):
        said = f"the certificate of {cause.host} is not trusted ({_reason(cause)}): set SSL_CERT_FILE to the right one"
        return Failure(FailureKind.BLOCKED, line(said, redact), sent=False)
    if isinstance(cause, aiohttp.ClientHttpProxyError):
        refused = cause.status in (_PROXY_AUTH_REQUIRED, 401, 403)
        kind = FailureKind.UNAUTHORISED if refused else FailureKind.TRANSIENT
        said = f"the proxy refused the tunnel with status {cause.status}: {cause.message}"
        return Failure(kind, line(said, redact), cause.status, sent=False)
    if isinstance(cause, aiohttp.InvalidURL):
        return Failure(FailureKind.BLOCKED, line(f"the address is no URL: {text}", redact), sent=False)
    if isinstance(cause, aiohttp.ConnectionTimeoutError):
        return Failure(FailureKind.TRANSIENT, line("no connection in time", redact), sent=False)
    if isinstance(cause, aiohttp.ClientConnectorError):  # refused, unknown host, proxy away, handshake failed
        return Failure(FailureKind.TRANSIENT, line(f"no connection: {text}", redact), sent=False)
    if isinstance(cause, TimeoutError):  # the attempt's own deadline, or silence on the line
        return Failure(FailureKind.TIMED_OUT, line(f"no whole answer in time ({text})", redact))
    return Failure(FailureKind.TRANSIENT, line(f"the connection was lost: {text}", redact))


_UNREACHED: Final = frozenset(
    {"TransportError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"}
)
"""Errors of google-auth and botocore, which go elsewhere than we do: whoever gives out tokens was not reached."""


def _unprepared(cause: BaseException, redact: Redactor, opens: str) -> Failure:
    """A request that the SDK's client could not make. Nothing was sent, so nothing can have been paid."""
    said = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, ImportError) or type(cause).__name__ == "MissingDependencyError":
        told = f"a package is not installed where calls are made: {said}"
        return Failure(FailureKind.BLOCKED, line(told, redact), sent=False)
    if type(cause).__name__ in _UNREACHED or getattr(cause, "retryable", False) is True:
        return Failure(FailureKind.TRANSIENT, line(f"no credentials could be fetched: {said}", redact), sent=False)
    if isinstance(cause, ValueError | TypeError):
        return Failure(FailureKind.BLOCKED, line(f"the SDK makes no request of this: {said}", redact), sent=False)
    told = f"no credentials that open it ({said[:200]}): {opens}" if opens else f"no credentials that open it: {said}"
    return Failure(FailureKind.UNAUTHORISED, line(told, redact), sent=False)


def names_error(body: bytes) -> bool:
    """Does this body speak of an error, in the provider's form?"""
    return _read_error(body)[0] != ""


def _root(error: BaseException) -> BaseException:
    """The aiohttp error that the SDK's layers wrapped, or else the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, aiohttp.ClientError | TimeoutError | ConfigurationFault):
            return seen
        seen = seen.__cause__
    return error


def _reason(error: aiohttp.ClientConnectorCertificateError) -> str:
    found: Any = error.certificate_error
    return str(getattr(found, "verify_message", "") or found)


def _read_error(body: bytes) -> tuple[str, str, str]:
    """`error.type`, `error.message` and `error.details` (as JSON text) of a body; the body's text where it has none.

    Clouds have forms of their own: Google a `status` in place of the type, and a list around it all where a stream was
    asked for; Azure a `code`; AWS a message and no more (its type is in a header), or `__type`.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", body[:4_000].decode("utf-8", "replace"), ""
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):
        return "", error, ""
    if not isinstance(error, dict):
        said = found.get("message", found.get("Message")) if isinstance(found, dict) else None
        name = _text(found.get("__type")).rpartition("#")[2] if isinstance(found, dict) else ""
        return name, said if isinstance(said, str) else body[:4_000].decode("utf-8", "replace"), ""
    details = error.get("details")
    return (
        next(filter(None, (_text(error.get(name)) for name in ("type", "status", "code"))), ""),
        _text(error.get("message")),
        "" if details is None else msgspec.json.encode(details).decode(),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def line(text: str, redact: Redactor) -> str:
    """One line, without secrets, of at most `MESSAGE_CHARS_MAX` characters."""
    said = " ".join(redact(text).split())
    return said if len(said) <= MESSAGE_CHARS_MAX else said[: MESSAGE_CHARS_MAX - 1] + "…"
