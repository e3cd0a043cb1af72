"""Names of routes and pools, and choice of the route for the next call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from policies.failures.breaker import BreakerState

_FAMILIES: Final = re.compile(r"\b(opus|sonnet|haiku)\b")
_RELEASE: Final = re.compile(r"[-@:](?:\d{6,8}|latest|v\d+(?::\d+)?)$")


def model_class(model: str) -> str:
    """Return the class of models that share one rate limit.

    The provider limits its models by family (https://docs.claude.com/en/api/rate-limits): all names of one family are
    one class. From any other name the date or alias of the release is removed.
    """
    found = _FAMILIES.search(model.lower())
    return found.group(1) if found else _RELEASE.sub("", model)


def route_name(endpoint: str, credential: str, model: str) -> str:
    """Return a route's name: endpoint, credential (a fingerprint) and model."""
    return f"{endpoint}|{credential}|{model}"


def pool_name(endpoint: str, credential: str, model: str, *, each_model: bool = False) -> str:
    """Return the name of the pool that a route draws on: endpoint, credential and model class.

    ``each_model``: True for a provider that limits each model by itself, whatever its family, as Bedrock and Vertex AI
    do (https://docs.aws.amazon.com/bedrock/latest/userguide/quotas.html).
    """
    return f"{endpoint}|{credential}|{_RELEASE.sub('', model) if each_model else model_class(model)}"


class RouteChoice(msgspec.Struct, frozen=True):
    """Routes of a job that are used now, as positions in the job's order of preference."""

    share: int | None
    """Route that gets the job's share; None: the job's work waits."""
    probed: tuple[int, ...] = ()
    """Earlier routes that get a probe, if one is wanted."""
    shared: tuple[int, ...] = ()
    """Routes of equal rank among which the share is divided, `share` included; empty: it is not divided."""


def choose(states: Sequence[BreakerState], peers: int = 0) -> RouteChoice:
    """Choose the first route with a closed breaker; half-open routes before it are probed, open ones skipped.

    `peers`: the number of routes after the first that rank equal with it. All of these with a closed breaker share the
    work, and all half-open ones are probed; routes after them are used if none is closed.
    """
    probed: list[int] = []
    if peers:
        lead = list(enumerate(states[: 1 + peers]))
        closed = tuple(place for place, state in lead if state is BreakerState.CLOSED)
        if closed:
            half_open = tuple(place for place, state in lead if state is BreakerState.HALF_OPEN)
            return RouteChoice(closed[0], half_open, closed)
    for place, state in enumerate(states):
        if state is BreakerState.CLOSED:
            return RouteChoice(place, tuple(probed))
        if state is BreakerState.HALF_OPEN:
            probed.append(place)
    return RouteChoice(None, tuple(probed))
