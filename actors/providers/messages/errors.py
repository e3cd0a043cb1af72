"""Failures of one attempt over the Messages API, at Anthropic or at any provider that serves it."""

from __future__ import annotations

from collections.abc import Mapping

from actors.providers.messages.vocabulary import vocabulary
from actors.providers.registry import Provider
from actors.providers.remedies import ADDRESS, BATCHES
from actors.providers.transport.failures import FailureReader, Redactor, error_in


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
