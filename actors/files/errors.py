"""Errors of sources and sinks."""

from __future__ import annotations

from cortex.values.display import printable


class SinkError(Exception):
    """Results cannot be written to this sink. The message is one line, and names the sink."""


class SinkFailed(SinkError):
    """Results could not be written to a sink that was open. The job has them, and can write them again."""


class SinkFull(SinkFailed):
    """Disk full. The file was cut back to its state at the last flush; the job can be resumed."""


class SinkClosed(SinkFailed):
    """Reader of standard output, or of a pipe, has closed it."""


class SourceError(Exception):
    """Input that cannot be used. The message is one line, and names the input; what it quotes is printable."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))


class WrongEncoding(SourceError):
    """Input that is surely in another encoding than the one in which it is read. The message has the option to give."""
