"""Client of the SDK for Microsoft Foundry."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from actors.providers.credentials.credential import Credential
from actors.providers.messages.dialect import SdkDialect, headers_to_send


def client(sdk: ModuleType, credential: Credential, given: dict[str, Any]) -> Any:
    """Return the SDK's client. Raises what that raises where something is missing."""
    platform = credential.platform
    assert platform is not None, "the credential of Foundry names its place"
    headers = headers_to_send(credential)
    if platform.resource:  # the address of a resource is the SDK's to know
        given = {name: value for name, value in given.items() if name != "base_url"} | {"resource": platform.resource}
    made: Any = sdk.AsyncAnthropicFoundry(api_key=credential.api_key, default_headers=headers, **given)
    made._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return made


DIALECT: Final = SdkDialect(client=client, shares_headers=False)
