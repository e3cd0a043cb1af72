"""By which road do all rows go, so that neither money nor time is passed: now, in message batches, or some by each?

Single calls are quick and dear; message batches cost half and may take a day. What meets the cap and the deadline is
looked for in the order of how soon it is done, but that the road which was asked for comes first. Money is compared at
the upper end of the estimate, for a cap that is met in half of all cases is not met; the time of batches is the longest
that the provider allows them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from policies.estimates.forecast import Total

NOW: Final = "now"
MIXED: Final = "mixed"
BATCHES: Final = "batches"
BATCH_S: Final = 24 * 3_600.0
"""A message batch ends within it, most do within an hour; the provider's page on batch processing says."""


class Wanted(msgspec.Struct, frozen=True):
    """What may not be passed. None: anything goes."""

    max_cost_nusd: int | None = None
    within_s: float | None = None
    """Seconds until the deadline."""


class Road(msgspec.Struct, frozen=True):
    """One way to do it."""

    name: str
    rows_now: int
    """Rows that go in single calls; all others in message batches."""
    cost_nusd: Total | None
    """None where no price is known."""
    seconds: float
    over_nusd: float = 0.0
    """By how much the upper end of the cost passes the cap; 0: it does not."""
    over_s: float = 0.0
    """By how much the deadline is passed."""

    @property
    def meets(self) -> bool:
        """Whether it passes neither."""
        return self.over_nusd <= 0 and self.over_s <= 0


def roads(
    rows: int, now: Total | None, now_s: float, batched: Total | None, wanted: Wanted, reserve_nusd: float = 0.0,
    batches: bool = True,
) -> tuple[Road, ...]:  # fmt: skip
    """All roads that there are. ``now`` and ``batched``: what all rows cost by each, None where no price is known.
    ``batches``: whether there is such a road for this model.

    ``reserve_nusd``: what the last call may cost at most, which is set aside before it is sent. A mixed road is given
    where the cap pays for some rows now and for all of them in batches: as many now as it pays for.
    """
    found = [_road(NOW, rows, now, now_s, wanted, reserve_nusd)]
    if not batches:
        return tuple(found)
    if now is not None and batched is not None and wanted.max_cost_nusd is not None:
        room = wanted.max_cost_nusd - reserve_nusd - batched.high
        dearer = now.high - batched.high
        if dearer > 0 and 0 < room < dearer and (part := int(rows * room / dearer)):
            share = part / rows
            cost = Total(
                *(share * one + (1 - share) * two for one, two in zip(_ends(now), _ends(batched), strict=True))
            )
            found.append(_road(MIXED, part, cost, share * now_s + BATCH_S, wanted, reserve_nusd))
    found.append(_road(BATCHES, 0, batched, BATCH_S, wanted, reserve_nusd))
    return tuple(found)


def chosen(found: tuple[Road, ...], asked: str = NOW) -> Road | None:
    """The first that meets what is wanted; None where none does."""
    ordered = sorted(found, key=lambda road: road.name != asked)
    return next((road for road in ordered if road.meets), None)


def _ends(of: Total) -> tuple[float, float, float]:
    return of.low, of.expected, of.high


def _road(
    name: str, rows_now: int, cost: Total | None, seconds: float, wanted: Wanted, reserve_nusd: float
) -> Road:  # fmt: skip
    over_nusd = over_s = 0.0
    if wanted.max_cost_nusd is not None and cost is not None and cost.high > 0:
        over_nusd = max(0.0, cost.high + reserve_nusd - wanted.max_cost_nusd)
    if wanted.within_s is not None:
        over_s = max(0.0, seconds - wanted.within_s)
    return Road(name, rows_now, cost, seconds, over_nusd, over_s)
