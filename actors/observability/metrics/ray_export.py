"""Readings on Ray's own metrics port, so that monitors that know of Ray find them; Ray puts ``ray_`` before the names.

All of them are gauges there, counters and the buckets of histograms too, under the names that they have elsewhere: Ray
forgets a gauge some twenty seconds after it was last set, and a counter never, so that the jobs of months would stay;
it cannot be told a counter's value, which a journal kept, but only what to add; and it sums histograms up from the
middles of their buckets. To Prometheus a series is a series: ``rate`` and ``histogram_quantile`` mind its name alone.
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
"""Ray reports what was set in the last ten seconds, and no more."""

_log = logging.getLogger("cortex.observing.metrics")


class RayGauges:
    """``make``: Ray's class of gauges. ``read``: readings as bytes; empty where nobody counts."""

    def __init__(self, make: Callable[..., Any], read: Callable[[], bytes]) -> None:
        self._make, self._read = make, read
        self._gauges: dict[tuple[str, tuple[str, ...]], Any] = {}

    async def run(self) -> None:
        """Set them now and then, for as long as the process lives."""
        while True:
            await asyncio.sleep(SET_S)
            try:
                self.set()
            except Exception as error:  # Ray's affair: the actor goes on, and it is tried again
                _log.debug("Ray takes no metrics: %s", type(error).__name__)

    def set(self) -> None:
        """Set all of them."""
        found = decoded(self._read())
        for name, text, labels, value in numbers(found) if found is not None else ():
            tags = {prometheus_name(label): text for label, text in labels}
            key = name, tuple(sorted(tags))
            gauge = self._gauges.get(key)
            if gauge is None:
                gauge = self._gauges[key] = self._make(name, description=text, tag_keys=key[1])
            gauge.set(value, tags=tags)


def numbers(readings: MetricSamples) -> Iterator[tuple[str, str, Labels, float]]:
    """Name, meaning, labels and value of each series that Prometheus would have of them."""
    for point in readings.points:
        instrument = INSTRUMENTS[point.name]
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
