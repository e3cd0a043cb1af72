"""Secrets of the environment: taken once, and hidden from child processes and from messages."""

from __future__ import annotations

import os

from actors.cli.options.errors import never_show
from actors.providers.credentials.clouds import of_environ
from actors.providers.credentials.credential import Credential, CredentialError, scrub


def taken_environ() -> dict[str, str]:
    """Return a copy of the environment, and remove the secrets from the environment of this process and its future
    children."""
    environ = dict(os.environ)
    try:
        credential = Credential.from_environ(environ)
    except CredentialError:
        credential = None  # reported later, by the code that needs it
    scrub(os.environ, credential)
    for each in (*([credential] if credential is not None else []), *of_environ(environ)):
        never_show(each)
    return environ
