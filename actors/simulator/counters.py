"""Counters of the simulated provider, by which a test can find answers that were paid twice."""

from collections import Counter
from typing import Any

import msgspec

_ANSWERED = 1 << 20
"""Unit of complete answers in a combined count; the bits below count the times seen."""


MODELS_MAX = 1_000


class IdentityCounter:
    """Counts by identity, of bounded size: the older half is dropped when the younger half is full.

    The last ``size_max // 2`` identities are always known exactly.
    """

    __slots__ = ("_half", "_old", "_young", "forgotten")

    def __init__(self, size_max: int) -> None:
        self._half = max(1, size_max // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self.forgotten = 0

    def _put(self, name: int, count: int) -> None:
        if name not in self._young and len(self._young) >= self._half:
            self.forgotten += sum(1 for each in self._old if each not in self._young)
            self._old, self._young = self._young, {}
        self._young[name] = count

    def _get(self, name: int) -> int:
        count = self._young.get(name)
        return self._old.get(name, 0) if count is None else count

    def see(self, name: int) -> int:
        """Count a sight of this identity and return the number of earlier ones."""
        count = self._get(name)
        self._put(name, count + 1)
        return count % _ANSWERED

    def answer(self, name: int) -> int:
        """Count a complete answer to this identity and return the number of earlier ones."""
        count = self._get(name)
        self._put(name, count + _ANSWERED)
        return count // _ANSWERED

    def answers(self, name: int) -> int:
        """Return the number of complete answers to this identity."""
        return self._get(name) // _ANSWERED


class ProviderCounters(msgspec.Struct):
    """Counters of the provider's work since its start."""

    requests: int = 0
    """Messages received, refused ones and requests of message batches included."""
    worked: int = 0
    """Answers computed; a real provider bills these."""
    complete_answers: int = 0
    """Answers whose last byte was handed to the connection (in a batch: computed, since its results stay)."""
    distinct_bodies_answered: int = 0
    second_complete_answers: int = 0
    """Complete answers to a body that was answered before: paid twice."""
    distinct_users_answered: int = 0
    second_complete_answers_by_user: int = 0
    """Complete answers to a ``metadata.user_id`` that was answered before; a client may put the id of its call there.
    """
    largest_prompt_tokens: int = 0
    """Largest prompt received, answered or not, in tokens."""
    largest_request_tokens: int = 0
    """Largest prompt with its ``max_tokens``, in tokens."""
    prompts_too_long: int = 0
    bad_requests: int = 0
    unauthorised: int = 0
    throttled_by_limit: int = 0
    refused_credit: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """``input_tokens`` and ``output_tokens`` are those of the computed answers."""
    wrong_answers: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    token_counts: int = 0
    batches: int = 0
    models: Counter[str] = msgspec.field(default_factory=Counter)
    """Model name -> complete messages received; at most ``MODELS_MAX`` names."""
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    skills: Counter[str] = msgspec.field(default_factory=Counter)

    def named(self, model: str) -> None:
        """Count a message that names this model."""
        if model in self.models or len(self.models) < MODELS_MAX:
            self.models[model] += 1

    def to_json(self) -> dict[str, Any]:
        """Return the counters as plain values, for JSON."""
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value
