"""Differences between the providers that serve the Messages API: which of the SDK's clients prepares requests."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import msgspec

from actors.providers.credentials.credential import Credential
from actors.providers.registry import load, row_of


class SdkDialect(msgspec.Struct, frozen=True, kw_only=True):
    """Way in which the SDK reaches the Messages API at one provider: the type of ``Provider.dialect`` for this
    client."""

    client: Callable[[ModuleType, Credential, dict[str, Any]], Any]
    """Function ``(sdk, credential, given) -> client of the SDK``, where ``given`` holds the arguments that all of the
    SDK's clients take. Made from these alone: the SDK would else read the environment. The SDK is an argument, since
    only ``actors.providers.messages.client`` imports it."""
    signed: bool = False
    """True if each request is signed, or carries a token that is renewed: then the SDK's client sends it, at a quarter
    of the speed (``sdk_transport``). False: the SDK prepares the headers once, and our own transport sends."""
    shares_headers: bool = True
    """True if headers prepared by one process hold for all, so that branches need not import the SDK."""
    counts_tokens: bool = True
    """True if there is a counter of tokens."""


def dialect_of(credential: Credential) -> SdkDialect:
    """Return the settings for a credential's provider."""
    found: SdkDialect = load(row_of(credential.provider).dialect)
    return found


def headers_to_send(credential: Credential) -> dict[str, str]:
    """Return the user's own headers for a cloud: all of them at an address of the user's, settings alone at the cloud's
    own, since the rest may be a secret between the user and a gateway."""
    own = bool(credential.base_url)
    return {name: value for name, value in credential.custom_headers if own or credential.is_setting(name)}
