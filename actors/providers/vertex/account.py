"""Credential for Google Vertex AI: Google's own search for credentials runs where the calls are made."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from actors.providers.credentials.account import (
    ProviderLocation,
    base_url_of,
    first_set,
    missing_word,
    platform_of,
)
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.registry import Provider


def credential(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the place of the account; it holds no secret. Raises CredentialError."""
    base_url = base_url_of(row, location, environ)
    if location.key_file:
        raise CredentialError(
            f"--api-key-file: {row.name} takes Google's credentials, no key: leave it out, and {row.how_to_open}"
        )
    region = location.region or first_set(environ, "CLOUD_ML_REGION", "GOOGLE_CLOUD_LOCATION")
    if not region:
        raise missing_word(row, "region", "global", "CLOUD_ML_REGION")
    project = location.project or first_set(environ, "ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
    if not project:
        raise missing_word(row, "project", "NAME", "ANTHROPIC_VERTEX_PROJECT_ID")
    account = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "").strip()
    if account and not os.path.isfile(os.path.expanduser(account)):
        raise CredentialError(f"GOOGLE_APPLICATION_CREDENTIALS: {account}: no such file")
    platform = msgspec.structs.replace(platform_of(row, location), region=region, project=project)
    return Credential.with_network(
        environ, headers_variable=row.headers_variable, base_url=base_url, platform=platform
    )
