"""Where calls go: from what a user names (``local``, ``sim``, a provider's model) to routes and an arming.

A job has a route of its own, and fallbacks to which its work moves while that route's breaker is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from actors.ports.model import Model
from actors.providers.pools import pool_of
from actors.providers.registry import SIMULATED
from actors.routing.endpoints import account, charged, endpoint_of, priced_as, refuse_apart, whereto
from actors.routing.model_factory import ConnectionSpec, lend
from actors.routing.model_spec import ModelSpec, SetupError, spec_at, spread
from cortex.values.limits import BATCHES, MESSAGES, Limits, Route
from policies.estimates.price import PRICE_FORM, batch_price, parse_price
from policies.failures.route_choice import route_name

CONNECTIONS = 1_000
"""Connections that a branch may open: they are opened as permits are used, and a job's bound may be raised in a run."""


class ResolvedRoute(msgspec.Struct, frozen=True):
    """A route, what opens it, and what must be closed when nobody needs it any more."""

    route: Route
    connection: ConnectionSpec
    notice: str = ""
    """What the user should know of it, in one line."""
    close: Callable[[], None] = lambda: None
    concurrency_max: int | None = None
    """Calls that it can take at once; more would wait for a connection until that counts as a failure."""
    fallbacks: tuple[Route, ...] = ()
    """Where work moves, in this order; ``arming.fallbacks`` opens them."""
    role_routes: tuple[Route, ...] = ()
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    """As in ``Terms``; the last of ``arming.fallbacks`` open them."""
    narrow: dict[str, int] = msgspec.field(default_factory=dict)
    """Pools of other routes that can take only so many calls at once."""


def destination(
    wish: ModelSpec, limits: Limits, environ: Mapping[str, str], model: Model | None = None,
    others: Sequence[Model | None] = (), players: Mapping[str, Model] | None = None, *, start: bool = True,
) -> ResolvedRoute:  # fmt: skip
    """Resolve a wish, its fallbacks and its roles. ``model``, ``others`` for the fallbacks and ``players`` for the
    roles are an author's own objects. ``start``: False starts no server, for what is only planned.

    Raises ``SetupError``: no key and no model, no price where a cap in money needs one, a fallback that leads to where
    the work comes from.
    """
    wish = spread(wish)
    given = [model, *others, *[None] * (len(wish.fallbacks) - len(others))]
    wishes = list(zip((wish, *wish.fallbacks), given, strict=True))
    _refuse_loop(wishes, environ)
    cast = RoleAssignment(wish, model, environ, players or {})
    found: list[ResolvedRoute] = []
    try:
        for place, (each, object_) in enumerate(wishes):
            found.append(_one(each, limits, environ, object_, f"--fallback {each.model}" if place else "", start))
        for role, each, object_ in cast.own:
            found.append(_one(each, limits, environ, object_, f"--role {role}={each.model}", start))
    except BaseException:
        _close_all(found)
        raise
    own, *rest = found
    said = [own.notice, *(f"{role}: {each.notice}" for (role, _, _), each in _role_notes(cast, rest, own.notice))]
    routes = tuple(each.route for each in rest)
    return ResolvedRoute(
        route=own.route, connection=msgspec.structs.replace(own.connection,
        fallbacks=tuple(each.connection for each in rest)),
        notice="; ".join(filter(None, said)), close=lambda: _close_all(found),
        concurrency_max=own.concurrency_max if not cast.own else None,
        fallbacks=routes[: len(wish.fallbacks)], role_routes=routes[len(wish.fallbacks) :], roles=cast.roles,
        narrow={each.connection.pool_name: each.concurrency_max for each in (found if cast.own else rest)
                if each.concurrency_max is not None},
    )  # fmt: skip


def _role_notes(cast: RoleAssignment, rest: list[ResolvedRoute], said: str) -> list[tuple[Player, ResolvedRoute]]:
    """Roles whose model has something that its user should know, and was not told."""
    pairs = zip(cast.own, rest[len(rest) - len(cast.own) :], strict=True)
    return [(player, each) for player, each in pairs if each.notice and each.notice != said]


def _close_all(found: list[ResolvedRoute]) -> None:
    for each in found:
        each.close()


def _refuse_loop(wishes: Sequence[tuple[ModelSpec, Model | None]], environ: Mapping[str, str]) -> None:
    """The same route twice leads nowhere, however its endpoint is spelled. Seen before anything is opened."""
    seen: dict[tuple[str, str], str] = {}
    for wish, model in wishes:
        key = _whereto(wish, model, environ)
        said = f"{wish.model or 'the given model'}{f' at {wish.base_url}' if wish.base_url else ''}"
        if key in seen:
            more = "" if seen[key] == said else f" ({seen[key]} is the same)"
            raise SetupError(f"--fallback {said}: this route is named twice{more}: a fallback must lead elsewhere")
        seen[key] = said


Player = tuple[str, ModelSpec, Model | None]
"""A role, its model as it was named, or the object that it is."""


class RoleAssignment:
    """Which model has which role: ``roles`` as in ``Terms``, and ``own``, the routes that roles alone are asked on,
    each with the first of its roles. Raises ``SetupError`` where two prices are named for one route."""

    def __init__(
        self, wish: ModelSpec, model: Model | None, environ: Mapping[str, str], players: Mapping[str, Model]
    ) -> None:  # fmt: skip
        self.roles: dict[str, int] = {}
        self.own: list[Player] = []
        lanes = {_whereto(wish, model, environ): 0}
        wishes = [wish]
        for role, said in wish.roles.items():
            player = players.get(role)
            each = said
            key = _whereto(each, player, environ)
            if key not in lanes:
                lanes[key] = len(wishes)
                wishes.append(each)
                self.own.append((role, each, player))
            elif each.price not in ("", wishes[lanes[key]].price):
                whose = f"--role {self.own[lanes[key] - 1][0]}" if lanes[key] else "--model"
                raise SetupError(f"--role {role}={each.model}: {whose} names it without this price: give both the same")
            self.roles[role] = lanes[key]


def _whereto(wish: ModelSpec, model: Model | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Endpoint and model that a wish leads to. A machine that names itself in several ways is one machine."""
    if model is not None:
        return model.endpoint, wish.model or "given"
    return whereto(wish, environ), wish.model


def _one(
    wish: ModelSpec, limits: Limits, environ: Mapping[str, str], model: Model | None, option: str, start: bool
) -> ResolvedRoute:
    """One route, named and priced. ``option`` named it; empty for the job's own."""
    try:
        price = parse_price(wish.price) if wish.price else None
    except ValueError as error:
        raise SetupError(f"{option or '--price'}: {error}") from None
    if model is None:
        refuse_apart(wish)
    batched = _batched(wish, model)
    found = _given(model, wish) if model is not None else _provider(wish, limits, environ, start)
    if price is None and wish.price_as:
        price = priced_as(msgspec.structs.replace(wish, via=MESSAGES))[0]
    elif wish.price_as:
        priced_as(wish)
    route = found.route if price is None else msgspec.structs.replace(found.route, price=price)
    if batched:
        price = batch_price(price) if price is not None else route.price  # the price data has the road's own
        route = msgspec.structs.replace(route, via=BATCHES, price=price)
    if limits.max_cost_nusd is not None and route.price is None:
        found.close()
        how = f"{option},input=3,output=15" if option else f"--price, {PRICE_FORM}"
        how += f", or {f'{option},price-as=MODEL' if option else '--price-as MODEL'} for a model that costs as much"
        if wish.row.name == SIMULATED and not option:
            how = f"--price, {PRICE_FORM}, or --price-as with the model that it rehearses"
        raise SetupError(f"no price known for {route.model!r}, so --max-cost cannot hold: give {how}")
    if limits.output_tokens_max >= route.context_window:
        found.close()
        window = f"the window of {route.model!r} ({route.context_window} tokens)"
        raise SetupError(f"replies of {limits.output_tokens_max} tokens leave no room for a prompt in {window}")
    name = (route.endpoint, route.credential, route.model)
    arming = msgspec.structs.replace(found.connection, route_name=route_name(*name), pool_name=pool_of(*name))
    notice = "; ".join(filter(None, (found.notice, _batch_note(route) if batched else "")))
    return msgspec.structs.replace(found, route=route, connection=arming, notice=notice)


def _batched(wish: ModelSpec, model: Model | None) -> bool:
    """Whether its calls go out in message batches. Raises ``SetupError`` where there is no such road."""
    if wish.via not in (MESSAGES, BATCHES):
        raise SetupError(f"--via {wish.via}: say {MESSAGES} or {BATCHES}")
    if wish.via == MESSAGES:
        return False
    able = hasattr(model, "batches") if model is not None else wish.row.batches
    if not able:
        name = "the given model" if model is not None else wish.row.name
        raise SetupError(f"--via {BATCHES}: {name} takes no message batches; leave it out")
    return True


def _batch_note(route: Route) -> str:
    """What its user should know of the road of message batches: that it may take a day, and what it costs."""
    cost = f"; price: {route.price.source}" if route.price is not None and route.price.source else ""
    return f"by message batches, which may take up to a day{cost}"


def _given(model: Model, wish: ModelSpec) -> ResolvedRoute:
    route = Route(endpoint=model.endpoint, model=wish.model or "given", price=None)
    return ResolvedRoute(route, ConnectionSpec(endpoint=model.endpoint, given=lend(model)))


def _provider(wish: ModelSpec, limits: Limits, environ: Mapping[str, str], start: bool) -> ResolvedRoute:
    row = wish.row
    found = account(wish, environ, start=start)
    if row.by_model:
        credential, price, window = "", found.price, found.context_window or row.context_window
    else:
        if not wish.model:
            raise SetupError("no model: give --model NAME, or state it in every row")
        credential = found.credential.fingerprint if found.credential is not None else ""
        price, window = charged(wish, found)
    route = Route(
        endpoint=found.endpoint, model=found.model or wish.model, credential=credential, price=price,
        context_window=window,
    )  # fmt: skip
    arming = ConnectionSpec(
        endpoint=found.endpoint, provider=row.name, credential=found.credential, settings=found.settings,
        concurrency=row.concurrency_max or max(limits.concurrency, CONNECTIONS), timeouts=limits.timeout,
    )  # fmt: skip
    return ResolvedRoute(route, arming, found.notice, found.close, row.concurrency_max)


def remembered(places: Mapping[str, str]) -> ModelSpec:
    """The wish that a job's journal keeps."""
    return msgspec.json.decode(places.get("wish", "{}"), type=ModelSpec)


def remember(wish: ModelSpec) -> str:
    """Return a specification as a job keeps it."""
    return msgspec.json.encode(wish).decode()


__all__: list[Any] = [
    "ModelSpec",
    "ResolvedRoute",
    "SetupError",
    "destination",
    "endpoint_of",
    "remember",
    "remembered",
    "spec_at",
]  # fmt: skip
