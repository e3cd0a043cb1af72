"""Interface of a model: the seam between the core and the providers.

A request goes in and a reply comes out in the canonical form (``cortex.values.canonical``), whatever the provider's
wire form is: its client translates between the two. ``actors.providers.registry`` names the client of each provider.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""W3C header of the current attempt, for clients that send it along; empty: it must not be sent."""


class Model(Protocol):
    """Target of calls: the client of a provider, or a model object of the user's.

    A client may have more: ``batches`` (``actors.ports.message_batches``), for which its row says ``batches=True``;
    ``prepare()``, a coroutine that gets ready for the first call; ``prepared()``, which returns requests prepared by an
    SDK for other processes; ``address()``, a coroutine that returns its URL, where the row has none; ``counts_tokens``,
    False where ``count_tokens`` returns None in any case; ``refusal(body)``, the failure of a request that it would
    not send, or None; ``at_server()``, which returns the requests that the server
    works on and those that wait there, as it told since the last call of this, or None.
    """

    endpoint: str
    """Name of the target, part of the identity of a question: replies of one are never taken for another's."""

    @property
    def rate(self) -> Any:
        """Rate limits in the last response that had any (``policies.limits.limit.RateLimits``), or None."""

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Make one attempt and return its outcome. Raises nothing but ``CancelledError``.

        ``body`` is a canonical request. ``output_tokens_max`` is its ``max_tokens``. ``timeout_s`` bounds the attempt,
        in seconds. ``progress`` is called with the bytes of the response so far, each time some come.
        """

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the tokens of a canonical request's prompt by the provider's count; None where it has no counter."""

    async def close(self) -> None:
        """Close the connections; calls under way end as TRANSIENT."""


def shallow(reply: Reply) -> Reply | Failure:
    """Return a reply, or the failure of one that is nested too deeply for every reader of K to read it alike."""
    if not too_deep(reply.body):
        return reply
    return Failure(FailureKind.UNREADABLE, f"the answer is {deep_words()}, as no message is", 200, answer_came=True)
