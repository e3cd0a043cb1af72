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
    """Specification from which a model is made: a client's, or a model object of this process. Holds a secret: it is
    never written to disk and no representation shows it."""

    vectors: bool = False
    """True if the model is asked for embeddings."""
    given: int = 0
    """Number of a model object in this process, for one that the author gave; see ``lend``."""
    route_name: str = ""
    """Name of the route for the scheduler (``policies.failures.route_choice``), so that signals can name it."""
    pool_name: str = ""
    """Name for the scheduler of what the provider limits together there."""
    fallbacks: tuple[ConnectionSpec, ...] = ()
    """Specifications of the job's fallbacks and then of the routes of its roles, in their order."""

    def __repr__(self) -> str:
        return f"ConnectionSpec({self.endpoint})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("endpoint", self.endpoint)]


_lent: dict[int, Model] = {}


def lend(model: Model) -> int:
    """Make an author's own model object reachable for branches of this process."""
    _lent[id(model)] = model
    return id(model)


def encode(spec: ConnectionSpec) -> bytes:
    """Encode a specification for a message."""
    return msgspec.msgpack.encode(spec)


def routes_of(blob: bytes) -> tuple[tuple[str, str, bytes], ...]:
    """Return (route name, pool name, encoded specification) of each route: the job's own, then the others.

    A call names its route by its position here.
    """
    own = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    alone = (msgspec.structs.replace(own, fallbacks=()), *own.fallbacks)
    return tuple((each.route_name, each.pool_name, encode(each)) for each in alone)


def what_opens(blob: bytes) -> bytes:
    """Return the specification without prepared requests: another Python names itself otherwise in its headers and
    makes the same connection."""
    spec = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    return encode(msgspec.structs.replace(spec, prepared=RequestAuth())) if spec.prepared else blob


def make_model(blob: bytes) -> Model:
    """Return the model of a specification's own route, made by the client of its provider."""
    spec = msgspec.msgpack.decode(blob, type=ConnectionSpec)
    if spec.given:
        return _lent[spec.given]
    provider = spec.provider or (spec.credential.provider if spec.credential is not None else "")
    row = row_of(provider)
    made: Model = load(row.embeddings if spec.vectors else row.client)(spec)
    return made


async def with_prepared(spec: ConnectionSpec) -> ConnectionSpec:
    """Return the specification with the requests that clients can prepare ahead, for each of its routes. A client that
    cannot prepares none, and the branch says what is wrong."""
    own, *others = [
        await _with_prepared(each) for each in (msgspec.structs.replace(spec, fallbacks=()), *spec.fallbacks)
    ]
    return msgspec.structs.replace(own, fallbacks=tuple(others))


async def _with_prepared(spec: ConnectionSpec) -> ConnectionSpec:
    if spec.credential is None:
        return spec
    try:
        model: Any = make_model(encode(spec))
        try:
            prepared = await model.prepared() if hasattr(model, "prepared") else RequestAuth()
            return msgspec.structs.replace(spec, prepared=prepared)
        finally:
            await model.close()
    except Exception:
        return spec


ModelMaker = Callable[[bytes], Model]
