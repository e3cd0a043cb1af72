"""Ways in which a key is sent, and addresses that hold a resource."""

from __future__ import annotations

from typing import Final

import msgspec


class KeyDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Way in which one provider is asked: the type of ``Provider.dialect`` for clients of ``KeyedModel``."""

    key_header: str = "Authorization"
    """Header of the key; ``Authorization`` holds it as a bearer token."""
    address: str = ""
    """Address with ``{}`` in place of the account's resource; empty: that of the row."""

    def key_value(self, key: str) -> str:
        """Return the header's value."""
        return f"Bearer {key}" if self.key_header == "Authorization" else key


DEFAULT: Final = KeyDialect()
AZURE_ADDRESS: Final = "https://{}.openai.azure.com/openai/v1"
"""Address of the next-generation API, which needs no version of its own
(https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""
AZURE_KEY_HEADER: Final = "api-key"
AZURE: Final = KeyDialect(key_header=AZURE_KEY_HEADER, address=AZURE_ADDRESS)
