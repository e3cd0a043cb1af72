"""Resolution of models: from the specification that a user gives to routes and their connections.

A job has a route of its own, perhaps further servers of the same model, fallbacks to which its work moves while that
route's breaker is open, and routes of its roles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from actors.ports.model import Model
from actors.providers.messages.output_limits import output_tokens_max
from actors.providers.pools import pool_of
from actors.providers.pricing import is_of_another
from actors.providers.registry import SIMULATED, has_structured, is_own_server
from actors.routing.endpoints import account, charged, endpoint_of, priced_as, refuse_apart, whereto
from actors.routing.model_factory import ConnectionSpec, lend
from actors.routing.model_spec import ModelSpec, SetupError, spec_at, spread
from actors.routing.own_server import METRICS_OPTION, at_server
from cortex.values.limits import BATCHES, MESSAGES, Limits, Route
from policies.estimates.price import PRICE_FORM, Price, batch_price, parse_price
from policies.failures.route_choice import route_name

CONNECTIONS = 1_000
"""Most connections of a branch. They are opened as permits are used, and a job's bound may be raised during a run."""


class ResolvedRoute(msgspec.Struct, frozen=True):
    """Route with its connection, and a function that closes what was started for it."""

    route: Route
    connection: ConnectionSpec
    notice: str = ""
    """Notice for the user, in one line; empty: none."""
    close: Callable[[], None] = lambda: None
    concurrency_max: int | None = None
    """Most calls at once, None: no bound. More would wait for a connection until that counts as a failure."""
    fallbacks: tuple[Route, ...] = ()
    """Routes to which work moves, in this order; ``connection.fallbacks`` has their connections."""
    role_routes: tuple[Route, ...] = ()
    """Routes of roles that the job's own model does not have; their connections are the last of
    ``connection.fallbacks``."""
    roles: dict[str, int] = msgspec.field(default_factory=dict)
    """Lane of each role, as in ``JobTerms``."""
    narrow: dict[str, int] = msgspec.field(default_factory=dict)
    """Most calls at once of pools of other routes, by the pool's name."""
    peers: int = 0
    """Number of leading fallbacks that are further servers of the job's own model, as in ``JobTerms``."""
    closed: tuple[str, ...] = ()
    """Endpoints among these servers that get no calls, as in ``JobTerms``."""


def structured_lanes(found: ResolvedRoute) -> tuple[int, ...]:
    """Return the lanes whose routes, fallbacks included, all have structured outputs. A model object has none."""
    routes = (found.route, *found.fallbacks, *found.role_routes)
    connections = (found.connection, *found.connection.fallbacks)
    able = [
        not connection.given and has_structured(connection.provider, route.endpoint, route.model)
        for route, connection in zip(routes, connections, strict=False)
    ]
    own = 1 + len(found.fallbacks)
    return tuple(lane for lane, each in enumerate([all(able[:own]), *able[own:]]) if each)


def destination(
    spec: ModelSpec, limits: Limits, environ: Mapping[str, str], model: Model | None = None,
    others: Sequence[Model | None] = (), players: Mapping[str, Model] | None = None, *, start: bool = True,
) -> ResolvedRoute:  # fmt: skip
    """Resolve a model's specification, its fallbacks and its roles.

    ``model``, ``others`` for the fallbacks and ``players`` for the roles are model objects of the user's. ``start``:
    False starts no server, for what is only planned. Raises ``SetupError``: no key and no model, no price where a cap
    in money needs one, a fallback to a route that is named already.
    """
    spec = spread(spec)
    servers = len(spec.peers or ())
    given = [model, *[None] * servers, *others, *[None] * (len(spec.fallbacks) - len(others))]
    specs = list(zip((spec, *spec.further), given, strict=True))
    _refuse_servers(spec, model)
    _refuse_loop(specs, environ, servers)
    cast = RoleAssignment(spec, model, environ, players or {})
    found: list[ResolvedRoute] = []
    try:
        for place, (each, object_) in enumerate(specs):
            option = f"--fallback {each.model}" if place > servers else ""
            found.append(_one(each, limits, environ, object_, option, start))
        for role, each, object_ in cast.own:
            found.append(_one(each, limits, environ, object_, f"--role {role}={each.model}", start))
    except BaseException:
        _close_all(found)
        raise
    own, *rest = found
    lines = [own.notice, *(f"{role}: {each.notice}" for (role, _, _), each in _role_notes(cast, rest, own.notice))]
    routes = tuple(each.route for each in rest)
    return ResolvedRoute(
        route=own.route, connection=msgspec.structs.replace(own.connection,
        fallbacks=tuple(each.connection for each in rest)),
        notice="; ".join(filter(None, lines)), close=lambda: _close_all(found),
        concurrency_max=own.concurrency_max if not cast.own else None,
        fallbacks=routes[: len(spec.further)], role_routes=routes[len(spec.further) :], roles=cast.roles,
        peers=servers,
        narrow={each.connection.pool_name: each.concurrency_max for each in (found if cast.own else rest)
                if each.concurrency_max is not None},
    )  # fmt: skip


def _role_notes(cast: RoleAssignment, rest: list[ResolvedRoute], text: str) -> list[tuple[Player, ResolvedRoute]]:
    """Return the roles whose model has a notice other than the job's own."""
    pairs = zip(cast.own, rest[len(rest) - len(cast.own) :], strict=True)
    return [(player, each) for player, each in pairs if each.notice and each.notice != text]


def _close_all(found: list[ResolvedRoute]) -> None:
    for each in found:
        each.close()


def _refuse_servers(spec: ModelSpec, model: Model | None) -> None:
    """Raise ``SetupError`` where several servers are named for a model that is not asked at servers."""
    if not spec.peers:
        return
    if model is not None:
        raise SetupError("a model object is asked itself: leave the addresses of servers out")
    if spec.via == BATCHES:
        raise SetupError(f"--via {BATCHES}: a message batch goes to one server: give --base-url once")


def _refuse_loop(
    specs: Sequence[tuple[ModelSpec, Model | None]], environ: Mapping[str, str], servers: int = 0
) -> None:
    """Raise ``SetupError`` where one route is named twice, however its endpoint is spelled, before anything is
    opened. ``servers``: the number of further servers of the job's own model among them."""
    seen: dict[tuple[str, str], str] = {}
    for place, (spec, model) in enumerate(specs):
        if not place and spec.dns:
            continue  # the name is asked no call, and may be that of this machine
        key = _whereto(spec, model, environ)
        text = f"{spec.model or 'the given model'}{f' at {spec.base_url}' if spec.base_url else ''}"
        if key in seen:
            more = "" if seen[key] == text else f" ({seen[key]} is the same)"
            if place <= servers:
                raise SetupError(f"--base-url {spec.base_url}: this server is named twice{more}: name it once")
            raise SetupError(f"--fallback {text}: this route is named twice{more}: a fallback must lead elsewhere")
        seen[key] = text


Player = tuple[str, ModelSpec, Model | None]
"""Role, the specification of its model, and the model object where the user gave one."""


class RoleAssignment:
    """Assignment of roles to routes. Raises ``SetupError`` where two prices are named for one route.

    ``roles``: the lane of each role, as in ``JobTerms``. ``own``: routes that only roles use, each with the first of
    its roles.
    """

    def __init__(
        self, spec: ModelSpec, model: Model | None, environ: Mapping[str, str], players: Mapping[str, Model]
    ) -> None:  # fmt: skip
        self.roles: dict[str, int] = {}
        self.own: list[Player] = []
        lanes = {_whereto(spec, model, environ): 0}
        specs = [spec]
        for role, found in spec.roles.items():
            player = players.get(role)
            each = found
            key = _whereto(each, player, environ)
            if key not in lanes:
                lanes[key] = len(specs)
                specs.append(each)
                self.own.append((role, each, player))
            elif each.price not in ("", specs[lanes[key]].price):
                whose = f"--role {self.own[lanes[key] - 1][0]}" if lanes[key] else "--model"
                raise SetupError(f"--role {role}={each.model}: {whose} names it without this price: give both the same")
            self.roles[role] = lanes[key]


def _whereto(spec: ModelSpec, model: Model | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return endpoint and model of a specification. A machine with several names has one endpoint."""
    if model is not None:
        return model.endpoint, spec.model or "given"
    return whereto(spec, environ), spec.model


def _one(
    spec: ModelSpec, limits: Limits, environ: Mapping[str, str], model: Model | None, option: str, start: bool
) -> ResolvedRoute:
    """Resolve one route, with its names and its price. ``option`` named it; empty for the job's own."""
    try:
        price = parse_price(spec.price) if spec.price else None
    except ValueError as error:
        raise SetupError(f"{option or '--price'}: {error}") from None
    if model is None:
        refuse_apart(spec)
    batched = _batched(spec, model)
    found = _given(model, spec) if model is not None else _provider(spec, limits, environ, start)
    if price is None and spec.price_as:
        price = priced_as(msgspec.structs.replace(spec, via=MESSAGES))[0]
    elif spec.price_as:
        priced_as(spec)
    route = found.route if price is None else msgspec.structs.replace(found.route, price=price)
    if batched:
        price = batch_price(price) if price is not None else route.price  # the price data has the price of batches
        route = msgspec.structs.replace(route, via=BATCHES, price=price)
    if limits.max_cost_nusd is not None and route.price is None:
        found.close()
        how = f"{option},input=3,output=15" if option else f"--price, {PRICE_FORM}"
        how += f", or {f'{option},price-as=MODEL' if option else '--price-as MODEL'} for a model that costs as much"
        if spec.row.name == SIMULATED and not option:
            how = f"--price, {PRICE_FORM}, or --price-as with the model that it rehearses"
        raise SetupError(f"no price known for {route.model!r}, so --max-cost cannot hold: give {how}")
    if limits.output_tokens_max >= route.context_window:
        found.close()
        window = f"the window of {route.model!r} ({route.context_window} tokens)"
        raise SetupError(f"replies of {limits.output_tokens_max} tokens leave no room for a prompt in {window}")
    name = (route.endpoint, route.credential, route.model)
    connection = msgspec.structs.replace(found.connection, route_name=route_name(*name), pool_name=pool_of(*name))
    notice = "; ".join(filter(None, (found.notice, _batch_note(route) if batched else "")))
    return msgspec.structs.replace(found, route=route, connection=connection, notice=notice)


def _batched(spec: ModelSpec, model: Model | None) -> bool:
    """Return whether calls go out in message batches. Raises ``SetupError`` where the provider has none."""
    if spec.via not in (MESSAGES, BATCHES):
        raise SetupError(f"--via {spec.via}: say {MESSAGES} or {BATCHES}")
    if spec.via == MESSAGES:
        return False
    able = hasattr(model, "batches") if model is not None else spec.row.batches
    if not able:
        name = "the given model" if model is not None else spec.row.name
        raise SetupError(f"--via {BATCHES}: {name} takes no message batches; leave it out")
    return True


def _batch_note(route: Route) -> str:
    """Return the notice on message batches: that they may take a day, and what they cost."""
    cost = f"; price: {route.price.source}" if route.price is not None and route.price.source else ""
    return f"by message batches, which may take up to a day{cost}"


def _price_note(price: Price) -> str:
    """Return the notice on a price that was found by the model's name or the address, and may not hold."""
    rates = f"${price.input_usd_per_mtok.normalize():f} in, ${price.output_usd_per_mtok.normalize():f} out"
    return f"priced at {rates} per million tokens ({price.source}): --price sets another, input=0,output=0 for none"


def _given(model: Model, spec: ModelSpec) -> ResolvedRoute:
    route = Route(endpoint=model.endpoint, model=spec.model or "given", price=None)
    return ResolvedRoute(route, ConnectionSpec(endpoint=model.endpoint, given=lend(model)))


def _provider(spec: ModelSpec, limits: Limits, environ: Mapping[str, str], start: bool) -> ResolvedRoute:
    row = spec.row
    found = account(spec, environ, start=start)
    if row.by_model:
        credential, price, window = "", found.price, found.context_window or row.context_window
    else:
        if not spec.model:
            raise SetupError("no model: give --model NAME, or state it in every row")
        credential = found.credential.fingerprint if found.credential is not None else ""
        price, window = charged(spec, found)
    route = Route(
        endpoint=found.endpoint, model=found.model or spec.model, credential=credential, price=price,
        context_window=window, output_tokens_max=output_tokens_max(found.model or spec.model),
    )  # fmt: skip
    notice = found.notice
    if price is not None and not (spec.price or spec.price_as) and is_of_another(price, row):
        notice = _price_note(price)
    if spec.metrics_from and not is_own_server(found.endpoint):
        found.close()
        raise SetupError(f"{METRICS_OPTION}: {found.endpoint} is no server of your own: leave it out")
    limits = at_server(limits, found.endpoint, given=False)
    connection = ConnectionSpec(
        endpoint=found.endpoint, provider=row.name, credential=found.credential, settings=found.settings,
        concurrency=row.concurrency_max or max(limits.concurrency, CONNECTIONS), timeouts=limits.timeout,
        metrics_from=spec.metrics_from or (),
    )  # fmt: skip
    return ResolvedRoute(route, connection, notice, found.close, row.concurrency_max)


def remembered(places: Mapping[str, str]) -> ModelSpec:
    """Return the specification that a job's journal keeps."""
    return msgspec.json.decode(places.get("wish", "{}"), type=ModelSpec)


def remember(spec: ModelSpec) -> str:
    """Return a specification as a job keeps it."""
    return msgspec.json.encode(spec).decode()


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
