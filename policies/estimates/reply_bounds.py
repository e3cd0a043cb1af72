"""Bounds on reply tokens with which a call is asked again after its reply was cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

LONGER_TIMES: Final = 8
"""Largest bound, as a multiple of the call's own bound: a call that is cut each time is asked four times, for at most
15 times the output tokens of its first call."""
LONGER_TOKENS_MAX: Final = 32_768
"""Largest bound in tokens. A call whose own bound is larger is not asked again."""


def raised(own: int, before: int, model_max: int | None = None) -> int:
    """Return the next bound, twice the one before, or 0 if there is none.

    ``own``: bound of the first call; ``before``: bound of the call whose reply was cut; ``model_max``: most tokens of a
    reply of the model, where it is known. The last bound may be less than twice the one before.
    """
    tokens = min(2 * before, LONGER_TIMES * own, LONGER_TOKENS_MAX)
    if model_max is not None:
        tokens = min(tokens, model_max)
    return tokens if tokens > before else 0


def bounds(own: int, model_max: int | None = None) -> Iterator[int]:
    """Yield the bounds of all calls of a row whose reply is cut each time, the first call included."""
    tokens = own
    while tokens:
        yield tokens
        tokens = raised(own, tokens, model_max)
