"""Failures of one attempt over the Messages API, at Anthropic or at any provider that serves it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.providers.messages.vocabulary import vocabulary
from actors.providers.registry import Provider
from actors.providers.remedies import ADDRESS, BATCHES
from actors.providers.transport.failures import FailureReader, Redactor, error_in
from policies.failures.failure import Failure, FailureKind

_UNREACHED: Final = frozenset(
    {"TransportError", "EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError"}
)
"""Errors of google-auth and botocore, which make connections of their own: the server that gives out tokens was not
reached."""


class RequestUnprepared(Exception):
    """The SDK's client could not make a request: no credentials, or none that can be renewed. Its cause says why."""


class MessagesFailures(FailureReader):
    """Reader of failures of the Messages client."""

    def __init__(self, row: Provider, redact: Redactor, address: str = "") -> None:
        super().__init__(row, vocabulary(), redact, address)

    def read_error(self, headers: Mapping[str, str], body: bytes) -> tuple[str, str, str]:
        """Return name, message and details of an error; AWS sends the name as a header."""
        error_type, message, details = error_in(body)
        return error_type or headers.get("x-amzn-errortype", "").partition(":")[0], message, details

    def remedy_of(self, path: str) -> str:
        """Return what to do where the server has no such path."""
        if self.row.place and not self.address:
            return f"see that {' and '.join(self.row.place)} are right"
        return BATCHES if path.endswith("/batches") else ADDRESS

    def of_exception(self, error: BaseException) -> Failure:
        """Return the failure behind an exception of aiohttp's or of the SDK's."""
        if isinstance(error, RequestUnprepared) and error.__cause__ is not None:
            return self._unprepared(error.__cause__)
        return super().of_exception(error)

    def _unprepared(self, cause: BaseException) -> Failure:
        """Return the failure of a request that the SDK's client could not make: nothing was sent, so nothing can have
        been paid."""
        text = f"{type(cause).__name__}: {cause}"
        if isinstance(cause, ImportError) or type(cause).__name__ == "MissingDependencyError":
            text = f"a package is not installed where calls are made: {text}"
            return Failure(FailureKind.BLOCKED, self.line(text), sent=False)
        if type(cause).__name__ in _UNREACHED or getattr(cause, "retryable", False) is True:
            return Failure(FailureKind.TRANSIENT, self.line(f"no credentials could be fetched: {text}"), sent=False)
        if isinstance(cause, ValueError | TypeError):
            return Failure(FailureKind.BLOCKED, self.line(f"the SDK makes no request of this: {text}"), sent=False)
        text = f"no credentials that open it ({text[:200]}): {self.row.how_to_open}"
        return Failure(FailureKind.UNAUTHORISED, self.line(text), sent=False)
