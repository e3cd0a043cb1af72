"""Random draws as functions of a seed, the bytes they are about, and the number of times these were seen."""

import hashlib
import math

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_STRIDE = 0xD1342543DE82EF95  # odd, so that every (seen, purpose) starts at another value
_UNIT = 2.0**-53

# Purposes of draws. Two purposes never share a draw.
FAULT, LATENCY, LATENCY_AGAIN, ERROR, FORM, CHOICE, CUT, BATCH, ORDER, EXPIRED, CONFIDENCE = range(1, 12)


def identity(content: bytes) -> int:
    """Return 64 bits that identify these bytes, equal in every process and release."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def mixed(value: int) -> int:
    """Return 64 well mixed bits of a number (the finaliser of SplitMix64, Steele, Lea and Flood 2014)."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def draw(seed: int, named: int, seen: int, purpose: int) -> float:
    """Return a number from 0 (included) to 1 (excluded)."""
    return (mixed((named ^ seed * _GOLDEN) + (seen << 8 | purpose) * _STRIDE) >> 11) * _UNIT


def name(lead: str, seed: int, named: int, seen: int) -> str:
    """Return an id for the answer to this body at this number of times seen."""
    return f"{lead}{(named ^ (seed << 32 | seen) * _GOLDEN) & _MASK:016x}"


def lognormal(mean: float, spread: float, one: float, two: float) -> float:
    """Return a log-normal number of this mean, from two draws (Box and Muller 1958). ``spread``: its sigma."""
    if mean <= 0 or spread <= 0:
        return max(mean, 0.0)
    normal = math.sqrt(-2.0 * math.log(1.0 - one)) * math.cos(2.0 * math.pi * two)
    return mean * math.exp(spread * normal - spread * spread / 2)
