"""Checks of Amazon Bedrock for ``cortex doctor``."""

from __future__ import annotations

from actors.common.findings import Finding, ok
from actors.providers.credentials.credential import Credential
from actors.providers.health.checks import ProviderChecks


class BedrockChecks(ProviderChecks):
    """Checks of Bedrock: keys of AWS, else what AWS's own search for credentials finds."""

    def key(self, credential: Credential) -> Finding:
        """Find which keys there are."""
        if not credential.api_key and credential.platform is not None and credential.platform.identity:
            return ok("key", f"AWS_ACCESS_KEY_ID and its secret; their fingerprint is {credential.fingerprint}")
        return super().key(credential)

    def search(self, credential: Credential) -> str:
        """Return where AWS's search finds credentials."""
        import boto3

        platform = credential.platform
        assert platform is not None, "the credential of Bedrock names its place"
        session = boto3.Session(profile_name=platform.profile or None, region_name=platform.region)
        found = session.get_credentials()
        return "" if found is None else f"AWS credentials ({found.method})"
