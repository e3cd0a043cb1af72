"""Client of the SDK for Anthropic, and for any server that speaks the Messages API."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from actors.providers.credentials.credential import Credential
from actors.providers.messages.dialect import SdkDialect


def client(sdk: ModuleType, credential: Credential, given: dict[str, Any]) -> Any:
    """Return the SDK's client."""
    headers: dict[str, Any] = dict(credential.custom_headers)
    auth: dict[str, str] = {}
    if credential.api_key:
        auth["api_key"] = credential.api_key
    else:
        auth["auth_token"] = credential.auth_token or "unused"  # given nothing, the SDK would look for a key
        if not credential.auth_token and "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = sdk.Omit()
    made: Any = sdk.AsyncAnthropic(**auth, default_headers=headers, **given)
    made._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return made


DIALECT: Final = SdkDialect(client=client)
