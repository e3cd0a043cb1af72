"""Failures of one attempt over HTTP: a provider's refusal, a lost connection, an unreadable response.

Nothing here raises, and no text leaves without passing the credential's redactor.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from actors.providers.credentials.credential import without_password
from actors.providers.registry import Provider
from actors.providers.remedies import (
    ADDRESS,
    CLOSED,
    LIMIT,
    MODEL,
    NO_TLS,
    PAGE,
    PROXY_NO_TLS,
    TLS,
    absent_model,
    for_address,
)
from actors.providers.transport.body import NO_HTTP, json_bytes
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.response_headers import retry_after_s
from cortex.values.display import printable
from policies.failures.error_vocabulary import ErrorVocabulary, classified, is_misdirected, says_no_path, wants_tls
from policies.failures.failure import Failure, FailureKind
from policies.failures.told_retry import obeyed

MESSAGE_CHARS_MAX: Final = 500
"""Characters of a failure's message, which is journalled and shown; what names the cause stands first."""

SHOULD_RETRY: Final = "x-should-retry"
"""Header by which a server says whether a request may be repeated (`policies.failures.told_retry`)."""

_BODY_CHARS_READ: Final = 4_000
_TEXT_CHARS_READ: Final = 100_000
"""Characters of an error's text that are looked through for secrets; the rest, which no message shows, is left out."""
_PROXY_AUTH_REQUIRED: Final = 407
_PASSING_STATUSES: Final = frozenset({421, 424, 425, 460, 499})
"""HTTP statuses below 500 that say nothing of the request, beside 408 and 409: another connection is wanted (RFC 9110,
15.5.20), the model failed (Hugging Face TGI, `error_type: generation`, huggingface/text-generation-inference#1510;
Amazon Bedrock's ModelErrorException), too early (RFC 8470, 5.2), the connection to a load balancer or the call was
given up (AWS; nginx and Google's CANCELLED, googleapis/python-genai#2506)."""

_GATEWAY: Final = re.compile(r"^(?:litellm\.\w+: |\w+Exception - )+")
NO_TLS_SPOKEN: Final = re.compile(r"wrong[ _]version[ _]number|record[ _]layer[ _]failure", re.IGNORECASE)
"""Words of OpenSSL for an answer to a handshake that is no TLS: the first up to release 3.1, the second from 3.2 on
(urllib3/urllib3#3271, cherrypy/cherrypy#2026)."""
_UNREACHED: Final = frozenset({
    "TransportError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError",
    "ServiceRequestError", "ServiceResponseError",
})  # fmt: skip
"""Errors of google-auth, botocore and azure-core, which make connections of their own: the server that gives out tokens
was not reached."""
_NO_NAMES: Final = frozenset({"", "None", "null"})
"""Types of LiteLLM's errors that name none."""

Redactor = Callable[[str], str]


class ConfigurationFault(Exception):
    """The connection to the provider cannot be opened as it is set up: a certificate file, a proxy, an address."""


class RequestUnprepared(Exception):
    """A request could not be made: there are no credentials, or none that can be renewed. Its cause says why."""


class ModelClosed(Exception):
    """A call after `close`."""


class _Named(msgspec.Struct):
    model: str = ""


class FailureReader:
    """Turns error responses and exceptions of a provider's client into `Failure` values.

    ``row`` is the provider's, ``redact`` takes secrets out of a text, ``vocabulary`` names the provider's errors,
    ``address`` is the URL that is asked, without a path; empty: only the client knows it.
    """

    def __init__(self, row: Provider, vocabulary: ErrorVocabulary, redact: Redactor, address: str = "") -> None:
        self.row = row
        self.redact = redact
        self.vocabulary = vocabulary
        self.address = without_password(address)

    def of_response(self, status: int, headers: Mapping[str, str], body: bytes, path: str = "") -> Failure:
        """Return the failure in a response whose status, or whose body, says that there is no reply.

        ``path``: the path that was asked, where each server of the API has it; empty for others, such as the path of
        one message batch, which may be gone.
        """
        error_type, message, details = self._said(headers, body)
        if 300 <= status < 400:
            where = headers.get("location", "elsewhere")
            text = f"the address answers with a redirect to {where}"
            return Failure(FailureKind.BLOCKED, self.line(text, "set --base-url to the right one"), status)
        kind, remedy = classified(self.vocabulary, status, error_type, message, details)
        if status == _PROXY_AUTH_REQUIRED:
            kind = FailureKind.UNAUTHORISED
        elif status in _PASSING_STATUSES and kind is FailureKind.REJECTED:
            kind = FailureKind.TRANSIENT
        wait_s = self._asked_s(kind, headers, body)
        if (told := headers.get(SHOULD_RETRY)) is not None and (obeying := obeyed(kind, told, wait_s)) is not kind:
            kind, remedy = obeying, remedy or (LIMIT if obeying is FailureKind.BLOCKED else "")
        text, has_form = page_text(message), bool(error_type) or has_error(body)
        if wants_tls(status, text, has_form):
            kind, remedy = FailureKind.BLOCKED, TLS
            message = f"{self.where(path)} answered {status}{_in_brackets(self.redact(text))}"
        elif path and is_misdirected(kind, status, text, has_form):
            kind, remedy = FailureKind.BLOCKED, for_address(self.address, self.remedy_of(path))
            message = f"{self.where(path)} answered {status}{_in_brackets(self.redact(text))}"
        elif text != message:
            message = f"{self.where(path)} answered {status} with a page: {text or 'it has no text'}"
            remedy = remedy or (PAGE if kind is FailureKind.UNAUTHORISED else "")
        if kind is FailureKind.UNAUTHORISED and not remedy and "/deployments/" in self.address:
            remedy = for_address(self.address)  # Azure wants the key in another header there
        return Failure(
            kind,
            self.line(message or f"the provider answered with status {status} and no explanation", remedy),
            status,
            self.redact(error_type)[:100],
            wait_s,
        )

    def _said(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Return what `read_error` does, without a gateway's words; the body's text where either fails at it, whose
        status says enough."""
        try:
            error_type, message, details = self.read_error(headers, body)
            return *without_gateway(error_type, message), details
        except Exception:
            return "", body[:_BODY_CHARS_READ].decode("utf-8", "replace"), ""

    def _asked_s(self, kind: FailureKind, headers: Mapping[str, str], body: bytes) -> float | None:
        """Return what `wait_s` does; the wait in the headers where it fails at the body."""
        try:
            return self.wait_s(kind, headers, body)
        except Exception:
            return self.retry_after_s(headers)

    def where(self, path: str) -> str:
        """Return the URL of a path, for messages; the address alone where the client has paths of its own."""
        if not self.address:
            return "the provider"
        return self.address.rstrip("/") + (path if path in self.row.appended else "")

    def remedy_of(self, path: str) -> str:
        """Return what to do where the server has no such path."""
        return ADDRESS

    def wait_s(self, kind: FailureKind, headers: Mapping[str, str], body: bytes) -> float | None:
        """Return the seconds that the provider asks us to wait after a failure of this kind, wherever it says so."""
        return self.retry_after_s(headers)

    def retry_after_s(self, headers: Mapping[str, str]) -> float | None:
        """Return the seconds that the provider asks us to wait, in the headers that HTTP has for it; None where it asks
        for none."""
        return retry_after_s(headers)

    def read_error(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Return name, message and details (as JSON text) of the error in a response; the body's text where it has
        none."""
        return error_in(body)

    def naming_model(self, failure: Failure, body: bytes) -> Failure:
        """Return a failure of a call, with the model of its request where the server says that it does not have it, and
        not which; and with what is wrong where the server says only which."""
        if MODEL not in failure.message:
            return failure
        try:
            name = msgspec.json.decode(body, type=_Named).model
        except msgspec.DecodeError:
            return failure
        said = failure.message.removesuffix(f": {MODEL}")
        if absent := absent_model(said, name):
            return msgspec.structs.replace(failure, message=self.line(absent, MODEL))
        if not name or name in failure.message:
            return failure
        return msgspec.structs.replace(failure, message=self.line(f"model {name}: {said}", MODEL))

    def of_stream_error(
        self, error: StreamError, status: int, headers: Mapping[str, str], path: str = ""
    ) -> Failure:  # fmt: skip
        """Return the failure that an `error` event inside a stream names. ``path``: as in `of_response`."""
        try:
            body = json_bytes({"error": error.error})
        except RecursionError:
            body = b"the stream holds an error that is nested too deeply"
        failure = self.of_response(status, headers, body, path)
        return msgspec.structs.replace(failure, answer_came=error.text_came)

    def names_error(self, body: bytes) -> bool:
        """Return whether a body names an error, or says that there is no such path: a server's "200, but"."""
        name, message, _ = error_in(body)
        return name != "" or says_no_path(message)

    def unreadable(self, why: str, status: int, answer_came: bool = False, remedy: str = "") -> Failure:
        """Return the failure of a response of good status that is no reply.

        ``answer_came``: it is an answer of the provider's, which may have been paid for (`UnreadableAnswer`), and not
        the page of a proxy or an empty body. The former is UNREADABLE, the latter TRANSIENT.
        """
        kind = FailureKind.UNREADABLE if answer_came else FailureKind.TRANSIENT
        return Failure(kind, self.line(why, remedy), status, answer_came=answer_came)

    def of_exception(self, error: BaseException) -> Failure:
        """Return the failure behind an exception of aiohttp's, or of one that wraps it.

        `sent` is False only where the request certainly never left: no connection, no tunnel, no handshake.
        """
        if isinstance(error, RequestUnprepared) and error.__cause__ is not None:
            return self._unprepared(error.__cause__)
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
        if isinstance(cause, aiohttp.ClientConnectorSSLError) and NO_TLS_SPOKEN.search(text):
            mine = cause.host == urlsplit(self.address).hostname or not self.address
            message = f"{cause.host}:{cause.port} answers without TLS"
            return Failure(FailureKind.BLOCKED, self.line(message, NO_TLS if mine else PROXY_NO_TLS), sent=False)
        if isinstance(cause, aiohttp.ClientConnectorError) and text.endswith("[None]"):
            text = f"{cause.host}:{cause.port} closes it during the handshake of TLS"
        if isinstance(cause, aiohttp.ClientConnectorError):  # refused, unknown host, proxy away, handshake failed
            return Failure(FailureKind.TRANSIENT, self.line(f"no connection: {text}"), sent=False)
        if isinstance(cause, TimeoutError):  # the attempt's own deadline, or silence on the line
            return Failure(FailureKind.TIMED_OUT, self.line(f"no whole answer in time ({text})"))
        return Failure(FailureKind.TRANSIENT, self.line(f"the connection was lost: {text}"))

    def before_replies(self, failure: Failure, error: BaseException) -> Failure:
        """Return the failure of a call at a server that has not replied to any yet, which may have another scheme."""
        cause = _root(error)
        closed = isinstance(cause, aiohttp.ServerDisconnectedError)
        other = isinstance(cause, aiohttp.ClientPayloadError) and NO_HTTP in str(cause)
        if not self.address.startswith("http:") or not (closed or other):
            return failure
        done = "closes the connection without an answer" if closed else "answers with what is no HTTP"
        text = f"{self.where('')} {done}"
        return msgspec.structs.replace(failure, message=self.line(text, CLOSED))

    def _unprepared(self, cause: BaseException) -> Failure:
        """Return the failure of a request that could not be made: nothing was sent, so nothing can have been paid."""
        text = f"{type(cause).__name__}: {cause}"
        if isinstance(cause, ImportError) or type(cause).__name__ == "MissingDependencyError":
            text = f"a package is not installed where calls are made: {text}"
            return Failure(FailureKind.BLOCKED, self.line(text), sent=False)
        if type(cause).__name__ in _UNREACHED or getattr(cause, "retryable", False) is True:
            return Failure(FailureKind.TRANSIENT, self.line(f"no credentials could be fetched: {text}"), sent=False)
        if isinstance(cause, ValueError | TypeError):
            return Failure(FailureKind.BLOCKED, self.line(f"no request can be made of this: {text}"), sent=False)
        text = f"no credentials that open it ({text[:200]}): {self.row.how_to_open}"
        return Failure(FailureKind.UNAUTHORISED, self.line(text), sent=False)

    def line(self, text: str, remedy: str = "") -> str:
        """Return one line, without secrets, of at most `MESSAGE_CHARS_MAX` characters. It ends in ``remedy``, a clause
        that says what to do."""
        message = printable(" ".join(self.redact(text[:_TEXT_CHARS_READ]).split()))
        end = f": {remedy}" if remedy else ""
        most = MESSAGE_CHARS_MAX - len(end)
        if len(message) > most:
            return message[: most - 1] + "…" + end
        return (message.rstrip(".") if end else message) + end


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
        description = _text(found.get("error_description"))  # OAuth (RFC 6749, 5.2)
        return "", f"{error}: {description}" if description else error, ""
    if not isinstance(error, dict):
        names = ("message", "Message", "detail")  # the last: FastAPI, in which vLLM and LiteLLM are written
        answer = next((found[name] for name in names if name in found), None) if isinstance(found, dict) else None
        name = _text(found.get("__type")).rpartition("#")[2] if isinstance(found, dict) else ""
        return name, answer if isinstance(answer, str) else body[:_BODY_CHARS_READ].decode("utf-8", "replace"), ""
    details = error.get("details")
    return (
        next(filter(None, (_text(error.get(name)) for name in ("type", "status", "code"))), ""),
        _text(error.get("message")),
        "" if details is None else json_bytes(details).decode(),
    )


def without_gateway(error_type: str, message: str) -> tuple[str, str]:
    """Return name and message of an error without what LiteLLM puts before and around its upstream's.

    Its prefix, as in ``litellm.BadRequestError: AnthropicException - …``, looks like the path of a field, behind which
    no words count (``policies.failures.error_vocabulary.FIELD_PATH``). The body of the upstream's error may follow as
    it came, or as Python writes bytes (https://github.com/BerriAI/litellm/issues/20575).
    """
    prefix = _GATEWAY.match(message)
    if prefix is None:
        return error_type, message
    said = message[prefix.end() :]
    body = said.removeprefix("b'").removeprefix('b"')
    if body.startswith("{"):
        try:
            upstream, _ = json.JSONDecoder().raw_decode(body)
        except (ValueError, RecursionError):
            return error_type, said
        name, text, _ = error_in(json_bytes(upstream))
        return (name if error_type in _NO_NAMES else error_type), text or said
    return error_type, said


def has_error(body: bytes) -> bool:
    """Return whether a body has the form of an API's error: a JSON object with an object ``error``."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return isinstance(found, dict) and isinstance(found.get("error"), dict)


def page_text(text: str) -> str:
    """Return the text of an HTML page without its markup; any other text as it is."""
    bare = text.lstrip("\ufeff \t\r\n")
    if not bare.startswith("<"):
        return text
    shown = _MARKUP.sub(" ", _HEAD.sub(_without_head, bare))
    return " ".join(html.unescape(shown if shown.strip() else _MARKUP.sub(" ", bare)).split())


def _without_head(found: re.Match[str]) -> str:
    return " " if found[1] is None else found[0]


# A head without an end is found up to the end of the text, and kept: else each of many would be looked through.
_HEAD: Final = re.compile(r"<head\b.*?(?:</head\s*>|(\Z))", re.DOTALL | re.IGNORECASE)
_MARKUP: Final = re.compile(
    r"<(script|style)\b.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)|<[^>]*(?:>|\Z)", re.DOTALL | re.IGNORECASE
)
_BRACKETS_CHARS_MAX: Final = 120


def _in_brackets(text: str) -> str:
    text = " ".join(text.split())
    if not text:
        return ""
    return f" ({text if len(text) <= _BRACKETS_CHARS_MAX else text[:_BRACKETS_CHARS_MAX] + '…'})"


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
