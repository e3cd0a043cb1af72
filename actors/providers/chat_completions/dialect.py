"""Differences between the providers that serve chat completions."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.providers.chat_completions.request import COMPLETION_BOUND, TOKENS_BOUND


class ChatDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Way in which one provider serves chat completions: the type of ``Provider.dialect`` for this client."""

    bound: str = TOKENS_BOUND
    """Field of the bound of a reply at the provider's own hosts. The other one is used once a server refuses this."""
    key_header: str = "Authorization"
    """Header of the key; ``Authorization`` holds it as a bearer token."""
    address: str = ""
    """Address with ``{}`` in place of the account's resource; empty: that of the row."""

    def key_value(self, key: str) -> str:
        """Return the header's value."""
        return f"Bearer {key}" if self.key_header == "Authorization" else key


DEFAULT: Final = ChatDialect()
OPENAI: Final = ChatDialect(bound=COMPLETION_BOUND)
AZURE: Final = ChatDialect(
    bound=COMPLETION_BOUND, key_header="api-key", address="https://{}.openai.azure.com/openai/v1"
)
"""The next-generation API, which needs no version of its own
(https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle)."""
