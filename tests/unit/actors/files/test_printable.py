"""Errors show no control character."""

from __future__ import annotations

import pytest

from actors.files.errors import SourceError
from cortex.values.display import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größe, 日本", "plain, größe, 日本"),
        ("i\0d\0", "i\\x00d\\x00"),
        ("\x1b[31mred\x9b", "\\x1b[31mred\\u009b"),
        ("a\nb\tc", "a\nb\tc"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("half \ud800", "half \\ud800"),
        ("עברית", "עברית"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown == str(SourceError(text))
