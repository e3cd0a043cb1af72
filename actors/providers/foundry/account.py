"""Credential for Microsoft Foundry: an API key, and a resource or an address."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.providers.credentials.account import ProviderLocation, by_key, missing_key, missing_word
from actors.providers.credentials.credential import Credential, CredentialError
from actors.providers.registry import Provider


def credential(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential. Raises CredentialError: no resource and no address, both of them, or no key."""
    found = by_key(row, location, environ, required=False)
    resource = location.resource
    if not resource and not found.base_url:
        resource = environ.get("ANTHROPIC_FOUNDRY_RESOURCE", "").strip()
    if resource and found.base_url:
        raise CredentialError(
            f"--provider {row.name}: resource={resource} and an address: a resource has an address of its own; give one"
        )
    if not resource and not found.base_url:
        raise missing_word(row, "resource", "NAME", "ANTHROPIC_FOUNDRY_RESOURCE")
    if required and not found.api_key:
        raise missing_key(row, location)
    assert found.platform is not None, "the credential of a provider but the default one names it"
    return msgspec.structs.replace(found, platform=msgspec.structs.replace(found.platform, resource=resource))
