"""Ways in which a key or a token is sent, and addresses that hold the place of an account."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from actors.providers.credentials.credential import CloudPlatform
from actors.providers.registry import Reference


class KeyDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Way in which one provider is asked: the type of ``Provider.dialect`` for clients of ``KeyedModel``."""

    key_header: str = "Authorization"
    """Header of the key; ``Authorization`` holds it as a bearer token."""
    address: Callable[[CloudPlatform], str] | None = None
    """Function that makes the address from the account's place; None: it is that of the row."""
    tokens: Reference = ""
    """Function ``(credential) -> TokenSource`` for accounts without a key, whose tokens are sent as bearer tokens;
    empty: there are none."""

    def key_value(self, key: str) -> str:
        """Return the header's value."""
        return f"Bearer {key}" if self.key_header == "Authorization" else key


DEFAULT: Final = KeyDialect()
AZURE_KEY_HEADER: Final = "api-key"
ENTRA_TOKENS: Final = "actors.providers.credentials.entra_tokens:tokens"
GOOGLE_TOKENS: Final = "actors.providers.credentials.google_tokens:tokens"


def azure_address(place: CloudPlatform) -> str:
    """Return the address of a resource: that of the next-generation API, which needs no version of its own
    (https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""
    return f"https://{place.resource}.openai.azure.com/openai/v1"


def vertex_address(place: CloudPlatform) -> str:
    """Return the address of Gemini's chat completions in a project
    (https://cloud.google.com/vertex-ai/generative-ai/docs/start/openai)."""
    host = "aiplatform" if place.region == "global" else f"{place.region}-aiplatform"
    project = f"projects/{place.project}/locations/{place.region}"
    return f"https://{host}.googleapis.com/v1/{project}/endpoints/openapi"


AZURE: Final = KeyDialect(key_header=AZURE_KEY_HEADER, address=azure_address, tokens=ENTRA_TOKENS)
