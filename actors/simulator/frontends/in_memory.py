"""Simulated provider in process: a model without HTTP."""

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from actors.providers.messages.rate_limit_headers import rate_limits
from actors.providers.messages.vocabulary import classified
from actors.providers.remedies import MODEL, absent_model
from actors.simulator.api import wire
from actors.simulator.api.provider import RequestOutcome, SimulatedProvider
from actors.simulator.faults import ErrorResponse
from actors.simulator.frontends.in_memory_batches import SimulatedBatches
from actors.simulator.reasoning.skills import SKILLS, Skill
from actors.simulator.request import BadRequest
from actors.simulator.settings import SimulatorSettings
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind
from policies.limits.limit import RateLimits

_BROKEN: Final = {
    "reset": "the simulated connection was reset",
    "truncated": "the simulated connection was lost in the middle of the body",
    "invalid_json": "the simulated reply is no JSON",
    "wrong_type": "the simulated reply is a web page, not JSON",
}


class SimulatedModel:
    """``Model`` that answers within its process. Repeatable: equal settings and calls give equal replies.

    The endpoint holds a hash of all settings that decide the text of an answer (``SimulatorSettings.answers_hash``), so
    that replies of a rehearsal, or of another seed, are never reused as the provider's.
    """

    def __init__(
        self,
        settings: SimulatorSettings | None = None,
        skills: tuple[tuple[str, Skill], ...] = SKILLS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock``: seconds since 1970, for rate limits; tests pass their own."""
        self.settings = settings or SimulatorSettings()
        self.provider = SimulatedProvider(self.settings, skills)
        self.endpoint = f"sim:{self.settings.answers_hash()}"
        self.rate: RateLimits | None = None
        """Rate limits of the last answer; None without limits."""
        self._clock = clock
        self.batches = SimulatedBatches(self.provider, clock, failure_of)
        """Message batches, which exist as long as this process."""

    async def call(
        self,
        body: bytes,
        *,
        output_tokens_max: int,
        timeout_s: float,
        progress: Callable[[int], None] | None = None,
    ) -> Reply | Failure:
        """Answer one Messages request (JSON without "stream"). Raises nothing but ``CancelledError``.

        ``progress`` is called with the number of output tokens. Takes the latency of the settings; a latency over
        ``timeout_s``, or a hang, gives TIMED_OUT. ``output_tokens_max`` is the body's own ``max_tokens``.
        """
        provider = self.provider
        provider.began()
        try:
            now_s = self._clock()
            outcome = provider.decide(body, now_s)
            headers = provider.headers(now_s)
            if headers:
                self.rate = rate_limits(headers | {"date": formatdate(now_s, usegmt=True)})
            wait_s = self._wait_s(outcome)
            if not await self._waited(outcome, wait_s, timeout_s):
                return Failure(FailureKind.TIMED_OUT, f"no whole answer within {timeout_s:g} s")
            return self._outcome_of(outcome, progress)
        finally:
            provider.ended()

    async def _waited(self, outcome: RequestOutcome, wait_s: float, timeout_s: float) -> bool:
        """Take the time of an answer, in a slot or in the batch of a server that queues; return False if it is longer
        than allowed."""
        slots, batch = self.provider.slots, self.provider.batch
        if batch is not None and outcome.refusal is None:
            try:
                async with asyncio.timeout(timeout_s), batch.call(*outcome.work) as place:
                    await place.whole()
                    await asyncio.sleep(wait_s - outcome.latency_s)
            except TimeoutError:
                return False
            return True
        if slots is None:
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, timeout_s))
            return wait_s <= timeout_s
        try:
            async with asyncio.timeout(timeout_s), slots:
                await asyncio.sleep(wait_s)
        except TimeoutError:
            return False
        return True

    def _wait_s(self, outcome: RequestOutcome) -> float:
        form = outcome.fault.form if outcome.fault and outcome.refusal is None else ""
        if form == "hang":
            return max(self.settings.hang_s, outcome.latency_s)
        return outcome.latency_s + (self.settings.drip_s if form == "slow_drip" else 0.0)

    def _outcome_of(self, outcome: RequestOutcome, progress: Callable[[int], None] | None) -> Reply | Failure:
        if outcome.refusal is not None:
            return failure_of(outcome.refusal)
        assert outcome.ask is not None
        if outcome.fault is not None and outcome.fault.form == "hang":
            return Failure(FailureKind.TRANSIENT, "the simulated connection was closed after a long silence")
        if outcome.fault is not None and outcome.fault.form in _BROKEN:
            return Failure(FailureKind.TRANSIENT, _BROKEN[outcome.fault.form])
        answer = outcome.answer
        assert answer is not None
        if progress is not None:
            progress(answer.output_tokens)
        self.provider.delivered(outcome.ask)
        usage = Usage(*outcome.billed)
        return Reply(wire.encoded(outcome.message()), answer.stop_reason, outcome.ask.model, usage)

    async def count_tokens(self, body: bytes) -> int | None:
        """Return the tokens of a request's prompt, by the simulator's rule; None for an invalid request."""
        try:
            return self.provider.count_tokens(body)
        except BadRequest:
            return None

    async def close(self) -> None:
        """Release nothing."""


def failure_of(refusal: ErrorResponse) -> Failure:
    """Return the failure for an error response of the provider."""
    kind, remedy = classified(refusal.status, refusal.error_type, refusal.message, refusal.error_code)
    said = refusal.message.rstrip(".") if remedy else refusal.message
    if remedy == MODEL:
        said = absent_model(said, said.removeprefix("model: ")) or said  # the provider names the model of the request
    return Failure(
        kind=kind,
        message=f"{said}: {remedy}" if remedy else said,
        status=refusal.status,
        error_type=refusal.error_type,
        retry_after_s=None if refusal.retry_after_s is None else float(refusal.retry_after_s),
    )
