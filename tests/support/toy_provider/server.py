"""Server of the made-up provider on this machine, in its own thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.edge.support.cloud_server import served
from tests.edge.support.scripted_http_server import Answer, Asked, Scripted, http

KEY = "made-up-key-of-toy-0123456789"
LIMITS = "requests=600;left=590;back=1s, units=40000;left=39000;back=1m6s"


def answer(asked: Asked, **headers: str) -> Answer:
    """Return the server's answer to a valid request."""
    if asked.headers.get("x-toy-key") != KEY:
        return fault(401, "bad-key", f"{asked.headers.get('x-toy-key')} is no key of ours")
    if asked.target == "/count":
        return http(b"7")
    output = asked.json
    body: dict[str, Any] = {
        "said": "bug", "why": "done", "engine": output["engine"], "units": {"taken": 12, "cached": 5, "given": 1},
    }  # fmt: skip
    return http(body, **{"x_toy_limits": LIMITS, **headers})


def fault(status: int, slug: str, text: str, **headers: str) -> Answer:
    """Return an error in the provider's form."""
    return http(json.dumps({"fault": {"slug": slug, "text": text}}).encode(), status, **headers)


def serving(script: Callable[[Asked], Answer] = answer) -> AbstractContextManager[Scripted]:
    """Run the server until the block ends."""
    return served(script)
