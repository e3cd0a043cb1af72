"""Change of the servers that share the work of a running job: some are added, some are taken out.

Calls on their way name a route by its place, at the job and at the branches. So a server keeps its place as long as the
job runs: further ones come after all that there are, and one that is taken out stays, closed. What has no places to
spare, a job with fallbacks, roles or shards, takes other servers between two runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from actors.providers.credentials.credential import Credential
from actors.providers.registry import address_in
from actors.routing.api_detection import with_apis
from actors.routing.model_factory import ConnectionSpec
from actors.routing.model_spec import ModelSpec, SetupError
from actors.routing.routes import destination, remember
from cortex.values.limits import BATCHES, JobTerms, Route

SERVERS_MAX: Final = 1_000
"""Most servers that a job may have in a run, those that were taken out included: each call looks through them."""


class JobServers:
    """Servers of one running job. ``spec``: the model as its user gave it; ``terms`` and ``connection``: those of the
    run; ``schemas``: result of ``api_detection.wants_schemas`` for its program."""

    def __init__(
        self, spec: ModelSpec, terms: JobTerms, connection: ConnectionSpec, environ: Mapping[str, str],
        schemas: bool | None = True,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._environ, self._schemas = environ, schemas
        self.terms = terms
        self.connection = connection

    async def change(self, addresses: Sequence[str]) -> str:
        """Take these addresses in place of the present ones: ``terms`` and ``connection`` are then those with them.

        Return the specification for the job's next run, encoded, in which the first server stays the first; servers
        found under a name are not in it, since the name is looked up again. Raises ``SetupError``, with nothing
        changed.
        """
        refuse_servers(self.terms)
        addresses = [each.rstrip("/") for each in addresses]
        there = [each.rstrip("/") for each in self._spec.servers]
        spec = self._spec.at_servers([*there, *addresses])
        if len(spec.servers) > SERVERS_MAX:
            raise SetupError(f"a job has at most {SERVERS_MAX:,} servers in a run: drain it, and resume it with others")
        known = [route.endpoint for route in self.terms.routes]
        detected, _ = await with_apis(spec, self._environ, known, schemas=self._schemas)
        found = destination(detected, self.terms.limits, self._environ)
        routes = (found.route, *found.fallbacks)
        if [route.endpoint for route in routes[: len(known)]] != known:
            raise SetupError("the addresses of this job lead elsewhere now: drain it and resume it with the new ones")
        named = spec.servers
        closed = tuple(route.endpoint for route, url in zip(routes, named, strict=True) if url not in addresses)
        self.terms = msgspec.structs.replace(
            self.terms, fallbacks=found.fallbacks, peers=found.peers, closed=closed
        )  # fmt: skip
        self.connection, self._spec = found.connection, spec
        kept = () if spec.dns else (url for url in named if url in addresses)
        return remember(spec.at_servers([named[0], *kept]))

    def credentials(self) -> list[Credential]:
        """Return the credentials in use, so that nothing shows them."""
        connections = (self.connection, *self.connection.fallbacks)
        return [each.credential for each in connections if each.credential is not None]


def at_their_places(
    job: str, terms: JobTerms, connection: ConnectionSpec, now: JobTerms, further: bool = False
) -> tuple[JobTerms, ConnectionSpec]:  # fmt: skip
    """Return terms and connections of a run that attaches to a job, in the order of the job's routes.

    Branches find a connection by its place. ``now``: the job's terms, with servers that were taken out since it began;
    no call goes there, so the connection of the job's own route stands in their places. ``further``: the run may have
    servers behind those of the job, which it adds later. Raises ``SetupError`` where the run's routes are others than
    the job's.
    """
    named, wanted = list(map(_route_name, terms.routes)), list(map(_route_name, now.routes))
    if named == wanted or (further and named[: len(wanted)] == wanted):
        return msgspec.structs.replace(terms, closed=now.closed), connection
    alone = msgspec.structs.replace(connection, fallbacks=())
    given = dict(zip(named, (alone, *connection.fallbacks), strict=True))
    missing = [route for place, route in enumerate(wanted) if route not in given and not now.is_closed(place)]
    unknown = [] if further else [route for route in named if route not in wanted]
    if other := missing + unknown:
        raise SetupError(
            f"{job} runs, and not with {other[0][0]} as this command has it: attach to it without addresses, fallbacks"
            f" and roles; cortex set {job} --base-url changes its servers"
        )
    placed = [given.get(route, alone) for route in wanted]
    terms = msgspec.structs.replace(
        terms, route=now.route, fallbacks=now.fallbacks, role_routes=now.role_routes, peers=now.peers,
        closed=now.closed,
    )  # fmt: skip
    return terms, msgspec.structs.replace(placed[0], fallbacks=tuple(placed[1:]))


def spec_at_their_places(spec: ModelSpec, given: JobTerms, placed: JobTerms) -> ModelSpec:
    """Return a specification whose servers are in the order of the job's routes, those that were taken out included.

    ``given``: terms that the specification led to; ``placed``: what ``at_their_places`` made of them.
    """
    if given.routes == placed.routes or spec.dns or not spec.base_url or len(placed.fallbacks) > placed.peers:
        return spec
    urls = dict(zip((route.endpoint for route in given.routes), spec.servers, strict=False))
    return spec.at_servers([urls.get(each.endpoint) or address_in(each.endpoint) for each in placed.routes])


def _route_name(route: Route) -> tuple[str, str, str]:
    return route.endpoint, route.model, route.via


def refuse_servers(terms: JobTerms) -> None:
    """Raise ``SetupError`` for a job that takes other servers between two runs only."""
    what = ""
    if len(terms.fallbacks) > terms.peers:
        what = "fallbacks"
    elif terms.role_routes:
        what = "roles of other models"
    elif terms.route.via == BATCHES:
        what = "message batches"
    elif terms.program.startswith("shards"):
        what = "shards"
    if what:
        raise SetupError(f"a job with {what} takes other servers between two runs: drain it, and resume it with them")
