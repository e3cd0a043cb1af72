"""Telling a path on this machine from the name of an object elsewhere."""

from __future__ import annotations

import re
from typing import Final

_URL: Final = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)


def is_remote(path: str) -> bool:
    """Whether this names something that ``fsspec`` reads and writes: ``s3://…``, ``gs://…``, ``memory://…``."""
    return _URL.match(path) is not None


def protocol_of(path: str) -> str:
    """What stands before ``://``; empty for a path."""
    found = _URL.match(path)
    return found[1].lower() if found else ""
