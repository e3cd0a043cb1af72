"""Credentials of providers that serve chat completions and are opened by more than a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from actors.providers.credentials.account import ProviderLocation, by_key, missing_word
from actors.providers.credentials.credential import Credential, CredentialError, sendable
from actors.providers.credentials.entra_tokens import MODULE as ENTRA_MODULE
from actors.providers.registry import Provider, is_installed

_HEADERS: Final = {"OPENAI_ORG_ID": "OpenAI-Organization", "OPENAI_PROJECT_ID": "OpenAI-Project"}
"""Headers by the environment variables of the package `openai` that set them: who is billed."""


def openai(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential for OpenAI, or any server that serves chat completions: a key, and at OpenAI itself the
    organisation and the project. Raises CredentialError."""
    found = by_key(row, location, environ, required=required)
    if found.base_url:
        return found
    headers = tuple((header, sendable(name, value)) for name, header in _HEADERS.items()
                    if (value := environ.get(name, "").strip()))  # fmt: skip
    return msgspec.structs.replace(found, custom_headers=headers)


def azure(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential for Azure OpenAI: a resource or an address, and a key; without one, tokens of Microsoft
    Entra ID are fetched where calls are made. Raises CredentialError."""
    given = location.resource and not location.base_url.strip()
    if given:  # says where; the variable may be another resource's
        environ = {name: value for name, value in environ.items() if name != row.base_url_variable}
    found = by_key(row, location, environ, required=False)
    if location.resource and found.base_url:
        text = f"--provider {row.name}: resource={location.resource} and an address: a resource has one: give one"
        raise CredentialError(text)
    if not location.resource and not found.base_url:
        raise missing_word(row, "resource", "NAME", row.base_url_variable)
    if required and not found.api_key and not is_installed(ENTRA_MODULE):
        how = "pip install 'cortex-bounded-calls[entra]' for tokens of Microsoft Entra ID"
        raise CredentialError(f"--provider {row.name}: no key: set a good key in {row.key_variable}, or {how}")
    return found
