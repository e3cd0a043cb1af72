"""Pieces of spans, encoded: what is said again and again is encoded once."""

from __future__ import annotations

from actors.observability.traces.otlp_encoding import attribute, field, varint

FORMS_MAX = 1_000
"""Forms that are kept: a form is a model, a branch, and the like."""
NUMBERS_MAX = 4_096
"""So many numbers are kept encoded."""


class _Length(dict[int, bytes]):
    """What stands before a span of so many bytes."""

    def __missing__(self, length: int) -> bytes:
        if len(self) >= NUMBERS_MAX:
            self.clear()
        data = self[length] = b"\x12" + varint(length)
        return data


class NumberAttribute(dict[int, bytes]):
    """An attribute that is a number, of this name. ``optional``: 0 says nothing."""

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
    """An attribute that is a text, of this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._before = [field(b"\x4a", attribute(name, "x" * size))[: -size or None] for size in range(65)]

    def __call__(self, text: str) -> bytes:
        data = text.encode() if text.isascii() else text.encode(errors="replace")
        size = len(data)
        return self._before[size] + data if size <= 64 else field(b"\x4a", attribute(self._name, text))


begun = _Length()
