"""Client of the SDK for Amazon Bedrock: it signs each request."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from actors.providers.bedrock.account import SECRET_KEY, SESSION_TOKEN
from actors.providers.credentials.credential import Credential
from actors.providers.messages.dialect import SdkDialect, headers_to_send


def client(sdk: ModuleType, credential: Credential, given: dict[str, Any]) -> Any:
    """Return the SDK's client. Raises what that raises where something is missing."""
    platform = credential.platform
    assert platform is not None, "the credential of Bedrock names its place"
    headers = headers_to_send(credential)
    made: Any = sdk.AsyncAnthropicBedrock(aws_region=platform.region, default_headers=headers, **given)
    # Set here, whatever it has found in this process's environment; a key there and keys of AWS it would refuse.
    made.api_key = credential.api_key or None
    made.aws_access_key = platform.identity or None
    made.aws_secret_key = platform.secret(SECRET_KEY) or None
    made.aws_session_token = platform.secret(SESSION_TOKEN) or None
    made.aws_profile = platform.profile or None
    made._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return made


DIALECT: Final = SdkDialect(client=client, signed=True, shares_headers=False, counts_tokens=False)
