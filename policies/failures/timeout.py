"""Timeouts: how long an attempt may take, and how long it may be silent."""

from typing import Final

import msgspec

_NAMES: Final = (
    "connect_s",
    "first_byte_s",
    "between_bytes_s",
    "per_input_token_s",
    "per_output_token_s",
    "floor_s",
    "ceiling_s",
)


class TimeoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of timeouts, in seconds. Raises ValueError, in one line, for a value that makes no sense."""

    connect_s: float = 10.0
    """Seconds to open a connection."""
    first_byte_s: float = 60.0
    """Seconds from the request sent to the first byte of the answer, in addition to the time for reading the prompt."""
    between_bytes_s: float = 60.0
    """Longest silence inside a streamed answer, in seconds; the provider sends a ping every few seconds."""
    per_input_token_s: float = 0.0005
    """Seconds per input token: 2,000 tokens a second, of which the bound counts three or four times the true number."""
    per_output_token_s: float = 0.05
    """Seconds per output token: 20 tokens a second, about half the rate of the slowest hosted models."""
    floor_s: float = 30.0
    """Shortest timeout of an attempt, in seconds."""
    ceiling_s: float = 3_600.0
    """Longest timeout of an attempt, in seconds."""

    def __post_init__(self) -> None:
        for name in _NAMES:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.floor_s > self.ceiling_s:
            raise ValueError(f"floor_s ({self.floor_s}) is above ceiling_s ({self.ceiling_s})")


def attempt_timeout_s(policy: TimeoutPolicy, output_tokens_max: int, input_tokens_bound: int) -> float:
    """Return the seconds that one attempt may take, from its permit to its last byte.

    Grows with the requested output and the prompt, so that a long answer is not aborted for its length; never below
    `floor_s`, never above `ceiling_s`.
    """
    whole_s = (
        policy.connect_s
        + policy.first_byte_s
        + input_tokens_bound * policy.per_input_token_s
        + output_tokens_max * policy.per_output_token_s
    )
    if whole_s <= policy.floor_s:
        return policy.floor_s
    return whole_s if whole_s <= policy.ceiling_s else policy.ceiling_s


def silence_max_s(policy: TimeoutPolicy, input_tokens_bound: int, answer_begun: bool) -> float:
    """Return the seconds without a byte after which a streamed attempt counts as stalled.

    A running answer is not stalled, however long it takes; before its first byte the provider reads the prompt.
    """
    if answer_begun:
        return policy.between_bytes_s
    return policy.first_byte_s + input_tokens_bound * policy.per_input_token_s
