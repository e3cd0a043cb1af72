"""Failures of one attempt over HTTP: a provider's refusal, a lost connection, an unreadable response.

Nothing here raises, and no text leaves without passing the credential's redactor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from actors.providers.registry import Provider
from actors.providers.transport.response_headers import retry_after_s
from policies.failures.error_vocabulary import ErrorVocabulary, classify
from policies.failures.failure import Failure, FailureKind

MESSAGE_CHARS_MAX: Final = 500
"""Characters of a failure's message, which is journalled and shown; what names the cause stands first."""

_BODY_CHARS_READ: Final = 4_000
_PROXY_AUTH_REQUIRED: Final = 407

Redactor = Callable[[str], str]


class ConfigurationFault(Exception):
    """The connection to the provider cannot be opened as it is set up: a certificate file, a proxy, an address."""


class ModelClosed(Exception):
    """A call after `close`."""


class FailureReader:
    """Turns error responses and exceptions of a provider's client into `Failure` values.

    ``row`` is the provider's, ``redact`` takes secrets out of a text, ``vocabulary`` names the provider's errors.
    """

    def __init__(self, row: Provider, vocabulary: ErrorVocabulary, redact: Redactor) -> None:
        self.row = row
        self.redact = redact
        self.vocabulary = vocabulary

    def of_response(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """Return the failure in a response whose status, or whose body, says that there is no reply."""
        error_type, message, details = self.read_error(headers, body)
        if 300 <= status < 400:
            where = headers.get("location", "elsewhere")
            variable = self.row.base_url_variable
            how = f"set {variable} or --base-url" if variable else "set --base-url"
            text = f"the address answers with a redirect to {where}: {how} to the right one"
            return Failure(FailureKind.BLOCKED, self.line(text), status)
        kind = classify(self.vocabulary, status, error_type, message, details)
        if status == _PROXY_AUTH_REQUIRED:
            kind = FailureKind.UNAUTHORISED
        return Failure(
            kind,
            self.line(message or f"the provider answered with status {status} and no explanation"),
            status,
            self.redact(error_type)[:100],
            self.retry_after_s(headers),
        )

    def retry_after_s(self, headers: Mapping[str, str]) -> float | None:
        """Return the seconds that the provider asks us to wait, in the headers that HTTP has for it; None where it asks
        for none."""
        return retry_after_s(headers)

    def read_error(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Return name, message and details (as JSON text) of the error in a response; the body's text where it has
        none."""
        return error_in(body)

    def names_error(self, body: bytes) -> bool:
        """Return whether a body names an error: a gateway's "200, but"."""
        return error_in(body)[0] != ""

    def unreadable(self, why: str, status: int, answer_came: bool = False) -> Failure:
        """Return the failure of a response of good status that is no reply.

        ``answer_came``: it is an answer of the provider's, which may have been paid for (`UnreadableAnswer`), and not
        the page of a proxy or an empty body. The former is UNREADABLE, the latter TRANSIENT.
        """
        kind = FailureKind.UNREADABLE if answer_came else FailureKind.TRANSIENT
        return Failure(kind, self.line(why), status, answer_came=answer_came)

    def of_exception(self, error: BaseException) -> Failure:
        """Return the failure behind an exception of aiohttp's, or of one that wraps it.

        `sent` is False only where the request certainly never left: no connection, no tunnel, no handshake.
        """
        cause = _root(error)
        text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        if isinstance(cause, ModelClosed):
            return Failure(FailureKind.TRANSIENT, "the model was closed before the call", sent=False)
        if isinstance(cause, ConfigurationFault):
            return Failure(FailureKind.BLOCKED, self.line(str(cause)), sent=False)
        if isinstance(cause, aiohttp.ClientConnectorCertificateError):
            message = f"the certificate of {cause.host} is not trusted ({_reason(cause)})"
            return Failure(FailureKind.BLOCKED, self.line(f"{message}: set SSL_CERT_FILE to the right one"), sent=False)
        if isinstance(cause, aiohttp.ClientHttpProxyError):
            refused = cause.status in (_PROXY_AUTH_REQUIRED, 401, 403)
            kind = FailureKind.UNAUTHORISED if refused else FailureKind.TRANSIENT
            message = f"the proxy refused the tunnel with status {cause.status}: {cause.message}"
            return Failure(kind, self.line(message), cause.status, sent=False)
        if isinstance(cause, aiohttp.InvalidURL):
            return Failure(FailureKind.BLOCKED, self.line(f"the address is no URL: {text}"), sent=False)
        if isinstance(cause, aiohttp.ConnectionTimeoutError):
            return Failure(FailureKind.TRANSIENT, self.line("no connection in time"), sent=False)
        if isinstance(cause, aiohttp.ClientConnectorError):  # refused, unknown host, proxy away, handshake failed
            return Failure(FailureKind.TRANSIENT, self.line(f"no connection: {text}"), sent=False)
        if isinstance(cause, TimeoutError):  # the attempt's own deadline, or silence on the line
            return Failure(FailureKind.TIMED_OUT, self.line(f"no whole answer in time ({text})"))
        return Failure(FailureKind.TRANSIENT, self.line(f"the connection was lost: {text}"))

    def line(self, text: str) -> str:
        """Return one line, without secrets, of at most `MESSAGE_CHARS_MAX` characters."""
        message = " ".join(self.redact(text).split())
        return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"


def error_in(body: bytes) -> tuple[str, str, str]:
    """Return name, message and details (as JSON text) of the error in a body; the body's text where it names none.

    Most APIs have an object ``error`` with ``type``, ``message`` and ``details``. Google has a ``status`` in place of
    the type, and a list around it all where a stream was asked for; Azure a ``code``; AWS a message and no more (its
    name is in a header), or ``__type``.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", body[:_BODY_CHARS_READ].decode("utf-8", "replace"), ""
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):
        return "", error, ""
    if not isinstance(error, dict):
        answer = found.get("message", found.get("Message")) if isinstance(found, dict) else None
        name = _text(found.get("__type")).rpartition("#")[2] if isinstance(found, dict) else ""
        return name, answer if isinstance(answer, str) else body[:_BODY_CHARS_READ].decode("utf-8", "replace"), ""
    details = error.get("details")
    return (
        next(filter(None, (_text(error.get(name)) for name in ("type", "status", "code"))), ""),
        _text(error.get("message")),
        "" if details is None else msgspec.json.encode(details).decode(),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _root(error: BaseException) -> BaseException:
    """Return the aiohttp error that other layers wrapped, or else the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, aiohttp.ClientError | TimeoutError | ConfigurationFault):
            return seen
        seen = seen.__cause__
    return error


def _reason(error: aiohttp.ClientConnectorCertificateError) -> str:
    found: Any = error.certificate_error
    return str(getattr(found, "verify_message", "") or found)
