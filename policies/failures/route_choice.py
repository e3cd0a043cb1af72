"""What is a route called, what does a provider limit together, and which route does the next call take?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from policies.failures.breaker import BreakerState

_FAMILIES: Final = re.compile(r"\b(opus|sonnet|haiku)\b")
_CLOUDS: Final = ("bedrock://", "vertex://")
_RELEASE: Final = re.compile(r"[-@:](?:\d{6,8}|latest|v\d+(?::\d+)?)$")


def model_class(model: str) -> str:
    """The class of models that share one rate limit.

    The provider limits its models by family (https://docs.claude.com/en/api/rate-limits): names of one family are one
    class. Of any other name the date or alias of the release is left out.
    """
    found = _FAMILIES.search(model.lower())
    return found.group(1) if found else _RELEASE.sub("", model)


def route_name(endpoint: str, credential: str, model: str) -> str:
    """A route's name: endpoint, credential (a fingerprint) and model."""
    return f"{endpoint}|{credential}|{model}"


def pool_name(endpoint: str, credential: str, model: str) -> str:
    """The name of the pool that a route draws on: endpoint, credential and model class.

    Bedrock and Vertex AI count each model for itself, whatever its family
    (https://docs.aws.amazon.com/bedrock/latest/userguide/quotas.html).
    """
    alone = endpoint.startswith(_CLOUDS)
    return f"{endpoint}|{credential}|{_RELEASE.sub('', model) if alone else model_class(model)}"


class Choice(msgspec.Struct, frozen=True):
    """Which of a job's routes, by their places in its order of preference, are used now."""

    share: int | None
    """The one that gets the job's share; None: its work waits."""
    probed: tuple[int, ...] = ()
    """Those before it that get a probe, where one is wanted."""


def choose(states: Sequence[BreakerState]) -> Choice:
    """The first route whose breaker is closed; half open ones before it are probed, open ones passed over."""
    probed: list[int] = []
    for place, state in enumerate(states):
        if state is BreakerState.CLOSED:
            return Choice(place, tuple(probed))
        if state is BreakerState.HALF_OPEN:
            probed.append(place)
    return Choice(None, tuple(probed))
