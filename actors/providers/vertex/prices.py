"""Surcharge of Google Vertex AI that the ``genai-prices`` package leaves out."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from policies.estimates.price import Price, Rates, Tier

_FACTOR: Final = Decimal("1.1")
_WITHOUT: Final = ("claude-2", "claude-3", "claude-4-", "claude-opus-4-0", "claude-opus-4-1", "claude-sonnet-4-0")
"""Beginnings of the names of models that cost the same everywhere."""
_RATES: Final = (
    "input_usd_per_mtok", "output_usd_per_mtok", "cache_read_usd_per_mtok", "cache_creation_usd_per_mtok",
    "cache_creation_1h_usd_per_mtok",
)  # fmt: skip


def with_surcharge(price: Price, model: str, region: str) -> Price:
    """Return the price in a region: a tenth more than at the global endpoint, from Claude Sonnet 4.5 on
    (https://docs.claude.com/en/api/claude-on-vertex-ai)."""
    if region == "global" or model.startswith(_WITHOUT):
        return price
    tiers = tuple(Tier(above_input_tokens=tier.above_input_tokens, **_raised(tier)) for tier in price.tiers)
    return Price(**_raised(price), tiers=tiers, source=f"{price.source}, 10 % for a region")


def _raised(rates: Rates) -> dict[str, Any]:
    return {name: None if (rate := getattr(rates, name)) is None else rate * _FACTOR for name in _RATES}
