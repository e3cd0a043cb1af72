"""Selection of the files of a folder that a bounded prompt shows, and of the bytes shown of each."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

SHOWN_MIN: Final = 200
"""Bytes below which a shortened file is not shown."""
_NAME_MIN: Final = 3
"""Shortest file name that is searched for in a text, in characters."""


class FolderFile(NamedTuple):
    """A file of the folder: path and size in bytes."""

    path: str
    size: int


def shown(
    files: Sequence[FolderFile], bytes_max: int, each_max: int, *, wanted: Collection[str] = (),
    changed: Collection[str] = (), texts: Sequence[str] = (),
) -> list[tuple[str, int]]:  # fmt: skip
    """Return (path, bytes to show) of the chosen files, most wanted first.

    Order: files in ``wanted`` (the user's choice); files that ``texts`` name, in the order of the texts (output of the
    check, then the task); files in ``changed`` (by the last round); then the rest, small files before large ones. A
    file that does not fit is shortened to what is left of ``bytes_max``, or to ``each_max``.
    """
    chosen = []
    left = bytes_max
    for file in sorted(files, key=lambda file: (_rank(file, wanted, changed, texts), file.size, file.path)):
        take = min(file.size, each_max, left)
        if take < file.size and take < SHOWN_MIN:
            continue
        chosen.append((file.path, take))
        left -= take
    return chosen


def _rank(file: FolderFile, wanted: Collection[str], changed: Collection[str], texts: Sequence[str]) -> int:
    if file.path in wanted:
        return 0
    name = file.path.rpartition("/")[2]
    for place, text in enumerate(texts, start=1):
        if file.path in text or (len(name) >= _NAME_MIN and name in text):
            return place
    return len(texts) + (1 if file.path in changed else 2)
