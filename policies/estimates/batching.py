"""How are calls cut into message batches, and how often is one looked at?

A message batch is the provider's own way of working off many requests in its own time, at half the price:
https://docs.claude.com/en/docs/build-with-claude/batch-processing.
"""

from typing import Final

import msgspec

REQUESTS_MAX: Final = 100_000
"""The provider takes no more in one batch."""
BYTES_MAX: Final = 256_000_000
"""Nor a larger one. The provider counts 256 MB; the smaller reading of a megabyte is safe."""
LOOKS_SHORT_MAX: Final = 5
"""Results that hold fewer lines than the batch has requests are taken for a download cut short this often."""


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Raises ValueError, one line, for a bound that makes no sense."""

    requests_max: int = 10_000
    """Requests in one submission."""
    bytes_max: int = 32_000_000
    """Bytes of one submission: it is held in memory until the provider has it."""
    gather_s: float = 1.0
    """How long a submission that is not full waits for more, after the last call that joined it."""
    gather_max_s: float = 15.0
    """And after the first."""
    submit_timeout_s: float = 300.0
    """The longest that handing one over may take. One that has not begun by then is not begun at all."""
    settle_s: float = 60.0
    """How long after that a batch may take to be seen in the provider's list."""
    poll_s: float = 5.0
    """How soon a batch is looked at for the first time, and after that ever later,"""
    poll_growth: float = 1.5
    poll_max_s: float = 60.0
    """up to this."""

    def __post_init__(self) -> None:
        for name, most in (("requests_max", REQUESTS_MAX), ("bytes_max", BYTES_MAX)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} of a message batch must be 1 to {most:,}, not {getattr(self, name)}")
        for name in ("gather_s", "gather_max_s", "settle_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        for name in ("submit_timeout_s", "poll_s", "poll_max_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 1 <= self.poll_growth < float("inf"):
            raise ValueError(f"poll_growth must be 1 or more, not {self.poll_growth}")


def fits(policy: Batching, requests: int, size_bytes: int) -> bool:
    """Whether a submission of so many requests and bytes is within both bounds. A lone request always goes."""
    return requests <= 1 or (requests <= policy.requests_max and size_bytes <= policy.bytes_max)


def gather_until_s(policy: Batching, first_s: float, last_s: float, more: bool) -> float:
    """When a submission that is not full goes as it is: its first and last call came then.

    ``more``: whether another call may come before something returns; where none can, waiting gains nothing.
    """
    return min(last_s + policy.gather_s, first_s + policy.gather_max_s) if more else last_s


def pause_s(policy: Batching, looks: int) -> float:
    """Seconds to wait before a batch is looked at that was looked at so often already."""
    if looks > 64:
        return policy.poll_max_s  # the power is far beyond any bound, and may be too large for a number
    return min(policy.poll_max_s, policy.poll_s * policy.poll_growth**looks)


def absent(settled_at_s: float, listed_at_s: float) -> bool:
    """Whether a batch that the provider's list did not show was never made.

    ``listed_at_s``: when that list was asked for; ``settled_at_s``: from when on nothing can still be on its way.
    """
    return listed_at_s >= settled_at_s
