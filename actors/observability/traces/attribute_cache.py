"""Caches of encoded pieces of spans: recurring attributes and lengths are encoded once."""

from __future__ import annotations

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
    """Cache of an encoded integer attribute of this name. ``optional``: 0 is encoded as nothing."""

    def __init__(self, name: str, optional: bool = False) -> None:
        super().__init__()
        parts = [field(b"\x4a", attribute(name, (1 << 7 * size) - 1)) for size in range(1, 10)]
        self._before = [b"", *(each[:-size] for size, each in enumerate(parts, 1))]
        self._none = b"" if optional else self._before[1] + b"\0"

    def __missing__(self, number: int) -> bytes:
        if len(self) >= NUMBERS_MAX:
            self.clear()
        if number:
            digits = varint(number)
            data = self[number] = self._before[len(digits)] + digits
        else:
            data = self[0] = self._none
        return data


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
