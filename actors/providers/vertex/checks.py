"""Checks of Google Vertex AI for ``cortex doctor``."""

from __future__ import annotations

from actors.providers.credentials.credential import Credential
from actors.providers.credentials.google_tokens import found_credentials
from actors.providers.health.checks import ProviderChecks


class VertexChecks(ProviderChecks):
    """Checks of Vertex AI: what Google's own search for credentials finds."""

    def search(self, credential: Credential) -> str:
        """Return which credentials Google's search finds, renewed once."""
        from google.auth.transport.requests import Request

        found = found_credentials()
        found.refresh(Request())
        return f"Google credentials ({type(found).__name__})"
