"""Selection of parts for a bounded prompt, and division of what does not fit.

`pack` chooses parts, `cluster` groups items, `split` divides one text. Sizes are in the unit of the bound, mostly
tokens; only `split` and `cut`, which read the text itself, count UTF-8 bytes.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

Shorten = Literal["keep", "cut", "drop"]
"""Treatment of a part that does not fit: "keep" it whole; "cut" it, and drop it if even that is too much; "drop" it."""


class Piece(msgspec.Struct, frozen=True):
    """Candidate part of a prompt. Parts of higher priority are placed first; among equals the more valuable, then the
    earlier.
    """

    size: int
    """Size in the unit of the bound."""
    priority: int = 0
    """Importance: higher first."""
    value: int = 0
    """Order among equal priorities: higher first."""
    shorten: Shorten = "drop"
    """Treatment if the piece does not fit."""
    size_min: int = 1
    """Size below which a part that may be cut is dropped instead."""


def pack(pieces: Sequence[Piece], size_max: int, parts_max: int, joint: int = 0) -> tuple[int, ...] | None:
    """Return how much of each piece is taken, in the given order: its size, less (cut) or 0 (dropped).

    `joint` is the cost of each part but the first besides its size, for example of a separator. Pieces with
    `shorten="keep"` are taken whole first, then all that fit in order of priority; a piece that does not fit makes room
    for a smaller one of lower priority. Returns None if the pieces to keep are already too large: the goal then returns
    to select. Raises ValueError for a negative size.
    """
    if any(piece.size < 0 for piece in pieces):
        raise ValueError("a part cannot have a negative size")
    granted = [0] * len(pieces)
    used, parts = 0, 0
    for index in sorted(range(len(pieces)), key=lambda i: _rank(pieces[i])):
        piece = pieces[index]
        room = size_max - used - (joint if parts else 0)
        if parts < parts_max and piece.size <= room:
            take = piece.size
        elif piece.shorten == "keep":
            return None
        elif parts < parts_max and piece.shorten == "cut" and room >= max(piece.size_min, 1):
            take = room
        else:
            continue
        granted[index] = take
        used, parts = size_max - room + take, parts + 1
    return tuple(granted)


def _rank(piece: Piece) -> tuple[bool, int, int]:
    return piece.shorten != "keep", -piece.priority, -piece.value


def cluster(sizes: Sequence[int], size_max: int, items_max: int, joint: int = 0) -> list[list[int]]:
    """Return groups of neighbouring items, as indices, each within both bounds: as few groups as possible, evenly
    filled.

    `joint` is the cost of each item besides its size. If every group holds one item, grouping makes no progress, and
    the caller must ask for shorter summaries. Raises ValueError for an item that alone exceeds the bound: split it
    first.
    """
    if items_max < 1:
        raise ValueError(f"a group must have room for an item, not for {items_max}")
    whole = [size + joint for size in sizes]
    for index, size in enumerate(whole):
        if size < 0 or size > size_max:
            raise ValueError(f"item {index} has size {size}, the bound is {size_max}: split it first")
    fewest = len(_neighbours(whole, size_max, items_max))
    low, high = max(whole, default=0), size_max
    while low < high:  # the smallest bound with no more groups fills them evenly
        middle = (low + high) // 2
        if len(_neighbours(whole, middle, items_max)) <= fewest:
            high = middle
        else:
            low = middle + 1
    return _neighbours(whole, high, items_max)


def _neighbours(sizes: Sequence[int], size_max: int, items_max: int) -> list[list[int]]:
    groups: list[list[int]] = []
    used = 0
    for index, size in enumerate(sizes):
        if groups and used + size <= size_max and len(groups[-1]) < items_max:
            groups[-1].append(index)
            used += size
        else:
            groups.append([index])
            used = size
    return groups


_CHARACTER_BYTES_MAX: Final = 4

# Boundaries at which a text is divided, best first: after a paragraph, a line, a sentence, a word.
_BOUNDARIES: Final = (
    re.compile(rb"\n[ \t\r]*\n\s*"),
    re.compile(rb"\n"),
    re.compile(rb"[.!?][\"')\]]*\s+|" + "|".join("。！？।").encode()),
    re.compile(rb"\s+"),
)


def split(text: str, bytes_max: int) -> list[str]:
    """Divide the text into pieces of at most `bytes_max` UTF-8 bytes; joined again, they are the text.

    Each piece but the last is at least about half full and ends with a paragraph, else a line, a sentence, a word, and
    only without any of these with a character. Raises ValueError if a single character might not fit.
    """
    if bytes_max < _CHARACTER_BYTES_MAX:
        raise ValueError(f"a piece must have room for a character, {_CHARACTER_BYTES_MAX} bytes, not {bytes_max}")
    return list(_pieces(text.encode(errors="surrogatepass"), bytes_max))


def cut(text: str, bytes_max: int) -> str:
    """Return the beginning of the text, at most `bytes_max` UTF-8 bytes, ending where `split` would end its first
    piece.
    """
    if bytes_max < _CHARACTER_BYTES_MAX:
        return ""
    return next(_pieces(text.encode(errors="surrogatepass"), bytes_max), "")


def _pieces(raw: bytes, bytes_max: int) -> Iterator[str]:
    start = 0
    while start < len(raw):
        end = len(raw) if len(raw) - start <= bytes_max else _end(raw, start, start + bytes_max)
        yield raw[start:end].decode(errors="surrogatepass")
        start = end


def _end(raw: bytes, start: int, limit: int) -> int:
    """The best place to end a piece that begins at `start` and may not exceed `limit`."""
    half = (start + limit) // 2
    for boundary in _BOUNDARIES:
        ends = [match.end() for match in boundary.finditer(raw, half, limit)]
        if ends:
            return ends[-1]
    while raw[limit] & 0xC0 == 0x80:  # inside a character
        limit -= 1
    return limit
