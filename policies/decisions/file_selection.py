"""Which files of a folder does a bounded prompt show, and how much of each?"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

SHOWN_MIN: Final = 200
"""Bytes of a file below which a piece of it is of no use."""
_NAME_MIN: Final = 3


class File(NamedTuple):
    """A file of the folder; sizes in bytes."""

    path: str
    size: int


def shown(
    files: Sequence[File], bytes_max: int, each_max: int, *, wanted: Collection[str] = (),
    changed: Collection[str] = (), texts: Sequence[str] = (),
) -> list[tuple[str, int]]:  # fmt: skip
    """Paths and how many bytes of each, most wanted first.

    First what the user wants shown, then what the check's output names, then what the task names (``texts``, in this
    order), then what the last round changed, then the rest, the small before the large. What does not fit whole is cut.
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


def _rank(file: File, wanted: Collection[str], changed: Collection[str], texts: Sequence[str]) -> int:
    if file.path in wanted:
        return 0
    name = file.path.rpartition("/")[2]
    for place, text in enumerate(texts, start=1):
        if file.path in text or (len(name) >= _NAME_MIN and name in text):
            return place
    return len(texts) + (1 if file.path in changed else 2)
