"""Message-batch orders, from a channel to any branch that can carry them out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from actors.branch import batch_executor
from actors.messaging.long_questions import ask_process
from actors.ports.runtime import PeerGone, PeerUnavailable, Runtime
from cortex.state.state import State
from policies.estimates.batching import pause_s
from policies.failures.failure import RULES, Failure, FailureKind


class BatchOrderRouter:
    """Router of one job's orders.

    ``state`` returns the job's state as it is now, and ``processes`` the incarnations of the branches that the channel
    knows, by name.
    """

    def __init__(
        self, job: str, runtime: Runtime, state: Callable[[], State], processes: Callable[[], dict[str, str]]
    ) -> None:
        self._job = job
        self._runtime = runtime
        self._state = state
        self._processes = processes
        self.without_credential: set[str] = set()
        """Branches that have answered that they have no credential for this job."""

    async def ask(self, place: int, order: batch_executor.Order) -> batch_executor.OrderReply | None:
        """Return the reply to an order that may be carried out twice without harm; None if no branch can answer now."""
        try:
            return await self.ask_once(place, order)
        except Exception:  # no branch is reachable, or one could not deliver the results: the order is repeated later
            return None

    async def ask_once(self, place: int, order: batch_executor.Order) -> batch_executor.OrderReply | None:
        """Return the reply of the first branch that has a credential, always the same branch while it lives; None if
        none has.

        Raises the error of the connection for a submission: the branch may or may not have submitted.
        """
        processes, epoch, blob = self._processes(), self._state().epoch, batch_executor.encode(order)
        for name, incarnation in processes.items():
            try:
                answer = await ask_process(
                    self._runtime, name, incarnation, "batches", self._job, epoch, place, blob, tuple(processes)
                )  # fmt: skip
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
        """Wait before an order is repeated: longer each time, and at least as long as the provider asks for."""
        wait_s = pause_s(self._state().terms.limits.batching, looks)
        if reply is not None and reply.failure is not None and reply.failure.retry_after_s is not None:
            wait_s = max(wait_s, reply.failure.retry_after_s)
        await asyncio.sleep(wait_s)


def passes(failure: Failure) -> bool:
    """Return whether an order that failed so may be repeated unchanged. It changes nothing, so there is no bound."""
    return RULES[failure.kind].again in ("after", "backoff", "policy") and failure.kind != FailureKind.LOST
