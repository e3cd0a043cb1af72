"""Result lines in the form of OpenAI's batch files.

The form: https://platform.openai.com/docs/guides/batch; ``BatchRequestOutput`` of ``vllm/entrypoints/openai/
run_batch.py``. A request that the server refused has ``error`` null and its status and error in ``response``
(https://github.com/openai/openai-openapi/issues/302); one that never was answered has ``response`` null and an
``error`` with a code and a message. Lines of both kinds stand in one file, as those of ``vllm run-batch`` do.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec

from cortex.values.chat_form.completion import completion_of
from policies.failures.failure import RULES, Failure, FailureKind

CODES: Final = {FailureKind.CANCELLED: "batch_cancelled", FailureKind.EXPIRED: "batch_expired"}
"""Codes of OpenAI's for requests that ended with their batch. The others are the error types of Message Batches."""

_encode: Final = msgspec.json.Encoder().encode


def _line(job: str, custom_id: str, response: bytes, error: bytes) -> bytes:
    """Return a line. Its id is made of the job's name and the custom id, so that a replay makes the same line."""
    name = blake2b(f"{job}/{custom_id}".encode(), digest_size=16).hexdigest().encode()
    return b'{"id":"batch_req_%b","custom_id":%b,"response":%b,"error":%b}' % (
        name, _encode(custom_id), response, error,
    )  # fmt: skip


def succeeded_line(job: str, custom_id: str, reply: bytes, at_s: float) -> bytes:
    """Return the line of a row with a canonical reply. ``request_id`` is the id of the completion; ``at_s`` is its time
    where it has none of its own."""
    completion, name = completion_of(reply, at_s)
    response = b'{"status_code":200,"request_id":%b,"body":%b}' % (_encode(name), completion)
    return _line(job, custom_id, response, b"null")


def failed_line(job: str, custom_id: str, failure: Failure) -> bytes:
    """Return the line of a row that failed for good, or was cancelled by the user."""
    code = CODES.get(failure.kind) or RULES[failure.kind].batch_error or "api_error"
    if failure.status >= 400:
        facts = {"message": failure.message, "type": failure.error_type or code, "param": None, "code": None}
        response = {"status_code": failure.status, "request_id": "", "body": {"error": facts}}
        return _line(job, custom_id, _encode(response), b"null")
    return _line(job, custom_id, b"null", _encode({"code": code, "message": failure.message}))
