"""Decisions of the simulated provider: the outcome of a request, its time, and its answer.

Pure but for counters: time and random draws are arguments, and no function waits. The front ends (HTTP, in process)
call ``decide``, take a slot if there are ``slots`` or a place in the ``batch`` if there is one, wait as told, deliver,
and report complete deliveries.
"""

import math
from typing import Any

import msgspec

from actors.simulator import random_draws
from actors.simulator.api import wire
from actors.simulator.api.reasoner import Reasoner, SimulatedAnswer
from actors.simulator.batch_queue import BatchQueue
from actors.simulator.counters import IdentityCounter, ProviderCounters
from actors.simulator.faults import CREDIT, ErrorResponse, SimulatedFault, drawn, filled
from actors.simulator.reasoning.skills import SKILLS, Skill
from actors.simulator.request import BadRequest, ParsedRequest, read
from actors.simulator.settings import BATCH, QUEUE, SimulatorSettings, changed
from actors.simulator.slots import Slots
from actors.simulator.token_buckets import AccountBuckets, AccountCredit, next_month

NUSD_PER_USD = 1_000_000_000


class RequestOutcome(msgspec.Struct, gc=False):
    """Outcome of one request."""

    ask: ParsedRequest | None
    refusal: ErrorResponse | None
    answer: SimulatedAnswer | None
    fault: SimulatedFault | None
    """Fault of the delivery, if any; a fault of form ``status`` is given as ``refusal``."""
    latency_s: float
    """Seconds from the request to the whole answer."""
    first_s: float
    """Seconds from the request to the first piece of a stream."""
    message_id: str
    cut_at: float
    """End of a truncated body, as a share of its bytes."""
    billed: tuple[int, int] = (0, 0)
    """Input and output tokens that the usage names."""

    @property
    def work(self) -> tuple[int, int, float]:
        """Tokens of the prompt and of the answer, and seconds that the answer takes if no other is written."""
        prompt = self.ask.input_tokens if self.ask is not None else 0
        return prompt, self.answer.output_tokens if self.answer is not None else 0, self.latency_s

    def message(self, tier: str = "standard") -> dict[str, Any]:
        """Return the whole message of an outcome with an answer."""
        assert self.answer is not None and self.ask is not None
        return wire.message(self.answer, self.ask, self.message_id, self.billed, tier)


class SimulatedProvider:
    """Provider that decides and counts. Use from one thread."""

    def __init__(
        self, settings: SimulatorSettings | None = None, skills: tuple[tuple[str, Skill], ...] = SKILLS
    ) -> None:
        """``skills``: skills of the reasoner. Default settings answer at once, without faults or limits."""
        self.settings = settings or SimulatorSettings()
        self.tally = ProviderCounters()
        self._skills = skills
        self._bodies = IdentityCounter(self.settings.remembered_max)
        self._texts = IdentityCounter(self.settings.remembered_max)
        self._users = IdentityCounter(self.settings.remembered_max)
        self._last: tuple[bytes, ParsedRequest] | None = None
        """Last request read; samples of one question follow each other."""
        self._reasoner = self._new_reasoner()
        self._buckets = self._new_buckets()
        self._credit = self._new_credit()
        self.slots = self._new_slots()
        """Slots of a server that queues; None: it works on all requests at once, or has a batch."""
        self.batch = self._new_batch()
        """Continuous batch of a server that queues; None: it has none."""

    def _new_reasoner(self) -> Reasoner:
        return Reasoner(self.settings.seed, self.settings.error, self._skills)

    def _new_buckets(self) -> AccountBuckets:
        return AccountBuckets(self.settings)

    def _new_credit(self) -> AccountCredit:
        usd = self.settings.credit_usd
        return AccountCredit(self.settings.credit_calls, None if usd is None else round(usd * NUSD_PER_USD))

    def _new_slots(self) -> Slots | None:
        return None if self.settings.slots is None or self._has_batch else Slots(self.settings.slots)

    def _new_batch(self) -> BatchQueue | None:
        return BatchQueue(self.settings) if self._has_batch else None

    @property
    def _has_batch(self) -> bool:
        return any(getattr(self.settings, name) is not None for name in BATCH)

    def change(self, changes: dict[str, Any]) -> SimulatorSettings:
        """Change settings from now on. Named limits start full; named credit is the amount left.

        Raises ``SettingsError`` and changes nothing if a value is invalid.
        """
        self.settings = changed(self.settings, changes)
        if changes.keys() & {"seed", "error"}:
            self._reasoner = self._new_reasoner()
        if changes.keys() & {"rpm", "itpm", "otpm", "tpm", "burst_s", "limits_told"}:
            self._buckets = self._new_buckets()
        if changes.keys() & {"credit_calls", "credit_usd"}:
            self._credit = self._new_credit()
        if changes.keys() & {*QUEUE, "latency_ms_per_output_token"}:
            # Requests that wait or are worked on keep the old ones.
            self.slots, self.batch = self._new_slots(), self._new_batch()
        return self.settings

    # ------------------------------------------------------------------------------------- one request

    def decide(self, body: bytes, now_s: float, batched: bool = False) -> RequestOutcome:
        """Return the outcome of a request. ``now_s``: seconds since 1970. ``batched``: within a message batch, where
        neither limits nor faults of the connection apply."""
        tally, settings = self.tally, self.settings
        tally.requests += 1
        try:
            ask = self._read(body)
        except BadRequest as error:
            tally.bad_requests += 1
            return _refused(None, ErrorResponse(400, "invalid_request_error", str(error)))
        tally.named(ask.model)
        if ask.input_tokens > tally.largest_prompt_tokens:
            tally.largest_prompt_tokens = ask.input_tokens
        if ask.input_tokens + ask.max_tokens > tally.largest_request_tokens:
            tally.largest_request_tokens = ask.input_tokens + ask.max_tokens
        seen = self._bodies.see(ask.body_id)
        refusal = self._refusal(ask, now_s, batched)
        if refusal is not None:
            return _refused(ask, refusal)
        seed, name = settings.seed, ask.body_id
        fault = None
        if settings.faults:
            fault = drawn(settings.faults, random_draws.draw(seed, name, seen, random_draws.FAULT))
        if fault is not None and batched and fault.form not in ("status", "message"):
            fault = None  # a batch has no connection to break
        if fault is not None:
            tally.faults[fault.name] += 1
        first_s = 0.0
        if settings.latency_ms > 0 and not batched:
            one = random_draws.draw(seed, name, seen, random_draws.LATENCY)
            two = random_draws.draw(seed, name, seen, random_draws.LATENCY_AGAIN)
            first_s = random_draws.lognormal(settings.latency_ms / 1000, settings.latency_spread, one, two)
        if fault is not None and fault.refusal is not None and (fault.form == "status" or not ask.stream):
            wait_s = settings.throttled_retry_after_s if fault.name == "throttled" else None
            refusal = filled(fault.refusal, ask.model, next_month(now_s), wait_s)
            return _refused(ask, refusal, first_s, fault)
        return self._worked_out(ask, seen, first_s, fault)

    def _read(self, body: bytes) -> ParsedRequest:
        """Parse the request. Raises ``BadRequest``."""
        last = self._last
        if last is None or last[0] != body:
            last = self._last = (body, read(body))
        return last[1]

    def _refusal(self, ask: ParsedRequest, now_s: float, batched: bool) -> ErrorResponse | None:
        """Return the refusal by credit, model name, context window or rate limits; None if accepted."""
        settings, tally = self.settings, self.tally
        if settings.models and ask.model not in settings.models:
            return ErrorResponse(404, "not_found_error", f"model: {ask.model}")
        window = settings.context_window
        if ask.input_tokens + ask.max_tokens > window and not ask.dimensions:
            tally.prompts_too_long += 1
            return ErrorResponse(400, "invalid_request_error", _too_long(ask, window))
        if self._credit.refused():
            tally.refused_credit += 1
            return CREDIT
        limited = None if batched else self._buckets.take(ask.input_tokens, now_s, ask.max_tokens)
        if limited is not None:
            tally.throttled_by_limit += 1
        return limited

    def _worked_out(
        self, ask: ParsedRequest, seen: int, first_s: float, fault: SimulatedFault | None
    ) -> RequestOutcome:
        """Compute and charge the answer. A connection reset before the work costs nothing."""
        seed, tally = self.settings.seed, self.tally
        if fault is not None and not fault.worked:
            return RequestOutcome(ask, None, None, fault, first_s, first_s, "", 0.0)
        answer = self._answer(ask)
        if fault is not None and fault.form == "message":
            reason = "refusal" if fault.name == "refusal" else "end_turn"
            answer = SimulatedAnswer("", 1, reason, None, answer.skill, answer.erred)
        billed = self._billed(ask.input_tokens, answer.output_tokens)
        tally.worked += 1
        tally.input_tokens += ask.input_tokens
        tally.output_tokens += answer.output_tokens
        tally.wrong_answers += answer.erred
        tally.skills[answer.skill] += 1
        self._buckets.made(answer.output_tokens)
        self._credit.spend(0 if self._credit.nusd is None else self._price_nusd(*billed))
        return RequestOutcome(
            ask=ask,
            refusal=None,
            answer=answer,
            fault=fault,
            latency_s=first_s + self.settings.latency_ms_per_output_token / 1000 * answer.output_tokens,
            first_s=first_s,
            message_id=random_draws.name("msg_sim", seed, ask.body_id, seen),
            cut_at=0.0 if fault is None else 0.1 + 0.8 * random_draws.draw(seed, ask.body_id, seen, random_draws.CUT),
            billed=billed,
        )

    def _billed(self, input_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Return the tokens that the usage names: the true ones, unless the settings say otherwise."""
        times, more = self.settings.billed_times, self.settings.billed_more
        if times == 1.0 and not more:
            return input_tokens, output_tokens
        return math.ceil(input_tokens * times) + more, math.ceil(output_tokens * times)

    def _answer(self, ask: ParsedRequest) -> SimulatedAnswer:
        """Return the answer, with the thinking before it."""
        if ask.dimensions:
            return SimulatedAnswer("", 0, "end_turn", None, "embeds", False)
        thinking = min(self.settings.thinking_tokens, ask.max_tokens) if ask.thinks else 0
        seen = self._texts.see(ask.text_id)
        if not thinking:
            return self._reasoner.answer(ask, seen)
        if thinking == ask.max_tokens:
            return SimulatedAnswer("", thinking, "max_tokens", None, "", False, thinking_tokens=thinking)
        answer = self._reasoner.answer(msgspec.structs.replace(ask, max_tokens=ask.max_tokens - thinking), seen)
        tokens = answer.output_tokens + thinking
        return msgspec.structs.replace(answer, output_tokens=tokens, thinking_tokens=thinking)

    def _price_nusd(self, input_tokens: int, output_tokens: int) -> int:
        settings = self.settings
        usd_by_million = input_tokens * settings.usd_per_mtok_input + output_tokens * settings.usd_per_mtok_output
        return round(usd_by_million * NUSD_PER_USD / 1_000_000)

    def headers(self, now_s: float) -> dict[str, str]:
        """Return the present rate-limit headers; empty without limits."""
        return self._buckets.headers(now_s)

    def chat_headers(self, now_s: float) -> dict[str, str]:
        """Return the present rate-limit headers of chat completions; empty without limits."""
        return self._buckets.chat_headers(now_s)

    @property
    def out_of_credit(self) -> bool:
        """True if the account has no credit left."""
        return self._credit.refused()

    def count_tokens(self, body: bytes) -> int:
        """Return the tokens of a request's prompt. Raises ``BadRequest``."""
        self.tally.token_counts += 1
        return read(body, counting=True).input_tokens

    # ------------------------------------------------------------------------------------- what was done

    def began(self) -> None:
        """Count a request that a front end has taken and holds for a while."""
        self.tally.in_flight += 1
        self.tally.in_flight_max = max(self.tally.in_flight_max, self.tally.in_flight)

    def ended(self) -> None:
        """Count the end of a request, whatever its outcome."""
        self.tally.in_flight -= 1

    def delivered(self, ask: ParsedRequest) -> None:
        """Count an answer that was delivered completely."""
        tally = self.tally
        tally.complete_answers += 1
        if self._bodies.answer(ask.body_id):
            tally.second_complete_answers += 1
        else:
            tally.distinct_bodies_answered += 1
        if ask.user_id is not None:
            if self._users.answer(_user(ask.user_id)):
                tally.second_complete_answers_by_user += 1
            else:
                tally.distinct_users_answered += 1

    def answers_to_user(self, user_id: str) -> int:
        """Return the number of complete answers to requests with this ``metadata.user_id``."""
        return self._users.answers(_user(user_id))

    def stats(self) -> dict[str, Any]:
        """Return all counters as plain values."""
        return self.tally.to_json() | {
            "identities_forgotten": self._bodies.forgotten,
            "credit_calls_left": self._credit.calls,
            "credit_usd_left": None if self._credit.nusd is None else self._credit.nusd / NUSD_PER_USD,
        }


def _user(user_id: str) -> int:
    return random_draws.identity(user_id.encode("utf-8", "replace"))


def _refused(
    ask: ParsedRequest | None, refusal: ErrorResponse, latency_s: float = 0.0, fault: SimulatedFault | None = None
) -> RequestOutcome:
    return RequestOutcome(ask, refusal, None, fault, latency_s, latency_s, "", 0.0)


def _too_long(ask: ParsedRequest, window: int) -> str:
    if ask.input_tokens > window:
        return f"prompt is too long: {ask.input_tokens} tokens > {window} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {ask.input_tokens} + {ask.max_tokens} > {window}, "
        "decrease input length or `max_tokens` and try again"
    )
