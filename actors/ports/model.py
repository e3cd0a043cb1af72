"""What a branch needs of a model."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from cortex.values.reply import Reply
from policies.failures.failure import Failure

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""The W3C header of the attempt that is being made, for models that send it along; empty where it is not to travel."""


class Model(Protocol):
    """A place where calls can go: a provider, the local model, the simulated one."""

    endpoint: str
    """What it is, for the identity of a question: a rehearsal is never taken for the provider."""

    @property
    def rate(self) -> Any:
        """The rate limits that the last response told, or None."""

    async def call(
        self, body: bytes, *, output_tokens_max: int, timeout_s: float, progress: Callable[[int], None] | None = None
    ) -> Reply | Failure:
        """Make one request (JSON in the Messages form, without ``stream``). Raises nothing but ``CancelledError``."""

    async def count_tokens(self, body: bytes) -> int | None:
        """Tokens of the prompt as the provider counts them; None where it cannot be asked."""

    async def close(self) -> None:
        """Let go of connections."""
