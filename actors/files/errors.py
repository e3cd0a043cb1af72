"""Errors of sources and sinks."""

from __future__ import annotations


class SinkError(Exception):
    """Results cannot be written there. The message is one clear line, and names the place."""


class SinkFull(SinkError):
    """The disk is full. A file was cut back to where it stood at the last flush; the job can be resumed."""


class SinkClosed(SinkError):
    """Who read standard output, or a pipe, reads no more."""


class SourceError(Exception):
    """The input cannot be used. The message is one clear line, and names it."""
