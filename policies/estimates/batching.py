"""Message batches: how calls are divided into batches, and how often a batch is polled.

A message batch is the provider's way of processing many requests in its own time, at half the price:
https://docs.claude.com/en/docs/build-with-claude/batch-processing.
"""

from typing import Final

import msgspec

REQUESTS_MAX: Final = 100_000
"""Requests that the provider accepts in one batch."""
BYTES_MAX: Final = 256_000_000
"""Bytes that the provider accepts in one batch. The provider says 256 MB; the smaller reading of a megabyte is safe."""
QUEUE_FULL: Final = "token_limit_exceeded"
"""Error type of a batch that did not begin because too many tokens of the account wait in batches. OpenAI's code:
"Enqueued token limit reached for … Limit: 2,000,000 enqueued tokens" (openai/openai-python#2084)."""
NOT_BEGUN: Final = "batch_failed"
"""Error type of a batch whose requests were refused as a whole, after it had been made."""
NEVER_BEGAN: Final = frozenset({QUEUE_FULL, NOT_BEGUN})
"""Error types of batches that were made and of which no request was begun: nothing is billed."""
NOT_THERE: Final = frozenset({404, 410})
"""HTTP statuses of a batch, or of results, that the provider does not find."""
KEPT_S: Final = 31 * 86_400.0
"""Seconds after its submission from which no provider has the results of a batch any more. Anthropic keeps them for 29
days from its making; OpenAI and Mistral keep files for 30, which may be made a day after the batch; Gemini for two."""
LOOKS_SHORT_MAX: Final = 5
"""Number of times that results with fewer lines than the batch has requests count as a truncated download."""


class BatchingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of message batches. Raises ValueError, in one line, for a value that makes no sense."""

    requests_max: int = 10_000
    """Requests in one submission."""
    bytes_max: int = 32_000_000
    """Bytes of one submission, which is held in memory until the provider has it."""
    gather_s: float = 1.0
    """Seconds that a submission which is not full waits for more calls after its latest call."""
    gather_max_s: float = 15.0
    """Seconds that a submission which is not full waits for more calls after its first call."""
    submit_timeout_s: float = 300.0
    """Seconds that a submission may take at most. A submission that has not begun by then is not begun."""
    settle_s: float = 60.0
    """Seconds after `submit_timeout_s` in which a new batch may still appear in the provider's list."""
    poll_s: float = 5.0
    """Seconds until a batch is polled for the first time."""
    poll_growth: float = 1.5
    """Factor by which each pause between two polls is longer than the one before."""
    poll_max_s: float = 60.0
    """Longest pause between two polls, in seconds."""

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


def fits(policy: BatchingPolicy, requests: int, size_bytes: int) -> bool:
    """Return True if a submission of this size is within both bounds. A single request always fits."""
    return requests <= 1 or (requests <= policy.requests_max and size_bytes <= policy.bytes_max)


def gather_until_s(policy: BatchingPolicy, first_s: float, last_s: float, more: bool) -> float:
    """Return the time at which a submission that is not full is sent, in seconds.

    ``first_s`` and ``last_s`` are the times of its first and latest call. ``more`` is True if another call may come
    before an answer returns; otherwise waiting gains nothing.
    """
    return min(last_s + policy.gather_s, first_s + policy.gather_max_s) if more else last_s


def pause_s(policy: BatchingPolicy, looks: int) -> float:
    """Return the seconds to wait before a batch is polled that was polled ``looks`` times already."""
    if looks > 64:
        return policy.poll_max_s  # the power exceeds any bound, and may be too large for a float
    return min(policy.poll_max_s, policy.poll_s * policy.poll_growth**looks)


def absent(settled_at_s: float, listed_at_s: float) -> bool:
    """Return True if a batch that is missing in the provider's list was never created.

    ``listed_at_s``: time at which the list was requested; ``settled_at_s``: time from which no creation can be pending.
    """
    return listed_at_s >= settled_at_s


def results_expired(status: int, submitted_at_s: float, now_s: float) -> bool:
    """Return True if results that cannot be read are certainly gone, for anyone.

    ``status``: HTTP status of the failed reading; both times in seconds since 1970. A provider that does not find a
    younger batch proves nothing: the key may be of another workspace, and Anthropic answered 404 for batches that it
    had a minute later (https://github.com/anthropics/anthropic-sdk-python/issues/1432).
    """
    return status in NOT_THERE and now_s - submitted_at_s >= KEPT_S


def enqueued_after_full(out: int, refused: int) -> int:
    """Return the most requests that may wait in batches, after a batch of ``refused`` requests found the queue full
    while ``out`` others of the job waited there.

    Those others were taken. Where there was none, half of the refused ones are tried next: the provider counts tokens,
    of which it names neither those of a request nor those of other jobs.
    """
    return max(out, (out + refused) // 2, 1)


def enqueued_after_end(most: int) -> int:
    """Return the most requests that may wait in batches, after a batch has ended: a quarter more, since the load of
    others that filled the queue may be gone."""
    return most + max(1, most // 4)
