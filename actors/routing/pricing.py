"""Prices and context windows by model, offline, from the ``genai-prices`` package."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from policies.estimates.price import Price, Rates, Tier

PROVIDER = "anthropic"
_IDS = {"anthropic": PROVIDER, "bedrock": "aws", "vertex": "google", "foundry": "azure"}
"""What the package calls those who bill."""
_PREMIUM = Decimal("1.1")
_NO_PREMIUM = ("claude-2", "claude-3", "claude-4-", "claude-opus-4-0", "claude-opus-4-1", "claude-sonnet-4-0")
"""Vertex AI charges a premium for regions from Claude Sonnet 4.5 on, of which the package knows nothing
(https://docs.claude.com/en/api/claude-on-vertex-ai); of Bedrock's it does."""
CONTEXT_WINDOW_DEFAULT = 200_000
"""Where the package does not know the model: the window of every Claude model since 2023."""


def known(
    model: str, at: datetime | None = None, batch: bool = False, provider: str = "", region: str = ""
) -> tuple[Price | None, int | None]:
    """Price and context window of a model; None for what the package does not know.

    An unknown alias has neither: whoever sets a cap in money must then state the price. ``batch``: the price on the
    road of message batches; a model for which the package knows none there has its plain price, which is never below.
    ``provider``: who bills it, as ``actors.providers.credentials.clouds`` calls them; one that bills by region is asked
    in this one.
    """
    found = _found(model, _IDS.get(provider, PROVIDER), at, batch)
    if found is None:
        return None, None
    source = f"genai-prices: {found.model.id}{', processing=batch' if batch else ''}"
    price = _price(found.model_price, source)
    if price is not None and provider == "vertex" and region != "global" and not found.model.id.startswith(_NO_PREMIUM):
        price = _dearer(price)
    return price, found.model.context_window


def known_as(model: str, batch: bool = False) -> tuple[Price | None, int | None]:
    """The same of a model that another is billed as: ``MODEL``, looked for at Anthropic first, then at the clouds that
    serve its models, then anywhere; or ``PROVIDER/MODEL``, as the package names providers."""
    provider, slash, name = model.partition("/")
    places: list[tuple[str | None, str]] = [(each, model) for each in _IDS.values()] + [(None, model)]
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


def _dearer(price: Price) -> Price:
    """What is asked of a region rather than of the global endpoint costs a tenth more."""

    def raised(rates: Rates) -> dict[str, Any]:
        names = (*_FIELDS.values(), "cache_creation_1h_usd_per_mtok")
        return {name: None if (rate := getattr(rates, name)) is None else rate * _PREMIUM for name in names}

    tiers = tuple(Tier(above_input_tokens=tier.above_input_tokens, **raised(tier)) for tier in price.tiers)
    return Price(**raised(price), tiers=tiers, source=f"{price.source}, 10 % for a region")


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
