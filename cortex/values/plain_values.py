"""Plain data: values that encode the same in K read from a snapshot and in K replayed from its journal, byte for
byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

DEPTH_MAX = 64
"""Largest nesting depth of a value; deeper values are refused, since readers recurse."""

_INT_MIN, _INT_MAX = -(1 << 63), (1 << 64) - 1
_AS_IS = frozenset({bytes, float, bool, type(None)})
_SCALARS = _AS_IS | {str, int}
_KEYS = frozenset({str, int, float, bytes})
_HOLDING = (dict, list, tuple)
_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="deterministic")


def to_plain(value: Any, depth: int = DEPTH_MAX) -> Any:
    """Return a copy made of text, numbers, bytes, lists and dicts only; sets become sorted lists, structs become dicts.

    Raises ``TypeError`` for other objects, ``ValueError`` or ``OverflowError`` for integers beyond 64 bits, invalid
    text and values nested deeper than `DEPTH_MAX`.
    """
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
        return value
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise ValueError("a whole number of more than 64 bits cannot be kept as one: make it text")
        return value
    if kind in _AS_IS:
        return value
    if depth == 0:
        raise deep()
    if kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            _encoder.encode(value)  # all checks at once: raises for large integers and invalid text
            return list(value)
        return [to_plain(one, depth - 1) for one in value]
    if kind is dict:
        if _SCALARS.issuperset(map(type, value.values())) and _KEYS.issuperset(map(type, value)):
            _encoder.encode(value)
            return dict(value)
        return {_key(key): to_plain(one, depth - 1) for key, one in value.items()}
    try:
        made = msgspec.msgpack.decode(_sorting_encoder.encode(value))
    except RecursionError:
        raise deep() from None
    if _deeper(made, depth):
        raise deep()
    return made


def _deeper(value: Any, levels: int) -> bool:
    """Return True if more than this many lists and dicts of a decoded value are inside each other. Does not recurse."""
    inside = [value] if isinstance(value, _HOLDING) else []
    for _ in range(levels):
        if not inside:
            return False
        held = (each for one in inside for each in (one.values() if isinstance(one, dict) else one))
        inside = [each for each in held if isinstance(each, _HOLDING)]
    return bool(inside)


def deep() -> ValueError:
    """Return the error of a value that is nested too deeply."""
    return ValueError(f"a value nested deeper than {DEPTH_MAX}")


def as_bytes(value: Any) -> bytes:
    """Return the value as deterministic MessagePack of ``to_plain``: equal bytes are equal values. Raises as
    ``to_plain`` does.
    """
    if type(value) is list and _SCALARS.issuperset(map(type, value)):
        return _encoder.encode(value)  # includes the checks of ``to_plain``; a list needs no sorting
    return _sorting_encoder.encode(to_plain(value))


def _key(key: Any) -> Any:
    if isinstance(key, (str, bytes, int, float)) and not isinstance(key, bool):
        return to_plain(key)
    raise TypeError(f"a key must be text or a number, not {type(key).__name__}")


def size_bytes(value: Any) -> int:
    """Return the UTF-8 bytes of a text, the length of bytes, or the size of the value as JSON."""
    if isinstance(value, str):
        return len(value.encode())
    return len(value) if isinstance(value, bytes) else len(msgspec.json.encode(value))
