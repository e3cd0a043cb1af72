"""Encoding that the user gives for a file: whether the file is surely in another one, and the option that reads it.

Almost any bytes are text in most encodings, so a wrong one seldom fails by itself: a file of UTF-8 is read in cp1252 as
other letters. Such a file is refused before anything is paid.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Final

from actors.files.dialects.encodings import (
    BAD_SHARE,
    SAMPLE_BYTES,
    Pieces,
    by_start,
    counted,
    guesses,
    refusal,
    ways_to_read,
)
from actors.files.dialects.streams import DecodingFailed, as_utf8

UTF8: Final = ("utf-8", "utf-8-sig", "ascii")
"""Codecs whose bytes are those of UTF-8: a file in one of them is not decoded."""
CHARACTERS_MIN: Final = 4
"""Characters beyond ASCII from which on a file that is UTF-8 throughout is surely UTF-8. Two bytes of GBK are those of
UTF-8 once in ten pairs, and those of other encodings less often."""
SUSPECT_SHARE: Final = 0.1
"""Share of the lines beyond ASCII that the given encoding does not read, from which on a likelier one is proposed."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "UTF-8", UTF8), (codecs.BOM_UTF32_LE, "UTF-32", ("utf-32", "utf-32-le")),
    (codecs.BOM_UTF32_BE, "UTF-32", ("utf-32", "utf-32-be")), (codecs.BOM_UTF16_LE, "UTF-16", ("utf-16", "utf-16-le")),
    (codecs.BOM_UTF16_BE, "UTF-16", ("utf-16", "utf-16-be")),
)  # fmt: skip
"""Byte order mark, the encoding that it tells, and the codecs that read such a file."""
_WIDE: Final = ("utf-16", "utf-32")
_LEAVE_OUT: Final = "leave --encoding out"


def codec_of(given: str, head: bytes, whole: bool) -> str:
    """Return the codec that decodes a file of the given encoding, whose first bytes are ``head``; empty for UTF-8.

    UTF-16 and UTF-32 without a byte order mark have the order of bytes that the text shows. ``whole``: the bytes are
    the whole file.
    """
    if given in UTF8:
        return ""
    found = by_start(head, whole) if given in _WIDE else ""
    return found if found.startswith(given) else given


def refusal_of_given(given: str, pieces: Pieces, *, failed: bool, bad: bool) -> str:
    """Return why a file is not in the given encoding, with the option that reads it; empty if it may be in it.

    - ``failed``: the text as it was decoded is not the table, or the requests, that were expected.
    - ``bad``: some lines of it are bad.
    """
    head = _head(pieces())
    whole = len(head) < SAMPLE_BYTES
    for mark, name, codecs_of_it in _MARKS:
        if head.startswith(mark):
            return "" if given in codecs_of_it else f"is {name}, not {given}: {_LEAVE_OUT}"
    found = by_start(head, whole) if failed or not given.startswith((*UTF8, *_WIDE)) else ""
    if found:
        return "" if found.startswith(given) else f"is {found.upper()}, not {given}: {_LEAVE_OUT}"
    if given in UTF8:
        return refusal(pieces) if failed else ""  # else the user leaves bad lines out
    return _refusal_by_content(given, pieces, head if failed else b"", failed or bad)


def _refusal_by_content(given: str, pieces: Pieces, head: bytes, bad: bool) -> str:
    """Return the refusal by the whole content. ``head``: the first bytes, if the text was not what was expected."""
    misread = bool(head) and _loses_lines(given, head)
    characters = _characters_of_utf8(pieces())
    if characters is None and not bad:
        return ""
    share = 1.0 if misread else _undecodable(given, pieces()) if bad else 0.0
    if characters is not None:
        wrong = characters >= (1 if head else CHARACTERS_MIN) or share >= BAD_SHARE
        return f"is UTF-8, not {given}: {_LEAVE_OUT}" if wrong else ""
    if share < SUSPECT_SHARE:
        return ""
    counts = counted(pieces())
    likely = guesses(counts.samples)
    if share < BAD_SHARE and given in likely:
        return ""
    ways = ways_to_read(counts, pieces, [name for name in likely if name != given])
    if ways:
        return f"is not {given}: give {ways}"
    return f"is not {given}, and not UTF-8: give the encoding in which it was written" if share >= BAD_SHARE else ""


def _head(pieces: Iterable[bytes]) -> bytes:
    """Return the first ``SAMPLE_BYTES`` bytes."""
    found = bytearray()
    for piece in pieces:
        found += piece
        if len(found) >= SAMPLE_BYTES:
            break
    return bytes(found[:SAMPLE_BYTES])


def _loses_lines(given: str, head: bytes) -> bool:
    """Return True if most line ends of ASCII are none in the given encoding, such as EBCDIC, or it reads nothing."""
    try:
        text = b"".join(as_utf8([head], given))
    except DecodingFailed:
        return True
    ends = head.count(b"\n") + head.count(b"\r")
    return (text.count(b"\n") + text.count(b"\r")) * 2 < ends


def _characters_of_utf8(pieces: Iterable[bytes]) -> int | None:
    """Return the number of characters beyond ASCII; None if the file is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    count = 0
    try:
        for piece in pieces:
            if not piece.isascii() or decoder.getstate()[0]:
                text = decoder.decode(piece)
                count += len(text) - len(text.encode("ascii", "ignore"))
        decoder.decode(b"", True)
    except UnicodeDecodeError:
        return None
    return count


def _undecodable(given: str, pieces: Iterable[bytes]) -> float:
    """Return the share of the lines beyond ASCII that hold bytes which the given encoding does not have."""
    try:
        counts = counted(as_utf8(pieces, given))
    except DecodingFailed:
        return 1.0
    return counts.bad / max(1, counts.bad + counts.other)
