"""Interfaces of sources and sinks of rows."""

from __future__ import annotations

from typing import Any, Protocol


class Source(Protocol):
    """Source of rows."""

    def seek(self, position: int) -> None:
        """Continue at this position."""

    def read(self, rows_max: int) -> Any:
        """Return the next rows, a ``RowWindow``."""

    def close(self) -> None:
        """Close the source."""


class Sink(Protocol):
    """Sink of results."""

    def open(self, rows: int, size_bytes: int, own: bool) -> int:
        """Truncate the output to its certain results; return their number."""

    def write(self, values: list[Any]) -> None:
        """Write results."""

    def flush(self) -> tuple[int, int]:
        """Bring all results to disk; return (results, bytes) on disk."""

    def close(self) -> None:
        """Close the sink."""
