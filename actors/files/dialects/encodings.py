"""Encoding of an input file: by its first bytes; and, for a file that is not UTF-8, a refusal with the option to give.

A file is of another encoding if at least nine in ten of its lines that are not ASCII are not UTF-8, and an encoding
reads most of those as common text. Text of another encoding is almost never valid UTF-8 by chance (D. Dürst, The
Properties and Promises of UTF-8, 1997, https://www.sw.it.aoyama.ac.jp/2012/pub/IUC11-UTF-8.pdf). Bad bytes in a file of
UTF-8 are bad lines: the others are read. An encoding is proposed after the whole file was read in it.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from actors.files.dialects.streams import as_utf8

Pieces = Callable[[], Iterable[bytes]]
"""Function that gives the bytes of a file from its start, as they are stored, in pieces of any size."""

SAMPLE_BYTES: Final = 262_144
"""Bytes of bad lines, and of the start of a file, that are examined."""
BAD_SHARE: Final = 0.9
"""Share of the lines beyond ASCII that are not UTF-8 in a file of another encoding."""
WIDE_MIN: Final = 8
"""Characters above which NULs in two of five of them decide that a file is UTF-16 or UTF-32."""
BYTES_MIN: Final = 4
"""Bytes beyond ASCII below which cp1252 alone is proposed: two bytes read as a letter in every encoding."""
READING_CHARACTERS: Final = 30
"""Characters that are shown of a line as an encoding reads it."""

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)  # fmt: skip
"""Byte order marks. That of UTF-32 begins with that of UTF-16 (The Unicode Standard, section 23.8)."""
_GUESSES: Final = (
    "cp1252", "cp1250", "cp1251", "cp932", "gb18030", "cp949", "big5", "euc_jp", "cp1253", "cp1254", "cp1255", "cp1256",
    "cp1257", "cp874", "koi8_r", "cp850", "mac_roman", "cp866", "cp437",
)  # fmt: skip
"""Encodings that are proposed, of equally likely ones the first. Those of Windows and the web come first. ISO 8859 is
absent: its bytes 0x80 to 0x9F are control characters, and its other texts read the same in the encodings of Windows
(https://encoding.spec.whatwg.org/#names-and-labels)."""
_COMMON: Final = frozenset(
    "àáâãäåæçèéêëìíîïñòóôõöøùúûüýßœšžÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝŒŠŽŸ€‘’“”„‚–—…«»°©®™£§·¿¡ªº²³½¼±×\xa0•"
)
"""Characters of cp1252 that are common in texts. The bytes 0xFE and 0xFF, which stand in no UTF-8, are not among them.
"""

_PLAIN: Final = re.compile(rb"[\0\t\n\r\x20-\x7e]*")
_REMAINS: Final = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xf4][\x80-\xbf]+")


def by_start(head: bytes, whole: bool = False) -> str:
    """Return the codec of a file that is surely not read as bytes of UTF-8, given its first bytes; otherwise empty.

    UTF-16 and UTF-32 are known by their byte order mark; without one, by NULs in the same byte of many characters and
    by text that is valid and has no control character. ``whole``: the bytes are the whole file.
    """
    for mark, codec in _MARKS:
        if head.startswith(mark):
            return codec
    if b"\0" not in head:
        return ""
    for codec, size in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        if _is_wide_text(head, codec, size, whole):
            return codec
    return ""


def _is_wide_text(head: bytes, codec: str, size: int, whole: bool) -> bool:
    low = 0 if codec.endswith("le") else size - 1
    """Index of the byte that an ASCII character fills."""
    length = len(head) if whole else len(head) - len(head) % size
    ascii_bytes, others = head[low:length:size], [head[place:length:size] for place in range(size) if place != low]
    zeros = min(each.count(0) for each in others)
    if zeros * 5 >= 2 * len(ascii_bytes) and ascii_bytes.count(0) * 10 <= len(ascii_bytes) > WIDE_MIN:
        return True  # no text of UTF-8 has so many NULs, and all in the same places
    if 0 in ascii_bytes[:-1] or not zeros or zeros * 10 < len(ascii_bytes):
        return False
    if zeros * 2 < len(ascii_bytes) and _PLAIN.fullmatch(head):
        return False  # few NULs among ASCII, where letters of UTF-16 have bytes beyond ASCII, or control characters
    try:
        text = codecs.getincrementaldecoder(codec)().decode(head[:length], whole)
    except UnicodeDecodeError:
        return False
    if text.count("\n") * 2 < head.count(b"\n"):
        return False  # line breaks that are none in this encoding
    strange = (each for each in text[:4096] if unicodedata.category(each) in ("Cc", "Cn", "Co"))
    return all(each in "\t\r\n\f\v" for each in strange)


class LineCounts(msgspec.Struct):
    """Counts over the lines of a file, and its first lines that are not UTF-8."""

    lines: int = 0
    other: int = 0
    """Lines that hold more than ASCII and are UTF-8."""
    bad: int = 0
    """Lines that are not UTF-8."""
    first: tuple[int, int, int] = (0, 0, 0)
    """Number of the first bad line, of its first bad byte, from 1, and the byte."""
    samples: list[bytes] = msgspec.field(default_factory=list)
    """Bad lines, ``SAMPLE_BYTES`` at most."""


def counted(pieces: Iterable[bytes]) -> LineCounts:
    """Return the counts of a file that is given in pieces."""
    found, size, rest = LineCounts(), 0, b""
    for piece in pieces:
        if piece.isascii() and not rest:
            found.lines += piece.count(b"\n")
            continue
        lines = (rest + piece).split(b"\n")
        rest = lines.pop()
        size = _count(found, lines, size)
    _count(found, [rest] if rest else [], size)
    return found


def _count(found: LineCounts, lines: list[bytes], size: int) -> int:
    for line in lines:
        found.lines += 1
        if line.isascii():
            continue
        try:
            line.decode()
            found.other += 1
        except UnicodeDecodeError as error:
            found.bad += 1
            if found.bad == 1:
                found.first = found.lines, error.start + 1, line[error.start]
            if size < SAMPLE_BYTES:
                found.samples.append(line[:SAMPLE_BYTES])
                size += len(line)
    return size


def refusal(pieces: Pieces) -> str:
    """Return the reason to refuse a file of another encoding, with the option to give; empty for a file of UTF-8."""
    counts = counted(pieces())
    if not counts.bad or counts.bad < BAD_SHARE * (counts.bad + counts.other):
        return ""
    ways = ways_to_read(counts, pieces)
    if not ways:
        return ""
    line, place, byte = counts.first
    more = "1 more line is" if counts.bad == 2 else f"{counts.bad - 1:,} more lines are"
    several = f", and {more} not" if counts.bad > 1 else ""
    return f"line {line}: byte {place} (0x{byte:02x}) is not UTF-8{several}: give {ways}"


def ways_to_read(counts: LineCounts, pieces: Pieces, likely: list[str] | None = None) -> str:
    """Return the options that read a file which is not UTF-8, two at most, each with the first bad line as it is then
    read. Empty if no encoding is likely.

    The whole file is read in each of them. If it is whole in none, the likeliest is named with the lines that it does
    not read. ``likely``: the encodings to choose from, in order.
    """
    ways: dict[str, str] = {}
    partly = ""
    for name in guesses(counts.samples) if likely is None else likely:
        reading = b"\n".join(counts.samples).decode(name, "replace")
        if reading in ways:
            continue
        bad = counted(as_utf8(pieces(), name)).bad
        shown = f"line {counts.first[0]} then reads {_excerpt(counts.samples[0], name)!r}"
        if not bad:
            ways[reading] = f"--encoding {name} ({shown})"
        elif not partly:
            partly = f"--encoding {name} ({shown}; {bad:,} line{'s are' if bad > 1 else ' is'} not {name} either)"
        if len(ways) == 2:
            break
    return " or ".join(ways.values()) or partly


def guesses(samples: list[bytes]) -> list[str]:
    """Return the most likely encodings of lines, the likeliest first.

    The candidates are compared by charset-normalizer, which measures how unlike text a reading is (chaos), and how much
    its letters are those of a language (coherence). Equally good ones have the order of ``_GUESSES``. Empty if no
    reading is text.
    """
    from charset_normalizer import from_bytes

    content = b"\n".join(samples)[:SAMPLE_BYTES]
    if content.count(0) * 4 > len(content):
        return []  # UTF-16 or UTF-32, of which an encoding of one byte a character makes text with NULs
    if _is_common_cp1252(content):
        return ["cp1252"]
    if sum(byte >= 0x80 for byte in content) < BYTES_MIN:
        return []
    found = from_bytes(content, cp_isolation=list(_GUESSES), threshold=0.25)
    marks = {
        name: round(each.chaos - each.coherence / 2, 2) for each in found for name in each.could_be_from_charset
    }
    likely = [name for name in _GUESSES if name in marks and marks[name] <= min(marks.values()) + 0.02]
    return [name for name in likely if _is_text(content.decode(name, "replace"))]


def _is_common_cp1252(content: bytes) -> bool:
    """Return True if cp1252 reads nine in ten bytes beyond ASCII as common characters, and most letters are ASCII.

    Remains of characters of UTF-8, a first byte with another, are not common: text of UTF-8 was cut.
    """
    text = content.decode("cp1252", "replace")
    common = -2 * len(_REMAINS.findall(content))
    beyond = foreign = letters = 0
    for before, each, after in zip("\n" + text, text, text[1:] + "\n", strict=False):
        letters += each.isalpha()
        if each.isascii():
            continue
        beyond += 1
        foreign += each.isalpha()
        inside = before.isalpha() and after.isalpha()
        odd = inside and (each.isupper() and before.islower() if each.isalpha() else each not in "’‘–—\xa0")
        common += each in _COMMON and not odd
    return common >= 0.9 * beyond > 0 and foreign <= 0.4 * letters


def _is_text(reading: str) -> bool:
    """Return True if most characters beyond ASCII are letters next to letters of their script, or punctuation."""
    good = bad = 0
    for before, each, after in zip("\n" + reading, reading, reading[1:] + "\n", strict=False):
        if each.isascii():
            continue
        beside = [mate for mate in (before, after) if mate.isalpha()]
        latin = "LATIN" in unicodedata.name(each, "")
        if each.isalpha() and any(mate.isascii() != latin and mate.isascii() for mate in beside):
            bad += 1
        elif each in _COMMON or (each.isalpha() and beside and each not in "ÿþð") or _is_wide(each):
            good += 1
        else:
            bad += 1
    return good > bad


def _is_wide(each: str) -> bool:
    return unicodedata.east_asian_width(each) in ("W", "F")


def _excerpt(line: bytes, name: str) -> str:
    """Return the text around the first character beyond ASCII."""
    text = line.decode(name, "replace").strip("\r\n")
    first = next((place for place, each in enumerate(text) if not each.isascii()), 0)
    start = max(0, first - READING_CHARACTERS // 2)
    end = start + READING_CHARACTERS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
