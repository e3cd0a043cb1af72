"""Parser of one line of a message batch's results: a reply or a failure."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.providers.batches.result_lines import result_in
from actors.providers.messages.response import read_message
from actors.providers.messages.vocabulary import classify, vocabulary
from actors.providers.transport.body import UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

CANCELED: Final = "canceled"
"""Error type of a request that was not processed because its batch was cancelled at the provider."""

_OTHERS: Final = frozenset({"errored", "expired", CANCELED})
"""Types of results without a message."""
_EXPIRED: Final = "the provider did not process this request before its message batch expired"
_CANCELED: Final = "this request's batch was cancelled at the provider before it was worked off"


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""
    details: msgspec.Raw = msgspec.Raw(b"")


class _ErrorOf(msgspec.Struct):
    error: _Error = msgspec.field(default_factory=_Error)


class _Result(msgspec.Struct):
    type: str = ""
    message: msgspec.Raw = msgspec.Raw(b"")
    error: _ErrorOf | None = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


_LINE: Final = msgspec.json.Decoder(_Line)


def read_result(line: bytes) -> tuple[str, Reply | Failure]:
    """Return custom id and outcome of a line. Raises UnreadableLine.

    A request that errored, expired or was cancelled was not paid for
    (https://platform.claude.com/docs/en/build-with-claude/batch-processing). None of them has an HTTP status. One that
    errored gets the status that its error type has in a plain response, unless that means that it may be billed. The
    provider's words are returned unchanged, whatever they quote.
    """
    return result_in(line, _LINE, "custom_id", _outcome)


def _outcome(found: _Line) -> Reply | Failure:
    result = found.result
    if result.type == "succeeded" or (result.type not in _OTHERS and bytes(result.message)):
        try:
            return read_message(bytes(result.message))
        except (UnreadableResponse, StreamError) as error:
            return Failure(FailureKind.UNREADABLE, str(error), 200, answer_came=True)
    if result.type == "expired":
        return expired()
    if result.type == CANCELED:
        return canceled()
    reported = result.error.error if result.error is not None else _Error()
    kind = classify(0, reported.type, reported.message, bytes(reported.details).decode("utf-8", "replace"))
    text = reported.message or f"the provider gave no message but {result.type!r}"
    failure = Failure(kind, text, vocabulary().status_of(reported.type), reported.type[:100])
    if failure.may_be_billed:  # the API bills no row that errored (its pages on batch processing)
        failure = msgspec.structs.replace(failure, status=500)
    return failure


def expired() -> Failure:
    """Return the failure of a request that its batch did not come to in time."""
    return Failure(FailureKind.EXPIRED, _EXPIRED, 0, "expired", sent=False)


def canceled() -> Failure:
    """Return the failure of a request whose batch was cancelled before it was worked off."""
    return Failure(FailureKind.CANCELLED, _CANCELED, 0, CANCELED, sent=False)
