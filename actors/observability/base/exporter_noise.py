"""The SDK's exporters complain again and again of a collector that is down. We say it once, in our own words."""

from __future__ import annotations

import logging
from typing import Final

THREAD: Final = "cortex-telemetry"
"""How the names of our own exporting threads begin."""


class _ForeignRecords(logging.Filter):
    """What others do with the same exporters is none of our business."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").startswith(THREAD)


_filter = _ForeignRecords()


def silence_exporters(*names: str) -> None:
    """Nothing more from these loggers, where one of our threads is the cause."""
    for name in names:
        logging.getLogger(name).addFilter(_filter)  # one and the same is added once
