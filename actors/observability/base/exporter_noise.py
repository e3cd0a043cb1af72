"""Log filter for the SDK's exporters, which log every failed export. This package reports an unreachable collector
once."""

from __future__ import annotations

import logging
from typing import Final

THREAD: Final = "cortex-telemetry"
"""Prefix of the names of this package's exporting threads."""


class _ForeignRecords(logging.Filter):
    """Filter that drops records of this package's threads. Other users of the same exporters are not affected."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").startswith(THREAD)


_filter = _ForeignRecords()


def silence_exporters(*names: str) -> None:
    """Drop records of these loggers that originate in one of this package's threads."""
    for name in names:
        logging.getLogger(name).addFilter(_filter)  # idempotent: a logger adds the same filter once
