"""Client of the SDK for Google Vertex AI: each request carries a token that Google's library renews."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from actors.providers.credentials.credential import Credential
from actors.providers.messages.dialect import SdkDialect, headers_to_send


def client(sdk: ModuleType, credential: Credential, given: dict[str, Any]) -> Any:
    """Return the SDK's client. Raises what that raises where something is missing."""
    platform = credential.platform
    assert platform is not None, "the credential of Vertex AI names its place"
    headers = headers_to_send(credential)
    made: Any = sdk.AsyncAnthropicVertex(
        region=platform.region, project_id=platform.project, default_headers=headers, **given
    )
    made._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return made


DIALECT: Final = SdkDialect(client=client, signed=True, shares_headers=False)
