"""Credential for Amazon Bedrock.

Keys in the driver's environment travel with the job's calls. Where there are none, AWS's own search for credentials (a
profile, a role of the machine) runs where the calls are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from actors.providers.credentials.account import (
    ProviderLocation,
    base_url_of,
    first_set,
    missing_word,
    platform_of,
)
from actors.providers.credentials.credential import Credential, CredentialError, key_in, sendable
from actors.providers.registry import Provider

BEARER: str = "AWS_BEARER_TOKEN_BEDROCK"
SECRET_KEY, SESSION_TOKEN = "secret_key", "session_token"
"""Names of the secrets of a ``CloudPlatform`` of Bedrock."""


def credential(
    row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, required: bool = True
) -> Credential:
    """Return the credential: a bearer token, else a pair of keys, else none but the name of a profile. Raises
    CredentialError."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    base_url = base_url_of(row, location, environ)
    key = key_in(location.key_file) if location.key_file else sendable(BEARER, environ.get(BEARER, ""))
    profile = environ.get("AWS_PROFILE", "").strip()
    access, secret, token = (sendable(name, environ.get(name, "")) for name in names)
    if bool(access) != bool(secret):
        there, not_there = names[:2] if access else (names[1], names[0])
        raise CredentialError(f"--provider {row.name}: {there} is set and {not_there} is not: set both, or neither")
    if key or not access:
        access = secret = token = ""
    region = location.region or first_set(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or _region_of_profile(profile)
    if not region:
        raise missing_word(row, "region", "us-east-1", "AWS_REGION")
    secrets = tuple(pair for pair in ((SECRET_KEY, secret), (SESSION_TOKEN, token)) if pair[1])
    platform = msgspec.structs.replace(
        platform_of(row, location), region=region, profile="" if key or access else profile, identity=access,
        secrets=secrets,
    )  # fmt: skip
    return Credential.with_network(
        environ, headers_variable=row.headers_variable, api_key=key, key_file=location.key_file, base_url=base_url,
        platform=platform,
    )  # fmt: skip


def _region_of_profile(profile: str) -> str:
    """Return the region in the user's AWS configuration; empty where there is none."""
    import boto3

    with contextlib.suppress(Exception):  # a profile that is missing: the first call says so, for all to read
        return str(boto3.Session(profile_name=profile or None).region_name or "")
    return ""
