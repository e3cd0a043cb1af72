"""Choice of the transport for all rows under a cap and a deadline: single calls, message batches, or some rows by each.

Single calls are quick and expensive; message batches cost half and may take a day. Plans are tried in order of their
duration, after the transport that was asked for; the first that meets cap and deadline is chosen. Costs are compared at
the upper end of the estimate, since a cap that is met in half of all cases is not met. The duration of batches is the
longest that the provider allows.
"""

from __future__ import annotations

from typing import Final

import msgspec

from policies.estimates.forecast import EstimatedTotal

NOW: Final = "now"
"""Name of the plan with single calls only."""
MIXED: Final = "mixed"
"""Name of the plan with some rows in single calls and the rest in message batches."""
BATCHES: Final = "batches"
"""Name of the plan with message batches only."""
BATCH_S: Final = 24 * 3_600.0
"""Longest duration of a message batch in seconds; most end within an hour. Source: the provider's page on batch
processing."""


class TransportLimits(msgspec.Struct, frozen=True):
    """Bounds on cost and time. None: no bound."""

    max_cost_nusd: int | None = None
    """Cap in 1e-9 USD."""
    within_s: float | None = None
    """Seconds until the deadline."""


class TransportOption(msgspec.Struct, frozen=True):
    """Plan: which rows take which transport, its cost and its duration."""

    name: str
    """`NOW`, `MIXED` or `BATCHES`."""
    rows_now: int
    """Rows in single calls; all other rows go in message batches."""
    cost_nusd: EstimatedTotal | None
    """Cost in nano-USD; None if no price is known."""
    seconds: float
    """Expected duration in seconds."""
    over_nusd: float = 0.0
    """Amount by which the upper end of the cost exceeds the cap; 0: the cap is met."""
    over_s: float = 0.0
    """Seconds by which the deadline is exceeded; 0: the deadline is met."""

    @property
    def meets(self) -> bool:
        """True if the plan meets cap and deadline."""
        return self.over_nusd <= 0 and self.over_s <= 0


def transport_options(
    rows: int, now: EstimatedTotal | None, now_s: float, batched: EstimatedTotal | None, wanted: TransportLimits,
    reserve_nusd: float = 0.0,
    batches: bool = True,
) -> tuple[TransportOption, ...]:  # fmt: skip
    """Return all possible plans.

    ``now`` and ``batched``: cost of all rows by each transport, None if no price is known. ``now_s``: duration of all
    rows in single calls. ``batches``: False if the model has no message batches. ``reserve_nusd``: highest cost of the
    last call, which is reserved before it is sent.

    The mixed plan is returned if the cap pays for some rows in single calls and for all rows in batches: with as many
    single calls as the cap pays for.
    """
    found = [_transport_option(NOW, rows, now, now_s, wanted, reserve_nusd)]
    if not batches:
        return tuple(found)
    if now is not None and batched is not None and wanted.max_cost_nusd is not None:
        room = wanted.max_cost_nusd - reserve_nusd - batched.high
        dearer = now.high - batched.high
        if dearer > 0 and 0 < room < dearer and (part := int(rows * room / dearer)):
            share = part / rows
            cost = EstimatedTotal(
                *(share * one + (1 - share) * two for one, two in zip(_ends(now), _ends(batched), strict=True))
            )
            found.append(_transport_option(MIXED, part, cost, share * now_s + BATCH_S, wanted, reserve_nusd))
    found.append(_transport_option(BATCHES, 0, batched, BATCH_S, wanted, reserve_nusd))
    return tuple(found)


def chosen(found: tuple[TransportOption, ...], asked: str = NOW) -> TransportOption | None:
    """Return the first plan that meets cap and deadline, the one named ``asked`` before the others; None if none
    does.
    """
    ordered = sorted(found, key=lambda road: road.name != asked)
    return next((transport for transport in ordered if transport.meets), None)


def _ends(of: EstimatedTotal) -> tuple[float, float, float]:
    return of.low, of.expected, of.high


def _transport_option(
    name: str, rows_now: int, cost: EstimatedTotal | None, seconds: float, wanted: TransportLimits, reserve_nusd: float
) -> TransportOption:  # fmt: skip
    over_nusd = over_s = 0.0
    if wanted.max_cost_nusd is not None and cost is not None and cost.high > 0:
        over_nusd = max(0.0, cost.high + reserve_nusd - wanted.max_cost_nusd)
    if wanted.within_s is not None:
        over_s = max(0.0, seconds - wanted.within_s)
    return TransportOption(name, rows_now, cost, seconds, over_nusd, over_s)
