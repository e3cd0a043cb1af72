"""Tokens of Google Cloud, by google-auth: ``gcloud auth application-default login``, a service account in
GOOGLE_APPLICATION_CREDENTIALS, an identity of the machine."""

from __future__ import annotations

import time
from datetime import UTC
from typing import Any, Final

from actors.providers.credentials.access_token import AccessToken, TokenSource
from actors.providers.credentials.credential import Credential

SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_LIFE_S: Final = 3_600.0
"""Seconds for which a token without an end is believed: that of Google's access tokens."""


def found_credentials() -> Any:
    """Return the credentials that Google's own search finds. Raises the errors of google-auth."""
    import google.auth

    found, _ = google.auth.default(scopes=[SCOPE])
    return found


def tokens(credential: Credential) -> TokenSource:
    """Return the source of tokens for an account."""
    held: list[Any] = []

    def fetch() -> AccessToken:
        from google.auth.transport.requests import Request

        if not held:
            held.append(found_credentials())
        held[0].refresh(Request())
        ends = held[0].expiry  # in UTC, without a zone
        ends_at_s = time.time() + _LIFE_S if ends is None else ends.replace(tzinfo=UTC).timestamp()
        return AccessToken(held[0].token, ends_at_s)

    return fetch
