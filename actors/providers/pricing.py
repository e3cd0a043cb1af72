"""Prices and context windows by model, offline, from the ``genai-prices`` package."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from actors.providers.registry import PROVIDERS, load, row_of
from policies.estimates.price import Price, Tier


def known(
    model: str, at: datetime | None = None, batch: bool = False, provider: str = "", region: str = ""
) -> tuple[Price | None, int | None]:
    """Return price and context window of a model; None for what the package does not know.

    An unknown alias has neither: the user must then state the price where a cap in money is set. ``at``: the time of
    the request; None: now. ``batch``: the price of a call in a message batch; a model for which the package knows none
    has its plain price, which is never below. ``provider``: name of the row of the provider that bills; ``region``: for
    providers that bill by region.
    """
    row = row_of(provider)
    found = _found(model, row.price_id, at, batch) if row.price_id else None
    if found is None:
        return None, None
    source = f"genai-prices: {found.model.id}{', processing=batch' if batch else ''}"
    price = _price(found.model_price, source)
    if price is not None and row.surcharge:
        price = load(row.surcharge)(price, found.model.id, region)
    return price, found.model.context_window


def known_as(model: str, batch: bool = False) -> tuple[Price | None, int | None]:
    """Return price and context window of a model that another one is billed as; None where the package knows no price.

    ``model`` is ``MODEL``, looked for at the providers of the registry in their order, then at all that the package
    knows; or ``PROVIDER/MODEL``, with the package's name of the provider.
    """
    provider, slash, name = model.partition("/")
    billing = [row.price_id for row in PROVIDERS.values() if row.price_id]
    places: list[tuple[str | None, str]] = [(each, model) for each in billing] + [(None, model)]
    for place, named in ([(provider, name)] if slash and name else []) + places:
        found = _found(named, place, None, batch)
        price = None if found is None else _price(found.model_price, f"as {model}, genai-prices: {found.model.id}")
        if found is not None and price is not None:
            return price, found.model.context_window
    return None, None


def _found(model: str, provider: str | None, at: datetime | None, batch: bool) -> Any:
    from genai_prices import Usage, calc_price

    try:
        return calc_price(
            Usage(), model_ref=model, provider_id=provider, genai_request_timestamp=at or datetime.now(UTC),
            price_context={"processing": "batch"} if batch else None,
        )  # fmt: skip
    except LookupError:
        return None


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
