"""Checks of OpenAI, and of any server that serves its chat completions, for ``cortex doctor``."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.common.findings import Finding, warning
from actors.providers.chat_completions.client import COMPLETIONS, MODELS
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.entra_tokens import MODULE as ENTRA_MODULE
from actors.providers.health.api_checks import ApiChecks, LookAnswer
from actors.providers.registry import API_TITLES, CHAT_CLIENT, is_installed, load
from actors.providers.remedies import CHAT_ADDRESS

_NAMES_SHOWN: Final = 5


class ChatChecks(ApiChecks):
    """Checks that use the free call of the API, the list of models."""

    api = API_TITLES[CHAT_CLIENT]
    models_path = MODELS
    call_path = COMPLETIONS
    wrong_address = CHAT_ADDRESS

    def address(self, credential: Any) -> str:
        """Return the URL at which the provider is asked."""
        return str(self.client(credential).url)

    def takes_tokens(self, credential: Credential) -> bool:
        """Return True if calls without a key hold a token of Microsoft Entra ID."""
        dialect: Any = load(self.row.dialect) if self.row.dialect else None
        by_token = dialect is not None and bool(dialect.tokens) and not credential.api_key
        return by_token and is_installed(ENTRA_MODULE)

    async def model_finding(self, client: Any, address: str, models: LookAnswer) -> Finding:
        """Find whether the list of models has the model. Some lists are not whole: no error follows from it."""
        names = model_names(models[2])
        if self.model in names or f"models/{self.model}" in names:  # the latter at Gemini
            return self.priced(address)
        text = f"only a paid call can show whether {self.model} exists"
        if names:
            more = ", …" if len(names) > _NAMES_SHOWN else ""
            text += f": it is not in the list of models ({', '.join(names[:_NAMES_SHOWN])}{more})"
        return warning("model", text, "give --paid to make one call of one token")


def model_names(body: bytes) -> list[str]:
    """Return the names in a list of models: ``{"data": [{"id"}]}``, or a bare list (Together)."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    listed = found.get("data") if isinstance(found, dict) else found
    entries = listed if isinstance(listed, list) else []
    return [each["id"] for each in entries if isinstance(each, dict) and isinstance(each.get("id"), str)]
