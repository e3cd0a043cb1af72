"""Temporary jobs that try a program: with a scripted model, in a folder that is deleted afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any

IN_MEMORY = "/dev/shm"
ROOM_BYTES = 1 << 30


def scripted(model: Any) -> bool:
    """Return True for a model that only tries a program, like those of ``cortex.testing``."""
    return bool(getattr(model, "scripted", False))


def passing_folder() -> str:
    """Create a folder for a temporary job: in memory if 1 GiB is free there, since disk writes are slower."""
    room = os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free >= ROOM_BYTES
    return tempfile.mkdtemp(prefix="cortex-", dir=IN_MEMORY if room else None)
