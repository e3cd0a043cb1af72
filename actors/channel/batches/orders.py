"""Orders about message batches, from a channel to whichever branch can carry them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.branch import batch_executor
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from cortex.state.state import State
from policies.estimates.batching import pause_s
from policies.failures.failure import RULES, Failure, FailureKind


class BatchOrderRouter:
    """``state`` gives K as it is now, ``names`` are the branches that the channel knows."""

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], names: Callable[[], tuple[str, ...]]
    ) -> None:
        self._job = job
        self._runtime = runtime
        self._state = state
        self._names = names
        self.without_credential: set[str] = set()
        """Branches that said that they have no key for this job."""

    async def ask(self, place: int, order: batch_executor.Order) -> batch_executor.OrderReply | None:
        """The answer to an order that does no harm when it is carried out twice; None where nobody answers now."""
        try:
            return await self.ask_once(place, order)
        except Exception:  # away, dead, or it could not bring the results: it is asked again later
            return None

    async def ask_once(self, place: int, order: batch_executor.Order) -> batch_executor.OrderReply | None:
        """The answer of the first branch that has the key: always the same one while it lives. None where none has.

        Raises what the way to the branch raises: then nobody knows what it did.
        """
        names, epoch, blob = self._names(), self._state().epoch, batch_executor.encode(order)
        for name in names:
            try:
                answer = await self._runtime.peer(name).ask("batches", self._job, epoch, place, blob, names)
            except (PeerUnavailable, PeerGone):
                if isinstance(order, batch_executor.SubmitOrder):
                    raise
                continue
            if answer:
                self.without_credential.discard(name)
                return batch_executor.decode_reply(answer)
            self.without_credential.add(name)
        return None

    async def pause(self, looks: int, reply: batch_executor.OrderReply | None) -> None:
        """Wait before the same is asked again: ever longer, and as long as the provider says."""
        wait_s = pause_s(self._state().terms.limits.batching, looks)
        if reply is not None and reply.failure is not None and reply.failure.retry_after_s is not None:
            wait_s = max(wait_s, reply.failure.retry_after_s)
        await asyncio.sleep(wait_s)


def passes(failure: Failure) -> bool:
    """Whether what failed may be asked again in a while, as it is. It changes nothing, so it may be asked for ever."""
    return RULES[failure.kind].again in ("after", "backoff", "policy") and failure.kind != FailureKind.LOST
