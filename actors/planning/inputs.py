"""What a plan needs from outside: prices by both roads, limits set by hand, the account's own, and a sample's job."""

from __future__ import annotations

import random
from collections.abc import Mapping
from hashlib import sha256
from typing import TypeVar

import msgspec

from actors.files.sources.row_source import InputCheck
from actors.jobs.spec import JobSpec
from actors.journal.journal import StateFolder
from actors.limits import overrides
from actors.planning.sample_job import ReportedLimits
from actors.providers.pools import pool_of
from actors.providers.registry import of_endpoint, stand_in_keys
from actors.routing.routes import ModelSpec, SetupError, destination, remember
from cortex.values.limits import BATCHES, MESSAGES, Limits, Route
from policies.estimates import duration
from policies.estimates.strata import Stratum, drawn
from policies.limits.limit import NO_CAPS, PoolCaps

SAMPLE = "sample"
"""The kind of a sample's job, among its places."""
NO_KEY = "none"
"""Key of a plan where the user gives none. It is never sent: a plan asks nothing, and a sample takes the user's."""
N = TypeVar("N", int, float)


class TransportRoutes(msgspec.Struct, frozen=True):
    """The route by each road; None where the model takes no message batches."""

    now: Route
    batches: Route | None


def routes(spec: ModelSpec, limits: Limits, environ: Mapping[str, str]) -> TransportRoutes:
    """Where calls would go, and at what price. Without a key, too: then nothing can be asked, but all can be counted.

    Raises ``SetupError`` as a job would.
    """
    batched: Route | None = None
    try:
        batched = _route(msgspec.structs.replace(spec, via=BATCHES), limits, environ)
    except SetupError:
        if spec.via == BATCHES:
            raise
    return TransportRoutes(_route(msgspec.structs.replace(spec, via=MESSAGES), limits, environ), batched)


def endpoint_to(spec: ModelSpec, environ: Mapping[str, str]) -> str:
    """The endpoint of a wish, by which remembered replies are known; the model need not be named yet."""
    return routes(msgspec.structs.replace(spec, model=spec.model or "any"), Limits(), environ).now.endpoint


def _route(spec: ModelSpec, limits: Limits, environ: Mapping[str, str]) -> Route:
    try:
        found = destination(spec, limits, environ, start=False)
    except SetupError:  # for want of a key, perhaps; any other error is raised once more
        found = destination(spec, limits, {**environ, **stand_in_keys(NO_KEY)}, start=False)
    found.close()
    return found.route


def limits_of(folder: StateFolder, route: Route, limits: Limits, received: ReportedLimits) -> duration.CallLimits:
    """All that will hold the job's calls back: its own bounds, the pool's by hand, and what the provider told."""
    name = pool_of(route.endpoint, route.credential, route.model)
    own = PoolCaps(
        concurrency=limits.concurrency, requests_per_min=limits.requests_per_min,
        input_tokens_per_min=limits.input_tokens_per_min, output_tokens_per_min=limits.output_tokens_per_min,
        headroom=limits.headroom,
    )  # fmt: skip
    each = (own, overrides.read(folder).get(name, NO_CAPS), received.caps, *_slots(route))
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


def _slots(route: Route) -> tuple[PoolCaps, ...]:
    most = of_endpoint(route.endpoint).concurrency_max
    return () if most is None else (PoolCaps(concurrency=most),)


def _least(values: list[N | None]) -> N | None:
    return min((each for each in values if each is not None), default=None)


# -- the sample ----------------------------------------------------------------------------------------------------


def seed_of(check: InputCheck) -> int:
    """The seed that a sample is drawn by: the input's own, so that the same rows are drawn of it each time."""
    return int(check.digest[:8], 16)


def strata_of(sizes: list[int], wanted: int, seed: int) -> tuple[Stratum, ...]:
    """The rows to ask."""
    return drawn(sizes, wanted, random.Random(seed).random)


def sample_order(order: JobSpec, check: InputCheck, wanted: int) -> JobSpec:
    """The job that asks a sample's rows, in single calls; its name is another for another input, model or sample.

    It keeps its text, for the job is to find the replies; and no deadline, for it is over long before. Only a quarter
    of it is asked at once: what the provider tells of its limits is heard while there is something left to ask.
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
        places={**order.places, "kind": SAMPLE, "of": order.named()},
    )  # fmt: skip
