"""Errors of sources and sinks."""

from __future__ import annotations


class SinkError(Exception):
    """Results cannot be written to this sink. The message is one line, and names the sink."""


class SinkFull(SinkError):
    """Disk full. The file was cut back to its state at the last flush; the job can be resumed."""


class SinkClosed(SinkError):
    """Reader of standard output, or of a pipe, has closed it."""


class SourceError(Exception):
    """Input that cannot be used. The message is one line, and names the input."""
