"""Secrets of the environment: taken once, and hidden from child processes and from messages."""

from __future__ import annotations

import os

from actors.cli.options.errors import never_show
from actors.providers.credentials.environment import hidden_in, keys_in, scrub


def taken_environ() -> dict[str, str]:
    """Return a copy of the environment, and remove the secrets from the environment of this process and its future
    children."""
    environ = dict(os.environ)
    keys = keys_in(environ)
    scrub(os.environ, *keys)
    for each in (*keys, *hidden_in(environ)):
        never_show(each)
    return environ
