"""Parser of one line of the results of a batch of OpenAI, or of Mistral: a reply or a failure.

The form: https://platform.openai.com/docs/guides/batch; a request that was refused has its status and error in
``response`` (https://github.com/openai/openai-openapi/issues/302), one that was not worked off an ``error``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from actors.providers.batches.result_lines import result_in
from actors.providers.chat_completions.response import read_completion, refusal, with_whole
from actors.providers.messages.batch_results import canceled, expired
from actors.providers.transport.body import UnreadableAnswer, UnreadableResponse
from actors.providers.transport.event_stream import StreamError
from actors.providers.transport.failures import FailureReader
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind

LINE_MARK: Final = "c"
"""Beginning of the custom id in a line."""
KEPT_MARK: Final = "k"
"""The same, of a request that its user wrote in the form of the API: its reply keeps the answer as it came."""

_EXPIRED: Final = "batch_expired"
_CANCELLED: Final = frozenset({"batch_cancelled", "batch_canceled"})


class _Response(msgspec.Struct):
    status_code: int = 0
    body: msgspec.Raw = msgspec.Raw(b"")


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: Any = None
    """Object with code and message; a text or anything else at servers that follow OpenAI."""


_LINE: Final = msgspec.json.Decoder(_Line)


def read_chat_result(line: bytes, failures: FailureReader) -> tuple[str, Reply | Failure]:
    """Return custom id and outcome of a line with an answer of chat completions, as ``read_line`` does."""
    return read_line(line, failures, read_chat)


def read_chat(body: bytes, kept: bool) -> Reply:
    """Return the reply in a completion; ``kept``: with the completion."""
    reply = read_completion(body)
    return with_whole(reply, body) if kept else reply


def read_line(
    line: bytes, failures: FailureReader, read: Callable[[bytes, bool], Reply]
) -> tuple[str, Reply | Failure]:
    """Return custom id and outcome of a line. ``read``: as ``LineForm.read``. Raises UnreadableLine.

    A request that failed or was not worked off was not paid for.
    """
    return result_in(line, _LINE, "custom_id", lambda found: _outcome(found, failures, read), len(LINE_MARK))


def _outcome(found: _Line, failures: FailureReader, read: Callable[[bytes, bool], Reply]) -> Reply | Failure:
    kept, response = found.custom_id.startswith(KEPT_MARK), found.response
    if response is None:
        code, message = _named(found.error)
        if code == _EXPIRED:
            return expired()
        if code in _CANCELLED:
            return canceled()
        text = message or f"the provider gave no message but {code or None!r}"
        return Failure(FailureKind.TRANSIENT, failures.line(text), 500, failures.redact(code)[:100])
    body = bytes(response.body)
    if not 200 <= response.status_code < 300:
        failure = failures.of_response(response.status_code, {}, body)
        if failure.kind is FailureKind.REFUSED:
            return refusal("", failure.message, Usage())
        # the API bills no row that failed
        return msgspec.structs.replace(failure, status=500) if failure.may_be_billed else failure
    try:
        return read(body, kept)
    except StreamError as error:
        return failures.of_stream_error(error, response.status_code, {})
    except UnreadableResponse as error:
        return failures.unreadable(str(error), 200, isinstance(error, UnreadableAnswer))


def _named(error: Any) -> tuple[str, str]:
    """Return code and message of the error of a line, whatever form it has; empty: it has none."""
    if isinstance(error, dict):
        code, message = error.get("code"), error.get("message")
        return "" if code is None else str(code), message if isinstance(message, str) else ""
    return "", error if isinstance(error, str) else ""
