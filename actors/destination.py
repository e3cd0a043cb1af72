"""Where calls go: from what a user names (``local``, ``sim``, a provider's model) to a route and an arming."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from actors.armoury import Arming, lend
from actors.errors import ClearError
from actors.model_port import Model
from actors.provider.credential import Credential, CredentialError
from actors.simulator.settings import SimulatorSettings
from cortex.limits import Limits, Route
from policies.price import PRICE_FORM, Price, parse_price

FREE = Price(input_usd_per_mtok=0, output_usd_per_mtok=0, source="runs on this machine")  # type: ignore[arg-type]
DEFAULT_ENDPOINT = "https://api.anthropic.com"


class SetupError(ClearError, ValueError):
    """The job cannot be set up as asked. The message is one clear line that says what to do."""


class Destination(msgspec.Struct, frozen=True):
    """A route, what opens it, and what must be closed when nobody needs it any more."""

    route: Route
    arming: Arming
    notice: str = ""
    """What the user should know of it, in one line."""
    close: Callable[[], None] = lambda: None
    concurrency_max: int | None = None
    """Calls that it can take at once; more would wait for a connection until that counts as a failure."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said of the model; kept with the job, so that it can be resumed. Holds no secret."""

    model: str = ""
    base_url: str = ""
    price: str = ""
    simulated: SimulatorSettings | None = None
    prompt_tokens_max: int | None = None


def destination(
    wish: Wish, limits: Limits, environ: Mapping[str, str], model: Model | None = None
) -> Destination:
    """Resolve a wish. Raises ``SetupError``: no key and no model, no price where a cap in money needs one."""
    try:
        price = parse_price(wish.price) if wish.price else None
    except ValueError as error:
        raise SetupError(f"--price: {error}") from None
    if model is not None:
        found = _given(model, wish)
    elif wish.model == "sim":
        found = _simulated(wish)
    elif wish.model == "local":
        found = _local()
    else:
        found = _provider(wish, limits, environ)
    route = found.route if price is None else msgspec.structs.replace(found.route, price=price)
    if limits.max_cost_nusd is not None and route.price is None:
        found.close()
        raise SetupError(f"no price known for {route.model!r}, so --max-cost cannot hold: give --price, {PRICE_FORM}")
    return msgspec.structs.replace(found, route=route)


def _given(model: Model, wish: Wish) -> Destination:
    route = Route(endpoint=model.endpoint, model=wish.model or "given", price=None)
    return Destination(route, Arming(endpoint=model.endpoint, given=lend(model)))


def _simulated(wish: Wish) -> Destination:
    settings = wish.simulated or SimulatorSettings()
    endpoint = f"sim:{settings.answers_hash()}"
    route = Route(endpoint=endpoint, model="sim", context_window=settings.context_window)
    return Destination(route, Arming(endpoint=endpoint, simulated=settings), "the provider is simulated: a rehearsal")


def _local() -> Destination:
    from actors.local_model import (
        LOCAL_CONTEXT_TOKENS,
        LOCAL_ENDPOINT,
        LOCAL_MODEL_NAME,
        LOCAL_NOTICE,
        LOCAL_SLOTS,
        LocalModelError,
        LocalModelServer,
    )

    server = LocalModelServer()
    try:
        server.start()
    except LocalModelError as error:
        raise SetupError(str(error)) from None
    route = Route(
        endpoint=LOCAL_ENDPOINT, model=LOCAL_MODEL_NAME, context_window=LOCAL_CONTEXT_TOKENS, price=FREE
    )
    arming = Arming(endpoint=LOCAL_ENDPOINT, credential=server.credential, concurrency=2 * LOCAL_SLOTS)
    return Destination(route, arming, LOCAL_NOTICE, server.close, 2 * LOCAL_SLOTS)


def _provider(wish: Wish, limits: Limits, environ: Mapping[str, str]) -> Destination:
    from actors.prices import CONTEXT_WINDOW_DEFAULT, known

    try:
        credential = Credential.from_environ(environ)
    except CredentialError as error:
        raise SetupError(str(error)) from None
    if credential is None:
        what = f"for --model {wish.model}" if wish.model else "and no --model"
        raise SetupError(
            f"no key in the environment {what}: set ANTHROPIC_API_KEY, or take --model local or --model sim"
        )
    if not wish.model:
        raise SetupError("no model: give --model NAME, or state it in every row")
    try:
        base_url = wish.base_url or credential.base_url
        endpoint = base_url.rstrip("/") or DEFAULT_ENDPOINT
        price, window = known(wish.model)
        credential = msgspec.structs.replace(credential, base_url=base_url)
    except CredentialError as error:
        raise SetupError(str(error)) from None
    route = Route(
        endpoint=endpoint, model=wish.model, credential=credential.fingerprint, price=price,
        context_window=window or CONTEXT_WINDOW_DEFAULT,
    )  # fmt: skip
    arming = Arming(
        endpoint=endpoint, credential=credential, concurrency=limits.concurrency, timeouts=limits.timeout
    )
    return Destination(route, arming)


def remembered(places: Mapping[str, str]) -> Wish:
    """The wish that a job's journal keeps."""
    return msgspec.json.decode(places.get("wish", "{}"), type=Wish)


def remember(wish: Wish) -> str:
    """A wish as a job keeps it."""
    return msgspec.json.encode(wish).decode()


__all__: list[Any] = ["Destination", "SetupError", "Wish", "destination", "remember", "remembered"]
