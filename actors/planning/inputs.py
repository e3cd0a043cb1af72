"""Inputs of a plan: prices of both transports, manual limits, limits of the account, and the sample's job."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

from actors.files.sources.row_source import InputCheck
from actors.jobs.spec import JobSpec
from actors.jobs.summary import UNREADABLE
from actors.journal.journal import StateFolder
from actors.limits import overrides
from actors.planning.sample_job import ReportedLimits
from actors.providers.pools import pool_of
from actors.providers.registry import of_endpoint, stand_in_keys
from actors.routing.embeddings import for_vectors, wants_vectors
from actors.routing.routes import ModelSpec, SetupError, destination, remember
from cortex.state.program import Program
from cortex.values.limits import BATCHES, MESSAGES, Limits, Route
from policies.estimates import duration
from policies.estimates.strata import Stratum, drawn
from policies.limits.limit import NO_CAPS, PoolCaps

SAMPLE = "sample"
"""Kind of a sample's job, among its places."""
NO_KEY = "none"
"""Placeholder for a missing key. The placeholder is never sent: only a sample makes calls, and a sample needs a real
key."""
N = TypeVar("N", int, float)


class TransportRoutes(msgspec.Struct, frozen=True):
    """Route of each transport; ``batches`` is None if the model has no message batches. ``servers``: all routes that
    share the work of single calls, ``now`` first."""

    now: Route
    batches: Route | None
    servers: tuple[Route, ...] = ()


def routes(
    spec: ModelSpec, limits: Limits, environ: Mapping[str, str], program: Program | None = None
) -> TransportRoutes:  # fmt: skip
    """Return the routes of the calls, with prices. Works without a key, since counting needs none. ``program``: of the
    job, where it asks for vectors.

    Raises ``SetupError`` like a job.
    """
    batched: Route | None = None
    if program is not None and wants_vectors(program):
        servers = _routes(spec, limits, environ, program)
        return TransportRoutes(servers[0], None, servers)
    try:
        batched = _routes(msgspec.structs.replace(spec, via=BATCHES), limits, environ)[0]  # not of several servers
    except SetupError:
        if spec.via == BATCHES:
            raise
    servers = _routes(msgspec.structs.replace(spec, via=MESSAGES), limits, environ)
    return TransportRoutes(servers[0], batched, servers)


def endpoint_to(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    """Return the endpoint of a model spec, by which reusable replies are found; the model may be empty."""
    return routes(msgspec.structs.replace(spec, model=spec.model or "any"), Limits(), environ).now.endpoint


def _routes(
    spec: ModelSpec, limits: Limits, environ: Mapping[str, str], program: Program | None = None
) -> tuple[Route, ...]:  # fmt: skip
    """Return the routes that share the work, the job's own first."""
    try:
        found = destination(spec, limits, environ, start=False)
    except SetupError:  # perhaps because of a missing key; any other error is raised again
        found = destination(spec, limits, {**environ, **stand_in_keys(NO_KEY)}, start=False)
    found.close()
    if program is not None:
        found = for_vectors(program, found)
    return (found.route, *found.fallbacks[: found.peers])


def limits_of(
    folder: StateFolder, servers: Sequence[Route], limits: Limits, received: ReportedLimits
) -> duration.CallLimits:
    """Return all limits on the job's calls: its own, manual ones on the pools of the servers that share the work, and
    those that these named; limits of several servers are added."""
    pools = [pool_of(route.endpoint, route.credential, route.model) for route in servers]
    set_by_hand = overrides.read(folder)
    by_hand = duration.caps_together([set_by_hand.get(name, NO_CAPS) for name in pools])
    own = PoolCaps(
        concurrency=limits.concurrency, requests_per_min=limits.requests_per_min,
        input_tokens_per_min=limits.input_tokens_per_min, output_tokens_per_min=limits.output_tokens_per_min,
        headroom=limits.headroom,
    )  # fmt: skip
    each = (own, by_hand, received.caps, duration.caps_together(list(map(_slots, servers))))
    return duration.CallLimits(
        requests=received.requests, input_tokens=received.input_tokens, output_tokens=received.output_tokens,
        caps=PoolCaps(
            concurrency=_least([one.concurrency for one in each]),
            requests_per_min=_least([one.requests_per_min for one in each]),
            input_tokens_per_min=_least([one.input_tokens_per_min for one in each]),
            output_tokens_per_min=_least([one.output_tokens_per_min for one in each]),
            headroom=max(one.headroom for one in each),
        ),
    )  # fmt: skip


def _slots(route: Route) -> PoolCaps:
    return PoolCaps(concurrency=of_endpoint(route.endpoint).concurrency_max)


def _least(values: list[N | None]) -> N | None:
    return min((each for each in values if each is not None), default=None)


# -- the sample ----------------------------------------------------------------------------------------------------


def seed_of(check: InputCheck) -> int:
    """Return the seed of a sample: a part of the input's digest, so that an input always gives the same rows."""
    return int(check.digest[:8], 16)


def strata_of(sizes: list[int], wanted: int, seed: int) -> tuple[Stratum, ...]:
    """Return the rows to ask, by strata of size."""
    return drawn(sizes, wanted, random.Random(seed).random)


def sample_order(order: JobSpec, check: InputCheck, wanted: int) -> JobSpec:
    """Return the spec of the sample's job, in single calls. The name depends on the input, the model and the sample's
    size.

    The job keeps its text, so that the planned job can reuse the replies, and has no deadline, since it is short. At
    most a quarter of the rows is asked at once, so that limits named by the provider arrive while rows are left.
    """
    spec = msgspec.structs.replace(order.model_spec, via=MESSAGES)
    parts = [check.digest, str(wanted), remember(spec), str(order.limits.output_tokens_max)]
    name = f"{order.named()[:75]}-sample-{sha256(chr(0).join(parts).encode()).hexdigest()[:8]}"
    return msgspec.structs.replace(
        order, job=name, model_spec=spec, input="", output="", keeps_text=True,
        limits=msgspec.structs.replace(
            order.limits, deadline_at_s=None, max_failed=None,
            concurrency=min(order.limits.concurrency, max(2, wanted // 4)),
        ),
        places={**order.places, "kind": SAMPLE, "of": order.named(), UNREADABLE: ""},
    )  # fmt: skip
