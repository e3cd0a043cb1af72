"""The key, out of reach of whatever is started from here on."""

from __future__ import annotations

import os

from actors.cli.options.errors import never_show
from actors.providers.credentials.clouds import of_environ
from actors.providers.credentials.credential import Credential, CredentialError, scrub


def taken_environ() -> dict[str, str]:
    """The environment as it was. From now on this process, and each one that it starts, has it without secrets."""
    environ = dict(os.environ)
    try:
        credential = Credential.from_environ(environ)
    except CredentialError:
        credential = None  # whoever needs it will say what is wrong with it
    scrub(os.environ, credential)
    for each in (*([credential] if credential is not None else []), *of_environ(environ)):
        never_show(each)
    return environ
