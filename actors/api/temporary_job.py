"""A job that tries a program: with a model that is made for it, in a folder that nobody goes on with."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

IN_MEMORY = "/dev/shm"
ROOM_BYTES = 1 << 30


def scripted(model: Any) -> bool:
    """Whether this is a model for trying a program, as those of ``cortex.testing`` are."""
    return bool(getattr(model, "scripted", False))


def passing_folder() -> str:
    """A folder for a job that nobody goes on with: in memory where there is room, since a disk would be waited for."""
    room = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES
    return tempfile.mkdtemp(prefix="cortex-", dir=IN_MEMORY if room else None)
