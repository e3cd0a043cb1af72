"""Checks of Google Vertex AI for ``cortex doctor``."""

from __future__ import annotations

from typing import Final

from actors.providers.credentials.credential import Credential
from actors.providers.health.checks import ProviderChecks

_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


class VertexChecks(ProviderChecks):
    """Checks of Vertex AI: what Google's own search for credentials finds."""

    def search(self, credential: Credential) -> str:
        """Return which credentials Google's search finds, renewed once."""
        import google.auth
        from google.auth.transport.requests import Request

        found, _ = google.auth.default(scopes=[_SCOPE])
        found.refresh(Request())  # type: ignore[no-untyped-call]
        return f"Google credentials ({type(found).__name__})"
