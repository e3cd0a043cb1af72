"""Access tokens of clouds: texts that open an account for about an hour, and when to fetch the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

AHEAD_S: Final = 300.0
"""Seconds before the end of a token at which the next one is fetched: those of azure-core
(``BearerTokenCredentialPolicy``); google-auth takes 225 (``REFRESH_THRESHOLD``)."""
AGAIN_S: Final = 30.0
"""Seconds until a token is fetched again that could not be, or that was the same."""


class AccessToken(NamedTuple):
    """Access token. It is a secret, which no representation shows."""

    text: str
    ends_at_s: float
    """Unix time at which it ends."""

    def __repr__(self) -> str:
        return f"AccessToken(ends_at_s={self.ends_at_s:.0f})"


TokenSource = Callable[[], AccessToken]
"""Function that fetches a token. It may take seconds, and raises the errors of the library that it uses."""


def due_s(token: AccessToken, now_s: float) -> float:
    """Return the Unix time from which the next token is to be fetched: ``AHEAD_S`` before the end; of a token that ends
    soon, when half of the rest has passed, and not before ``AGAIN_S``."""
    left_s = max(token.ends_at_s - now_s, 1.0)
    return now_s + max(left_s - min(AHEAD_S, left_s / 2), min(AGAIN_S, left_s))
