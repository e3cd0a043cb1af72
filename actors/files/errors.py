"""Errors of sources and sinks."""

from __future__ import annotations

import unicodedata


class SinkError(Exception):
    """Results cannot be written to this sink. The message is one line, and names the sink."""


class SinkFailed(SinkError):
    """Results could not be written to a sink that was open. The job has them, and can write them again."""


class SinkFull(SinkFailed):
    """Disk full. The file was cut back to its state at the last flush; the job can be resumed."""


class SinkClosed(SinkFailed):
    """Reader of standard output, or of a pipe, has closed it."""


class SourceError(Exception):
    """Input that cannot be used. The message is one line, and names the input; what it quotes is printable."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class WrongEncoding(SourceError):
    """Input that is surely in another encoding than the one in which it is read. The message has the option to give."""


def printable(text: str) -> str:
    """Return a text with each control character escaped, ``\\x00`` or ``\\u202e``, so that a terminal shows it.

    Escaped are control characters but line breaks and tabs, halves of surrogate pairs, and the characters that turn the
    direction of a text (https://www.unicode.org/reports/tr36/#Bidirectional_Text_Spoofing).
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(each: str) -> str:
    hidden = unicodedata.category(each) in ("Cc", "Cs") or unicodedata.bidirectional(each) in _TURNS
    if not hidden or each in "\n\t":
        return each
    return f"\\x{ord(each):02x}" if ord(each) < 256 else f"\\u{ord(each):04x}"


_TURNS = frozenset({"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"})
