"""The account that a wish leads to: what opens it, what its route is called, and what a call there costs."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import msgspec

from actors.providers.credentials import clouds
from actors.providers.credentials.clouds import ProviderLocation
from actors.providers.credentials.credential import DEFAULT_BASE_URL, Credential, CredentialError, without_password
from actors.routing.model_spec import APART, ModelSpec, SetupError
from actors.routing.pricing import CONTEXT_WINDOW_DEFAULT, known, known_as
from cortex.values.limits import BATCHES
from policies.estimates.price import Price


def endpoint_of(base_url: str) -> str:
    """A provider's address as routes are named by it: one spelling, no password; the provider's own for none."""
    try:
        parts = urlsplit(without_password(base_url))
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return base_url  # whoever opens it says what is wrong with it
    if not host:
        return base_url.rstrip("/") or DEFAULT_BASE_URL
    host = f"[{host}]" if ":" in host else host
    if port is not None and port != {"http": 80, "https": 443}.get(parts.scheme):
        host += f":{port}"
    return urlunsplit(parts._replace(netloc=host, path=parts.path.rstrip("/")))


def named(credential: Credential) -> str:
    """The endpoint of a credential's routes."""
    if credential.platform is None:
        return endpoint_of(credential.base_url)
    address = f"+{endpoint_of(credential.base_url)}" if credential.base_url else ""
    return credential.platform.endpoint + address


def whereto(wish: ModelSpec, environ: Mapping[str, str]) -> str:
    """The endpoint that a provider's model is asked at. A machine that names itself in several ways is one machine.

    Raises ``SetupError`` where it cannot be told.
    """
    if wish.cloud:
        return named(account(wish, environ))
    endpoint = endpoint_of(wish.base_url or environ.get("ANTHROPIC_BASE_URL", "").strip())
    parts = urlsplit(endpoint)
    if parts.hostname in ("localhost", "::1", "0.0.0.0"):
        port = f":{parts.port}" if parts.port else ""
        endpoint = urlunsplit(parts._replace(netloc=f"127.0.0.1{port}"))
    return endpoint


def account(wish: ModelSpec, environ: Mapping[str, str]) -> Credential:
    """What opens the provider that a wish names, and where that is. Raises ``SetupError``: one line that says what is
    missing, and how to give it."""
    try:
        if wish.cloud:
            said = ProviderLocation(
                provider=wish.provider, region=wish.region, project=wish.project, resource=wish.resource,
                base_url=wish.base_url, key_file=wish.api_key_file,
            )  # fmt: skip
            return clouds.credential_of(said, environ)
        credential = Credential.from_environ(environ, wish.api_key_file)
    except CredentialError as error:
        raise SetupError(str(error)) from None
    if credential is None:
        what = f"for --model {wish.model}" if wish.model else "and no --model"
        raise SetupError(
            f"no key in the environment {what}: set ANTHROPIC_API_KEY, or give --api-key-file with the path of a file "
            "that holds it, or take --model local or --model sim; other providers are --provider bedrock, vertex, "
            "foundry"
        )
    return msgspec.structs.replace(credential, base_url=wish.base_url or credential.base_url)


def charged(wish: ModelSpec, credential: Credential) -> tuple[Price | None, int]:
    """Price and context window of a provider's model, as far as they are known: without a price a cap in money cannot
    hold, and the window of an unknown model is that of all of the provider's."""
    region = credential.platform.region if credential.platform is not None else ""
    price, window = known(wish.model, batch=wish.via == BATCHES, provider=wish.provider, region=region)
    if wish.price_as:
        price, as_window = priced_as(wish)
        window = window or as_window
    return price, window or CONTEXT_WINDOW_DEFAULT


def priced_as(wish: ModelSpec) -> tuple[Price, int | None]:
    """Price and window of the model that this one is billed as. Raises ``SetupError`` for one that is not known."""
    if wish.price:
        raise SetupError(f"--price-as {wish.price_as} and --price: give one of them")
    price, window = known_as(wish.price_as, batch=wish.via == BATCHES)
    if price is None:
        raise SetupError(
            f"--price-as {wish.price_as}: no price is known for it: name a model like claude-haiku-4-5, or "
            "PROVIDER/MODEL like deepseek/deepseek-chat, or give --price input=3,output=15"
        )
    return price, window


def refuse_apart(wish: ModelSpec) -> None:
    """What is said of a provider means nothing where none is asked. Raises ``SetupError``."""
    if wish.model not in APART:
        return
    said = {"--base-url": wish.base_url, "--provider": wish.provider, "--api-key-file": wish.api_key_file}
    for option, value in said.items():
        if value:
            raise SetupError(
                f"{option} {value}: --model {wish.model} asks nobody there: leave one of the two out "
                f"({option} '' does so over a job file)"
            )


__all__ = ["account", "charged", "endpoint_of", "named", "priced_as", "refuse_apart", "whereto"]
