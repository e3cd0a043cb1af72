"""Timeouts: how long an attempt may take, and how long it may be silent.

The timeout follows from the request. A server that queues without bound (vLLM, SGLang, llama.cpp) adds a wait that no
request tells, so a route has a *patience*: the factor by which measured durations lengthen its timeouts. It is 1 while
answers come within a third of their timeouts, and never below.
"""

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

PATIENCE_MARGIN: Final = 3.0
"""Multiple of the largest measured duration that an attempt may take. While the calls in flight double with each round
of answers (`policies.limits.probing`, slow start), a call waits behind twice as many as the latest answered one did;
half as much again is for its size."""
PATIENCE_ANSWERS: Final = 256
"""Answers after which a patience that is no longer needed has fallen to 1/e of its excess: it follows about the highest
of so many durations."""
QUEUE_S: Final = 300.0
"""Seconds to the first byte of an answer at a server of the user's own, which may queue calls: as many times
`TimeoutPolicy.first_byte_s` as a call takes that waits behind three others. Until an answer was measured nothing tells
how long such a server takes."""
TOOL_S: Final = 3_600.0
"""Seconds that a run of a tool may take which declares no time of its own."""
WAITS_MAX: Final = 2
"""Timeouts of one call that double the time of its next attempt."""


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

    @property
    def fixed(self) -> bool:
        """True if every attempt has the same timeout, as set by hand."""
        return self.floor_s == self.ceiling_s

    def __post_init__(self) -> None:
        for name in _NAMES:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.floor_s > self.ceiling_s:
            raise ValueError(f"floor_s ({self.floor_s}) is above ceiling_s ({self.ceiling_s})")


def attempt_timeout_s(
    policy: TimeoutPolicy, output_tokens_max: int, input_tokens_bound: int, patience: float = 1.0, waits: int = 0
) -> float:
    """Return the seconds that one attempt may take, from its permit to its last byte.

    Grows with the requested output and the prompt, so that a long answer is not aborted for its length; never below
    `floor_s`, never above `ceiling_s`. `patience` is the factor of the route (`learned_patience`). `waits` counts the
    attempts at the same call that were given up without an answer: each of the first `WAITS_MAX` doubles the time.
    """
    whole_s = (
        policy.connect_s
        + policy.first_byte_s
        + input_tokens_bound * policy.per_input_token_s
        + output_tokens_max * policy.per_output_token_s
    )
    if whole_s <= policy.floor_s:
        whole_s = policy.floor_s
    if patience > 1.0:
        whole_s *= patience
    if waits:
        whole_s *= 1 << min(waits, WAITS_MAX)
    return whole_s if whole_s <= policy.ceiling_s else policy.ceiling_s


def teaches_from_s(policy: TimeoutPolicy, patience: float) -> float:
    """Return the duration of an answer in seconds, up to which it changes no patience; below 0 if any may change it."""
    return policy.floor_s / PATIENCE_MARGIN if patience <= 1.0 else -1.0


def learned_patience(
    policy: TimeoutPolicy, patience: float, elapsed_s: float, output_tokens_max: int, input_tokens_bound: int
) -> float:
    """Return the patience of a route after an answer that took `elapsed_s`, time in the server's queue included.

    Durations are compared as shares of the timeouts that their requests would have without patience, so that long and
    short requests are comparable. The patience rises at once and falls slowly: it follows a high quantile.
    """
    needed = PATIENCE_MARGIN * elapsed_s / attempt_timeout_s(policy, output_tokens_max, input_tokens_bound)
    if needed < patience:
        needed = patience + (needed - patience) / PATIENCE_ANSWERS
    return max(needed, 1.0)


def silence_max_s(policy: TimeoutPolicy, input_tokens_bound: int, answer_begun: bool) -> float:
    """Return the seconds without a byte after which a streamed attempt counts as stalled.

    A running answer is not stalled, however long it takes; before its first byte the provider reads the prompt.
    """
    if answer_begun:
        return policy.between_bytes_s
    return policy.first_byte_s + input_tokens_bound * policy.per_input_token_s
