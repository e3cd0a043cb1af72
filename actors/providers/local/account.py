"""Account of the local model: its server, started for the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from actors.providers.credentials.account import Account, ProviderLocation
from actors.providers.credentials.credential import CredentialError
from actors.providers.local.model import (
    LOCAL_CONTEXT_TOKENS,
    LOCAL_ENDPOINT,
    LOCAL_MODEL_NAME,
    LOCAL_NOTICE,
    LocalModelError,
    LocalModelServer,
)
from actors.providers.registry import Provider
from policies.estimates.price import Price

FREE: Final = Price(input_usd_per_mtok=0, output_usd_per_mtok=0, source="runs on this machine")  # type: ignore[arg-type]


def account(row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, start: bool) -> Account:
    """Return the account, with the server running where ``start`` is True. Raises CredentialError where it cannot be
    started."""
    server = LocalModelServer()
    if start:
        try:
            server.start()
        except LocalModelError as error:
            raise CredentialError(str(error)) from None
    return Account(
        endpoint=LOCAL_ENDPOINT, credential=server.credential if start else None, model=LOCAL_MODEL_NAME,
        context_window=LOCAL_CONTEXT_TOKENS, price=FREE, notice=LOCAL_NOTICE, close=server.close,
    )  # fmt: skip
