"""What a branch is armed with: where calls go and what opens it. Travels in a call, is kept by branches alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actors.ports.model import Model
from actors.providers.credentials.credential import Credential, RequestAuth
from actors.simulator.settings import SimulatorSettings
from policies.failures.timeout import TimeoutPolicy


class ConnectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes a model. Holds a secret: never written, never shown."""

    endpoint: str
    credential: Credential | None = None
    simulated: SimulatorSettings | None = None
    given: int = 0
    """Number of a model object in this process, for one that the author gave; see ``lend``."""
    route_name: str = ""
    """What the cortex calls the route that this opens (``policies.failures.route_choice``), so that signals can name
    it."""
    pool_name: str = ""
    """What the cortex calls what the provider limits together there."""
    fallbacks: tuple[ConnectionSpec, ...] = ()
    """What opens the job's fallbacks and then the routes of its roles, in their order."""
    concurrency: int = 100
    timeouts: TimeoutPolicy = TimeoutPolicy()
    prepared: RequestAuth = RequestAuth()
    """What the SDK sends with each request: whoever is armed with it need not import the SDK."""

    def __repr__(self) -> str:
        return f"Arming({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("endpoint", self.endpoint)]


_lent: dict[int, Model] = {}


def lend(model: Model) -> int:
    """Make an author's own model object reachable for branches of this process."""
    _lent[id(model)] = model
    return id(model)


def encode(arming: ConnectionSpec) -> bytes:
    """An arming as it travels."""
    return msgspec.msgpack.encode(arming)


def routes_of(blob: bytes) -> tuple[tuple[str, str, bytes], ...]:
    """(route name, pool name, what makes its model) of each route that an arming opens: the job's own, then the others.

    A call names its route by the place here.
    """
    own = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    alone = (msgspec.structs.replace(own, fallbacks=()), *own.fallbacks)
    return tuple((each.route_name, each.pool_name, encode(each)) for each in alone)


def what_opens(blob: bytes) -> bytes:
    """The same, whoever prepared it: another Python says another name of itself, and opens the same door."""
    arming = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    return encode(msgspec.structs.replace(arming, prepared=RequestAuth())) if arming.prepared else blob


def make_model(blob: bytes) -> Model:
    """The model that an arming describes, that of its own route."""
    arming = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    if arming.given:
        return _lent[arming.given]
    if arming.simulated is not None:
        from actors.simulator.frontends.in_memory import SimulatedModel

        return SimulatedModel(arming.simulated)
    from actors.providers.messages.client import AnthropicModel

    assert arming.credential is not None, "an arming is for a simulated model or has a credential"
    return AnthropicModel(
        arming.credential, endpoint=arming.endpoint, concurrency=arming.concurrency, timeouts=arming.timeouts,
        prepared=arming.prepared,
    )  # fmt: skip


async def with_prepared(arming: ConnectionSpec) -> ConnectionSpec:
    """The same, with what the SDK sends by each of its routes. What cannot be told here, whoever is armed will say."""
    own, *others = [
        await _with_prepared(each) for each in (msgspec.structs.replace(arming, fallbacks=()), *arming.fallbacks)
    ]
    return msgspec.structs.replace(own, fallbacks=tuple(others))


async def _with_prepared(arming: ConnectionSpec) -> ConnectionSpec:
    if arming.credential is None:
        return arming
    try:
        model: Any = make_model(encode(arming))
        try:
            return msgspec.structs.replace(arming, prepared=await model.prepared())
        finally:
            await model.close()
    except Exception:
        return arming


ModelMaker = Callable[[bytes], Model]
