"""Interfaces of sources and sinks of rows."""

from __future__ import annotations

from typing import Any, Protocol


class Source(Protocol):
    """What rows are read from."""

    def seek(self, position: int) -> None:
        """Go on reading there."""

    def read(self, rows_max: int) -> Any:
        """The next rows, a ``Window``."""

    def close(self) -> None:
        """Let go of it."""


class Sink(Protocol):
    """What results are written to."""

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Cut back to what is certain; how many results it holds now."""

    def write(self, values: list[Any]) -> None:
        """Write results."""

    def flush(self) -> tuple[int, int]:
        """Put them on disk; how many results and bytes are there now."""

    def close(self) -> None:
        """Let go of it."""
