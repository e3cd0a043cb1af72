"""What the simulated provider counts, so that a test can ask it who was answered twice."""

from collections import Counter
from typing import Any

import msgspec

_ANSWERED = 1 << 20
"""One number holds both counts of an identity: times seen in its low bits, complete answers above them."""


MODELS_MAX = 1_000


class IdentityCounter:
    """Counts by identity, of bounded size: the older half is forgotten when the younger half is full.

    So the last ``size_max // 2`` identities are always known exactly.
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
        """How often this identity had been seen before; it now has been once more."""
        count = self._get(name)
        self._put(name, count + 1)
        return count % _ANSWERED

    def answer(self, name: int) -> int:
        """How often this identity had been answered in full before; it now has been once more."""
        count = self._get(name)
        self._put(name, count + _ANSWERED)
        return count // _ANSWERED

    def answers(self, name: int) -> int:
        """How often this identity has been answered in full."""
        return self._get(name) // _ANSWERED


class ProviderCounters(msgspec.Struct):
    """The provider's own count of its work. Every number counts since the start."""

    requests: int = 0
    """Messages that arrived, refused ones too; the requests of message batches among them."""
    worked: int = 0
    """Answers worked out: what a real provider bills."""
    complete_answers: int = 0
    """Answers whose last byte was handed to the connection (of a batch: worked out, for its results stay)."""
    distinct_bodies_answered: int = 0
    second_complete_answers: int = 0
    """Complete answers to a body that had one before: paid twice."""
    distinct_users_answered: int = 0
    second_complete_answers_by_user: int = 0
    """The same by ``metadata.user_id``, where a client puts its call's own name there."""
    largest_prompt_tokens: int = 0
    """The largest prompt that ever arrived, answered or not."""
    largest_request_tokens: int = 0
    """The same with its ``max_tokens``."""
    prompts_too_long: int = 0
    bad_requests: int = 0
    unauthorised: int = 0
    throttled_by_limit: int = 0
    refused_credit: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """Of the answers worked out."""
    wrong_answers: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    token_counts: int = 0
    batches: int = 0
    models: Counter[str] = msgspec.field(default_factory=Counter)
    """Messages that arrived whole, by the model that they name; at most ``MODELS_MAX`` names."""
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    skills: Counter[str] = msgspec.field(default_factory=Counter)

    def named(self, model: str) -> None:
        """A message names this model."""
        if model in self.models or len(self.models) < MODELS_MAX:
            self.models[model] += 1

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain
