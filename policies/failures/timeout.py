"""How long may one attempt take, and how long may it be silent?"""

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
    """The settings, in seconds. Raises ValueError, one line, for a bound that makes no sense."""

    connect_s: float = 10.0
    """To open a connection."""
    first_byte_s: float = 60.0
    """From the request sent to the first byte of an answer, beyond the reading of the prompt."""
    between_bytes_s: float = 60.0
    """The longest silence inside a streamed answer; the provider sends a ping every few seconds."""
    per_input_token_s: float = 0.0005
    """2,000 prompt tokens a second, of which the bound counts three or four times the true number."""
    per_output_token_s: float = 0.05
    """20 tokens a second, about half of what the slowest hosted models write at."""
    floor_s: float = 30.0
    ceiling_s: float = 3_600.0

    def __post_init__(self) -> None:
        for name in _NAMES:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.floor_s > self.ceiling_s:
            raise ValueError(f"floor_s ({self.floor_s}) is above ceiling_s ({self.ceiling_s})")


def attempt_timeout_s(policy: TimeoutPolicy, output_tokens_max: int, input_tokens_bound: int) -> float:
    """Seconds that one attempt may take, from its permit to its last byte.

    Grows with what was asked for, so that a long answer is not killed for being long; never below
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
    """Seconds without a byte after which a streamed attempt is stalled.

    An answer that keeps coming is not stalled, however long it takes; before its first byte the prompt is
    read.
    """
    if answer_begun:
        return policy.between_bytes_s
    return policy.first_byte_s + input_tokens_bound * policy.per_input_token_s
