"""Atomic writing of a file: after any failure the path holds the old content or the whole new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from actors.common.errors import CommandError
from actors.files.local.new_files import is_dangling, opened_new
from actors.files.local.os_errors import told


def check_free(output: str, overwrite: bool) -> None:
    """Refuse an output that is a folder, or an existing file without ``overwrite``, or a link to nothing without it.

    Called before any input is read. Raises ``CommandError``.
    """
    target = Path(output)
    if target.is_dir():
        raise CommandError(f"{output} is a folder: name a file in it")
    if (target.is_file() or is_dangling(target)) and not overwrite:
        raise CommandError(f"{output} exists: give --overwrite to write over it, or name another with -o")


@contextlib.contextmanager
def whole(output: str) -> Iterator[Path]:
    """Yield a temporary path; at the end of the block, rename it to ``output``.

    A symbolic link is kept: its target is written. A device or a pipe is written directly, never replaced by a file. A
    file that is made by something else meanwhile stays. Raises ``CommandError`` if the file cannot be written.
    """
    target = Path(os.path.realpath(output))
    is_new = not target.exists()
    as_it_is = not is_new and not target.is_file()
    half = target if as_it_is else target.with_name(f".{target.name}.part")
    try:
        if not as_it_is:
            os.close(opened_new(half))  # a link that somebody has planted is not followed
        yield half
        if is_new:
            _rename_to_new(half, target)
        elif not as_it_is:
            os.replace(half, target)
    except FileExistsError:
        raise CommandError(f"{output} was made by something else meanwhile, and stays: name another with -o") from None
    except OSError as error:
        raise CommandError(f"cannot write {output}: {told(error)}") from None
    finally:
        if not as_it_is:
            with contextlib.suppress(OSError):
                half.unlink()


def _rename_to_new(half: Path, target: Path) -> None:
    """Rename a file to a name that is free. Raises ``FileExistsError`` if the name is no longer free."""
    try:
        os.link(half, target)  # unlike a rename, a link never takes the place of a file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.replace(half, target)
