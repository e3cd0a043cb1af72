"""Prices and context windows by model, offline, from the ``genai-prices`` package."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any, Final

from actors.providers.registry import PROVIDERS, Provider, address_in, is_own_server, load, row_of
from policies.estimates.price import Price, Tier


def known(
    model: str, at: datetime | None = None, batch: bool = False, provider: str = "", region: str = "",
    address: str = "",
) -> tuple[Price | None, int | None]:  # fmt: skip
    """Return price and context window of a model; None for what the package does not know.

    An unknown alias has neither: the user must then state the price where a cap in money is set. ``at``: the time of
    the request; None: now. ``batch``: the price of a call in a message batch; a model for which the package knows none
    has its plain price, which is never below. ``provider``: name of the row of the provider that bills; ``region``: for
    providers that bill by region; ``address``: the endpoint or URL that is asked, where it is a server of the user's
    own, whose models are found by ``_found_at``.
    """
    row = row_of(provider)
    name = model.removeprefix(f"{row.price_id}/") if row.place else model  # Gemini's maker, in its names on Vertex AI
    found = _found(name, row.price_id, at, batch) if row.price_id else None
    if is_own_server(address, row):
        found = _found_at(address_in(address), model, found, at, batch)
    if found is None:
        return None, None
    theirs = "" if found.provider.id == row.price_id else f"{found.provider.id}/"
    source = f"{_SOURCE}{theirs}{found.model.id}{', processing=batch' if batch else ''}"
    price = _price(found.model_price, source, found.model.id)
    if price is not None and row.surcharge:
        price = load(row.surcharge)(price, found.model.id, region)
    return price, found.model.context_window


def is_of_another(price: Price, row: Provider) -> bool:
    """Return whether ``known`` has taken a price from another provider than the row's: by the address or the model's
    name, at a server of the user's own."""
    provider, slash, _ = price.source.removeprefix(_SOURCE).partition("/")
    return bool(row.server_key_variable and slash) and provider in _provider_ids() - {row.price_id}


_SOURCE = "genai-prices: "


def _found_at(address: str, model: str, found: Any, at: datetime | None, batch: bool) -> Any:
    """Return the price of a model at a server of the user's own: of the provider that the package knows at this
    address; else ``found``, that of the row; else, for a gateway, of the provider in the name (``groq/llama-…``), else
    of the maker of models of this name (``gpt-…``).

    Names as those of files and repositories of weights (``Qwen/Qwen3-8B``, ``deepseek-r1:8b``) have no price: whoever
    serves them bills nobody. None: no price is known.
    """
    if (there := _found(model, None, at, batch, address)) is not None:
        return there
    if found is not None:
        return found
    prefix, slash, name = model.partition("/")
    if slash:
        return _found(name, prefix, at, batch) if prefix in _provider_ids() else None
    return None if ":" in model else _found(model, None, at, batch)


@cache
def _provider_ids() -> frozenset[str]:
    from genai_prices.data import providers

    return frozenset(each.id for each in providers)


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
        source = "" if found is None else f"as {model}, genai-prices: {found.model.id}"
        price = None if found is None else _price(found.model_price, source, found.model.id)
        if found is not None and price is not None:
            return price, found.model.context_window
    return None, None


def _found(model: str, provider: str | None, at: datetime | None, batch: bool, address: str = "") -> Any:
    """Return the package's price of a model at one of its providers, named or found by the address; where neither is
    given, at the provider whose models have such names. None: it knows none."""
    from genai_prices import Usage, calc_price

    where: dict[str, Any] = {"provider_api_url": address} if address else {"provider_id": provider}
    try:
        return calc_price(
            Usage(), model_ref=model, genai_request_timestamp=at or datetime.now(UTC),
            price_context={"processing": "batch"} if batch else None, **where,
        )  # fmt: skip
    except LookupError:
        return None


_EMBEDS: Final = re.compile(r"embed|\b(?:bge|gte|voyage)-")
"""Names of models that give vectors, which the package lists without a price of output: they have none. A missing price
of any other model is not known."""


def _price(prices: Any, source: str, model: str) -> Price | None:
    base, tiers = _rates(prices)
    if "input_usd_per_mtok" in base and _EMBEDS.search(model):
        base.setdefault("output_usd_per_mtok", Decimal(0))
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
