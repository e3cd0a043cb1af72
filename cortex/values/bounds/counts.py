"""Counts from outside: of tokens, of requests, in usage, headers, rows and options. Each is bounded where it enters.

A journal holds whole numbers of 64 bits, and sums of counts must stay below that. Servers report more: tokens as text,
as floats, as -1, or as 9e18 (``tests/edge/providers/flawed_bodies.py`` has their reports).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

COUNT_MAX: Final = 100_000_000
"""Largest count of tokens or requests that is believed. The largest context window is 10 million tokens (Llama 4 Scout:
https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E), the largest message batch has 100,000 requests."""
WHOLE_MAX: Final = 1 << 62
"""Largest whole number in a setting: a journal holds 64 bits, and amounts are compared with sums."""

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
"""Type of a count for decoders: a value beyond the bounds is a ``msgspec.ValidationError``."""
CountFromOne = Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
"""Type of a count that cannot be 0, such as the tokens of a prompt."""

_DIGITS: Final = re.compile(r"[0-9]{1,12}")


def count_of(value: Any) -> int | None:
    """Return the count in a decoded value, also one written as a float or as a text; None for anything else."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= COUNT_MAX else None
