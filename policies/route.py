"""What is a route called, and what does a provider limit together?"""

from __future__ import annotations

import re
from typing import Final

_FAMILIES: Final = re.compile(r"\b(opus|sonnet|haiku)\b")
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
    """The name of the pool that a route draws on: endpoint, credential and model class."""
    return f"{endpoint}|{credential}|{model_class(model)}"
