"""Accounts of models: from a specification to an account at a provider, its endpoint and its price."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from actors.providers.credentials.account import Account, address_named, base_url_of, opened
from actors.providers.credentials.credential import CredentialError
from actors.providers.pricing import known, known_as
from actors.providers.registry import DEFAULT
from actors.routing.model_spec import ModelSpec, SetupError
from cortex.values.limits import BATCHES
from policies.estimates.price import Price

endpoint_of = address_named


def whereto(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    """Return the endpoint at which a model is asked. A machine with several names has one endpoint.

    Raises ``SetupError`` where the endpoint cannot be told.
    """
    row = spec.row
    if row.name != DEFAULT:
        return account(spec, environ, start=False).endpoint
    try:
        endpoint = address_named(base_url_of(row, spec.location(), environ))
    except CredentialError as error:
        raise SetupError(str(error)) from None
    parts = urlsplit(endpoint)
    if parts.hostname in ("localhost", "::1", "0.0.0.0"):
        port = f":{parts.port}" if parts.port else ""
        endpoint = urlunsplit(parts._replace(netloc=f"127.0.0.1{port}"))
    return endpoint


def account(spec: ModelSpec, environ: Mapping[str, str], *, start: bool = True) -> Account:
    """Return the account at the provider that a specification names.

    ``start``: False starts no server. Raises ``SetupError``: one line that says what is missing, and how to give it.
    """
    try:
        return opened(spec.location(), environ, start=start)
    except CredentialError as error:
        raise SetupError(str(error)) from None


def charged(spec: ModelSpec, found: Account) -> tuple[Price | None, int]:
    """Return price and context window of a provider's model, as far as they are known.

    Without a price (None) a cap in money cannot hold. A model whose window is not known has the provider's default.
    """
    platform = found.credential.platform if found.credential is not None else None
    region = platform.region if platform is not None else ""
    price, window = known(
        spec.model, batch=spec.via == BATCHES, provider=spec.row.name, region=region, address=found.endpoint
    )  # fmt: skip
    if spec.price_as:
        price, as_window = priced_as(spec)
        window = window or as_window
    return price, window or spec.row.context_window


def priced_as(spec: ModelSpec) -> tuple[Price, int | None]:
    """Return price and window of the model that this one is billed as. Raises ``SetupError`` for one that is not
    known."""
    if spec.price:
        raise SetupError(f"--price-as {spec.price_as} and --price: give one of them")
    price, window = known_as(spec.price_as, batch=spec.via == BATCHES)
    if price is None:
        raise SetupError(
            f"--price-as {spec.price_as}: no price is known for it: name a model like claude-haiku-4-5, or "
            "PROVIDER/MODEL like deepseek/deepseek-chat, or give --price input=3,output=15"
        )
    return price, window


def refuse_apart(spec: ModelSpec) -> None:
    """Raise ``SetupError`` where options for a provider are given, and the model is asked of none."""
    if not spec.row.by_model:
        return
    facts = {
        "--base-url": spec.base_url, "--provider": spec.provider, "--api-key-file": spec.api_key_file,
        "--metrics-from": ", ".join(spec.metrics_from or ()),
    }  # fmt: skip
    for option, value in facts.items():
        if value:
            raise SetupError(
                f"{option} {value}: --model {spec.model} asks nobody there: leave one of the two out "
                f"({option} '' does so over a job file)"
            )


__all__ = ["account", "charged", "endpoint_of", "priced_as", "refuse_apart", "whereto"]
