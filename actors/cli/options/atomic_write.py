"""A file that is made at once: it stands there whole, or what stood there before does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from actors.common.errors import CommandError


def check_free(output: str, overwrite: bool) -> None:
    """Refuse, before anything is read, an output that is a folder, or a file that would be lost.

    Raises ``CommandError``."""
    target = Path(output)
    if target.is_dir():
        raise CommandError(f"{output} is a folder: name a file in it")
    if target.is_file() and not overwrite:
        raise CommandError(f"{output} exists: give --overwrite to write over it, or name another with -o")


@contextlib.contextmanager
def whole(output: str) -> Iterator[Path]:
    """Where to write what shall stand in ``output``: it takes its place when all of it is on disk.

    A link stays one: what it points to is written. A device or a pipe is written to as it is, never replaced by a
    file. Raises ``CommandError`` where it cannot be written.
    """
    target = Path(os.path.realpath(output))
    as_it_is = target.exists() and not target.is_file()
    half = target if as_it_is else target.with_name(f".{target.name}.part")
    try:
        yield half
        if not as_it_is:
            os.replace(half, target)
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror or error}") from None
    finally:
        if not as_it_is:
            with contextlib.suppress(OSError):
                half.unlink()
