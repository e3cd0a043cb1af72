"""Caches of encoded pieces of spans: recurring attributes and lengths are encoded once."""

from __future__ import annotations

from struct import Struct

from actors.observability.traces.otlp_encoding import attribute, field, varint

FORMS_MAX = 1_000
"""Most forms kept. A form is a combination of the values that recur in spans: model, branch, and the like."""
NUMBERS_MAX = 4_096
"""Most encoded numbers kept in one cache."""


class _Length(dict[int, bytes]):
    """Cache of a span's field tag and length, by length in bytes."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= NUMBERS_MAX:
            self.clear()
        data = self[length] = b"\x12" + varint(length)
        return data


class NumberAttribute(dict[int, bytes]):
    """Cache of an encoded integer attribute, which may have several names (the same number under each of them).
    ``optional``: 0 is encoded as nothing."""

    def __init__(self, *names: str, optional: bool = False) -> None:
        super().__init__()
        self._before = [[_before(name, size) for name in names] for size in range(10)]
        self._none = b"" if optional else b"".join([before + b"\0" for before in self._before[1]])

    def __missing__(self, number: int) -> bytes:
        if len(self) >= NUMBERS_MAX:
            self.clear()
        if number:
            digits = varint(number)
            data = self[number] = b"".join([before + digits for before in self._before[len(digits)]])
        else:
            data = self[0] = self._none
        return data


def _before(name: str, size: int) -> bytes:
    """Return the bytes of an integer attribute before a number of ``size`` bytes; empty for size 0."""
    return field(b"\x4a", attribute(name, (1 << 7 * size) - 1))[:-size] if size else b""


class CostAttribute:
    """Encoder of a cost in USD, under both of these names. ``nusd``: 1e-9 USD."""

    def __init__(self, names: tuple[str, str]) -> None:
        self._first, self._second = (field(b"\x4a", attribute(name, 0.0))[:-8] for name in names)
        self._pack = Struct(f"<{len(self._first)}sd{len(self._second)}sd").pack

    def __call__(self, nusd: int) -> bytes:
        usd = nusd / 1e9
        return self._pack(self._first, usd, self._second, usd)


class TextAttribute:
    """Encoder of a text attribute of this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before = [field(b"\x4a", attribute(name, "x" * size))[: -size or None] for size in range(65)]

    def __call__(self, text: str) -> bytes:
        data = text.encode() if text.isascii() else text.encode(errors="replace")
        size = len(data)
        return self._before[size] + data if size <= 64 else field(b"\x4a", attribute(self._name, text))


begun = _Length()
