"""Metric samples on Ray's own metrics port, for monitors that read Ray's metrics. Ray puts ``ray_`` before the names.

All series are gauges there, counters and the buckets of histograms too, under their usual names. Ray forgets a gauge
about 20 s after it was last set but a counter never, so that the series of months of jobs would stay; a Ray counter
cannot be set to a value, which a journal kept, but only increased; and Ray sums histograms up from the middles of their
buckets. Prometheus ignores the type of a series: ``rate`` and ``histogram_quantile`` work by name alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from actors.observability.metrics.instruments import INSTRUMENTS, prometheus_name
from actors.observability.metrics.registry import decoded
from actors.observability.metrics.samples import Labels, MetricSamples

SET_S = 4.0
"""Seconds between two updates. Ray reports the gauges set in the last 10 s, and no others."""

_log = logging.getLogger("cortex.observing.metrics")


class RayGauges:
    """Gauges on Ray's metrics port. ``make``: Ray's class of gauges. ``read``: returns encoded samples; empty if
    nothing is counted."""

    def __init__(self, make: Callable[..., Any], read: Callable[[], bytes]) -> None:
        self._make, self._read = make, read
        self._gauges: dict[tuple[str, tuple[str, ...]], Any] = {}

    async def run(self) -> None:
        """Set the gauges every ``SET_S`` until cancelled."""
        while True:
            await asyncio.sleep(SET_S)
            try:
                self.set()
            except Exception as error:  # a failure of Ray's metrics must not end the actor
                _log.debug("Ray does not accept metrics: %s", type(error).__name__)

    def set(self) -> None:
        """Set all gauges to the current samples."""
        found = decoded(self._read())
        for name, text, labels, value in numbers(found) if found is not None else ():
            tags = {prometheus_name(label): text for label, text in labels}
            key = name, tuple(sorted(tags))
            gauge = self._gauges.get(key)
            if gauge is None:
                gauge = self._gauges[key] = self._make(name, description=text, tag_keys=key[1])
            gauge.set(value, tags=tags)


def numbers(readings: MetricSamples) -> Iterator[tuple[str, str, Labels, float]]:
    """Yield name, description, labels and value of each Prometheus series of these samples."""
    for point in readings.points:
        instrument = INSTRUMENTS[point.name]
        if instrument.successor:  # Ray's names are in lower case: both would be one
            continue
        suffix = "_total" if instrument.kind == "counter" else ""
        yield instrument.prometheus + suffix, instrument.description, point.labels, point.value
    for each in readings.spreads:
        instrument = INSTRUMENTS[each.name]
        name, text = instrument.prometheus, instrument.description
        bounds = (*map(repr, instrument.bounds), "+Inf")
        for bound, count in zip(bounds, accumulate(each.counts), strict=True):
            yield f"{name}_bucket", text, (*each.labels, ("le", bound)), count
        yield f"{name}_count", text, each.labels, each.count
        yield f"{name}_sum", text, each.labels, each.total
