"""Credential for Anthropic, and for any server that speaks the Messages API."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.providers.credentials.account import ProviderLocation, by_key, may_lack_key, missing_key
from actors.providers.credentials.credential import Credential, sendable
from actors.providers.registry import DEFAULT, Provider, row_of

TOKEN: str = "ANTHROPIC_AUTH_TOKEN"


def credential(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential: a key (``by_key``), else the token in ANTHROPIC_AUTH_TOKEN, else a header of the user's
    that serves as a key. The key wins over the token where both are set, as in the SDK. A server of the user's own
    needs none of them. Raises CredentialError."""
    found = by_key(row, location, environ, required=False)
    token = sendable(TOKEN, environ.get(TOKEN, ""))
    found = msgspec.structs.replace(found, auth_token="" if found.api_key else token)
    if required and not found.has_key and not may_lack_key(row, found.base_url):
        raise missing_key(row, location)
    return found


def from_environ(environ: Mapping[str, str], file: str = "") -> Credential | None:
    """Return the credential that the environment gives, with the key in ``file`` where one is named; None where there
    is no key, no token and no header that is one. Raises CredentialError."""
    found = credential(row_of(DEFAULT), ProviderLocation(key_file=file), environ, required=False)
    return found if found.has_key else None
