"""The bound on a prompt, where it is sent: above M it never is."""

from __future__ import annotations

from actors.model_port import Model
from cortex.commands import Call
from policies.failure import Failure, FailureKind
from policies.tokens import UNBOUNDED, body_tokens_bound


class Bound:
    """The most tokens that a request can be. Samples of one question follow each other: the last one is known."""

    def __init__(self) -> None:
        self._body, self._tokens = b"", 0

    def of(self, body: bytes) -> int:
        """See ``policies.tokens.body_tokens_bound``."""
        if body != self._body:
            self._body, self._tokens = body, body_tokens_bound(body)
        return self._tokens


async def over_bound(model: Model, call: Call) -> Failure | None:
    """Why this call must not be sent, or None. Bytes bound its tokens; above M by that the provider's counter decides.

    For calls whose bytes alone prove nothing: who has many looks at ``Bound`` first, which costs less.
    """
    counted = await model.count_tokens(call.body)
    if counted is not None and counted <= call.prompt_tokens_max:
        return None
    bound = body_tokens_bound(call.body)
    if counted is None and bound >= UNBOUNDED:
        said = "it holds a document, a file, a link or a tool of the provider's, which that alone can size"
        return Failure(FailureKind.TOO_LARGE, f"{said}, and there is no counter to ask (count_tokens)", sent=False)
    size = f"{counted} tokens" if counted is not None else f"up to {bound} tokens, and no counter to ask,"
    said = f"the prompt has {size}; M is {call.prompt_tokens_max}"
    return Failure(FailureKind.TOO_LARGE, said, sent=False)
