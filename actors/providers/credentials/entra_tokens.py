"""Tokens of Microsoft Entra ID for Azure OpenAI, by azure-identity: a role of the machine, ``az login``, a service
principal in AZURE_CLIENT_ID and so on.

``get_bearer_token_provider`` of that library hides when a token ends, and fetches the next one while a call waits; its
credential is asked here, which says both.
"""

from __future__ import annotations

from typing import Any, Final

from actors.providers.credentials.access_token import AccessToken, TokenSource
from actors.providers.credentials.credential import Credential

MODULE: Final = "azure.identity"
SCOPE: Final = "https://cognitiveservices.azure.com/.default"
"""https://learn.microsoft.com/azure/ai-foundry/openai/how-to/managed-identity"""


def tokens(credential: Credential) -> TokenSource:
    """Return the source of tokens for an account."""
    held: list[Any] = []

    def fetch() -> AccessToken:
        from azure.identity import DefaultAzureCredential

        if not held:
            held.append(DefaultAzureCredential())
        found = held[0].get_token(SCOPE)
        return AccessToken(found.token, float(found.expires_on))

    return fetch
