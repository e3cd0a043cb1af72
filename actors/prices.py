"""Prices and context windows by model, offline, from the ``genai-prices`` package."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from policies.price import Price, Tier

PROVIDER = "anthropic"
CONTEXT_WINDOW_DEFAULT = 200_000
"""Where the package does not know the model: the window of every Claude model since 2023."""


def known(model: str, at: datetime | None = None, batch: bool = False) -> tuple[Price | None, int | None]:
    """Price and context window of a model; None for what the package does not know.

    An unknown alias has neither: whoever sets a cap in money must then state the price. ``batch``: the price on the
    road of message batches; a model for which the package knows none there has its plain price, which is never below.
    """
    from genai_prices import Usage, calc_price

    when = at or datetime.now(UTC)
    try:
        found = calc_price(
            Usage(), model_ref=model, provider_id=PROVIDER, genai_request_timestamp=when,
            price_context={"processing": "batch"} if batch else None,
        )  # fmt: skip
    except LookupError:
        return None, None
    source = f"genai-prices: {found.model.id}{', processing=batch' if batch else ''}"
    return _price(found.model_price, source), found.model.context_window


def _price(prices: Any, source: str) -> Price | None:
    base, tiers = _rates(prices)
    if "input_usd_per_mtok" not in base or "output_usd_per_mtok" not in base:
        return None
    steps = tuple(
        Tier(above_input_tokens=start, **{**base, **rates}) for start, rates in sorted(tiers.items())
    )
    return Price(**base, tiers=steps, source=source)


_FIELDS = {
    "input_mtok": "input_usd_per_mtok",
    "output_mtok": "output_usd_per_mtok",
    "cache_read_mtok": "cache_read_usd_per_mtok",
    "cache_write_mtok": "cache_creation_usd_per_mtok",
}


def _rates(prices: Any) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The base rates, and for each threshold of input tokens the rates that change there."""
    base: dict[str, Any] = {}
    tiers: dict[int, dict[str, Any]] = {}
    for theirs, ours in _FIELDS.items():
        rate = getattr(prices, theirs, None)
        if rate is None:
            continue
        if isinstance(rate, Decimal):
            base[ours] = rate
            continue
        base[ours] = rate.base
        for tier in rate.tiers:
            tiers.setdefault(tier.start, {})[ours] = tier.price
    return base, tiers
