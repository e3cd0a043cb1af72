"""Wire form of an API: what ``HttpModel`` has to know of it to make a call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

import msgspec

from actors.providers.registry import Provider
from actors.providers.transport.body import TOKEN_BYTES
from actors.providers.transport.event_stream import EventStream
from actors.providers.transport.failures import FailureReader, Redactor
from cortex.values.chat_form.messages import NoCounterpart
from cortex.values.reply import Reply
from policies.failures.failure import Failure
from policies.limits.limit import RateLimits

Variant = Hashable
"""Choice between the spellings of one request, where servers of an API know different fields; each form documents its
type."""


class Untranslatable(ValueError):
    """Part of a request that the wire form has no counterpart for. One line that names it."""


NO_FORM: Final = (
    Untranslatable, NoCounterpart, msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError, AttributeError,
)  # fmt: skip
"""Errors of a request that the API has no form for."""


def _same(variant: Any) -> Variant:
    found: Variant = variant
    return found


def _no_other(variant: Any, outcome: Failure) -> Variant | None:
    return None


def _as_it_is(outcome: Failure, body: bytes) -> Reply | Failure:
    return outcome


class WireForm(msgspec.Struct, frozen=True, kw_only=True):
    """Wire form: requests from and replies to the canonical form (``cortex.values.canonical``), as pure functions."""

    path: str
    """Path of calls."""
    body: Callable[[bytes, bool, Any], bytes]
    """Function ``(canonical request, streamed, variant) -> body to send``. Raises ``Untranslatable``, and the errors of
    msgspec and of missing fields for a request that is none."""
    read: Callable[[bytes, str], Reply]
    """Function ``(body, charset of its content type) -> Reply``. Raises ``UnreadableResponse``, ``UnreadableAnswer``
    for an answer that may have been paid for, and ``StreamError`` for a body that names an error."""
    stream: Callable[[], EventStream]
    """New assembler of a streamed response."""
    failures: Callable[[Provider, Redactor, str], FailureReader]
    """Reader of failures, made from the provider's row, a redactor and the address."""
    reports_limits: Callable[[Mapping[str, str]], bool]
    """Function that says whether headers hold rate limits at all. Cheap: called for every response."""
    rate_limits: Callable[[Mapping[str, str]], RateLimits]
    """Function that reads the rate limits in headers."""
    other: Callable[[Any, Failure], Variant | None] = _no_other
    """Function ``(variant, failure) -> variant`` that names what to send where the server refused a field of the one
    that was sent; None: it refused no such field."""
    in_lines: Callable[[Any], Variant] = _same
    """Function ``variant -> variant`` that returns the spelling of requests in lines of batches, where a refusal costs
    the row: none is asked again in another spelling."""
    mark: bytes = b""
    """Beginning of the requests of this form, where their users wrote them in it."""
    given: WireForm | None = None
    """Form of requests that their users wrote in it (``cortex.values.chat_form.request``); None: the API takes none."""
    may_stream: Callable[[bytes], bool] | None = None
    """Function that says whether a streamed answer to a request loses nothing; None: to none it does."""
    bytes_a_token: int | None = TOKEN_BYTES
    """Most bytes of a reply for each token that it may have, beyond `REPLY_BYTES_LEAST`; None: its size does not depend
    on tokens, and `BODY_BYTES_MAX` bounds it."""
    settled: Callable[[Failure, bytes], Reply | Failure] = _as_it_is
    """Function ``(failure, canonical request) -> outcome`` of a call that failed in the end: a prompt that a filter
    declines is a reply, not a failure."""
