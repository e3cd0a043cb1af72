"""A tolerant stream drops what cannot be written, and never raises."""

from __future__ import annotations

import errno
import io
from typing import Any

import pytest

from actors.common.tolerant_stream import TolerantStream, tolerant


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, Full(), closed()], ids=["none", "full", "closed"])
def test_nothing_is_raised(stream: Any) -> None:
    written = TolerantStream(stream)
    print("a line", file=written, flush=True)
    written.writelines(["a", "b"])
    written.close()
    assert not written.isatty()
    assert written.write("text") == 4


def test_what_can_be_written_is_written() -> None:
    stream = io.StringIO()
    print("a line", file=tolerant(stream), flush=True)
    assert stream.getvalue() == "a line\n"
    assert tolerant(wrapped := tolerant(stream)) is wrapped


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    bytes_ = io.BytesIO()
    text = io.TextIOWrapper(bytes_, "latin-1")
    print("caf\u00e9 \u20ac \ud83d", file=tolerant(text), flush=True)
    assert bytes_.getvalue() == b"caf\xe9 \\u20ac \\ud83d\n"
