"""Vectors of the simulated provider: words by hashing, so that texts with the same words are near each other.

Each word adds or takes 1 at a place that its hash names (feature hashing, Weinberger et al. 2009, arXiv 0902.2206); the
vector is then scaled to length 1. Equal texts have equal vectors, in every process and release.
"""

import base64
import math
import struct

from actors.simulator import random_draws


def vector(text: str, dimensions: int) -> list[float]:
    """Return the vector of a text."""
    numbers = [0.0] * dimensions
    for word in text.casefold().split() or [text]:
        drawn = random_draws.identity(word.encode("utf-8", "replace"))
        numbers[(drawn >> 1) % dimensions] += 1.0 if drawn & 1 else -1.0
    length = math.sqrt(sum(number * number for number in numbers))
    if not length:  # words that take each other away
        return [1.0, *numbers[1:]]
    return [number / length for number in numbers]


def as_base64(numbers: list[float]) -> str:
    """Return a vector as OpenAI's ``encoding_format`` ``base64`` has it."""
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def from_base64(text: str) -> list[float]:
    """Return the numbers of such a vector."""
    content = base64.b64decode(text)
    return list(struct.unpack(f"<{len(content) // 4}f", content))
