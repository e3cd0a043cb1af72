"""Connection specifications of branches, and the factory that makes models from them.

A specification travels in a call and is kept by branches alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actors.ports.model import Model
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import RequestAuth
from actors.providers.registry import load, row_of


class ConnectionSpec(ClientSpec, frozen=True, kw_only=True):
    """What a model is made from: a client's specification, or a model object of this process. Holds a secret: it is
    never written to disk and no representation shows it."""

    given: int = 0
    """Number of a model object in this process, for one that the author gave; see ``lend``."""
    route_name: str = ""
    """Name of the route for the scheduler (``policies.failures.route_choice``), so that signals can name it."""
    pool_name: str = ""
    """Name for the scheduler of what the provider limits together there."""
    fallbacks: tuple[ConnectionSpec, ...] = ()
    """Specifications of the job's fallbacks and then of the routes of its roles, in their order."""

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
    """Return the specification without prepared requests: another Python names itself otherwise in its headers and
    makes the same connection."""
    arming = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    return encode(msgspec.structs.replace(arming, prepared=RequestAuth())) if arming.prepared else blob


def make_model(blob: bytes) -> Model:
    """Return the model of a specification's own route, made by the client of its provider."""
    arming = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    if arming.given:
        return _lent[arming.given]
    provider = arming.provider or (arming.credential.provider if arming.credential is not None else "")
    made: Model = load(row_of(provider).client)(arming)
    return made


async def with_prepared(arming: ConnectionSpec) -> ConnectionSpec:
    """Return the specification with the requests that clients can prepare ahead, for each of its routes. A client that
    cannot prepares none, and the branch says what is wrong."""
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
            prepared = await model.prepared() if hasattr(model, "prepared") else RequestAuth()
            return msgspec.structs.replace(arming, prepared=prepared)
        finally:
            await model.close()
    except Exception:
        return arming


ModelMaker = Callable[[bytes], Model]
