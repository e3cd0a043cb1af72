"""The clouds that serve the model under accounts of their own: Amazon Bedrock, Google Vertex AI, Microsoft Foundry.

Addresses, signatures and tokens are the work of the SDK's own clients for them. Here is what these are given: read
from what the user said and from the driver's environment, and handed on as a part of the `Credential`. Keys that stand
in that environment travel with it. Where there are none, the cloud's own search for credentials (a profile, a role of
the machine, a workload's identity) is made where the calls are made.

The SDK comes as an argument, since only `actors.providers.messages.client` imports it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import msgspec

from actors.providers.credentials.credential import (
    CloudPlatform,
    Credential,
    CredentialError,
    checked_url,
    key_in,
    sendable,
)

ANTHROPIC: Final = "anthropic"
BEDROCK: Final = "bedrock"
VERTEX: Final = "vertex"
FOUNDRY: Final = "foundry"
PROVIDERS: Final = (ANTHROPIC, BEDROCK, VERTEX, FOUNDRY)

SHOWN: Final[Mapping[str, str]] = {
    ANTHROPIC: "Anthropic", BEDROCK: "Amazon Bedrock", VERTEX: "Google Vertex AI", FOUNDRY: "Microsoft Foundry",
}  # fmt: skip
TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    ANTHROPIC: (), BEDROCK: ("region",), VERTEX: ("region", "project"), FOUNDRY: ("resource",),
}  # fmt: skip
"""What may be said of where each of them is."""

OPENS: Final[Mapping[str, str]] = {
    BEDROCK: "set AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give "
    "the machine a role; see that it may call bedrock:InvokeModel",
    VERTEX: "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS, or give the machine "
    "an identity; see that it has the role Vertex AI User",
    FOUNDRY: "set a good key in ANTHROPIC_FOUNDRY_API_KEY, or --api-key-file",
}  # fmt: skip
"""What to do where the calls are not let in."""

_BASE_URLS: Final[Mapping[str, str]] = {
    BEDROCK: "ANTHROPIC_BEDROCK_BASE_URL", VERTEX: "ANTHROPIC_VERTEX_BASE_URL", FOUNDRY: "ANTHROPIC_FOUNDRY_BASE_URL",
}  # fmt: skip
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {BEDROCK: ("boto3", "botocore"), VERTEX: ("google.auth", "requests")}
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"
FOUNDRY_KEY: Final = "ANTHROPIC_FOUNDRY_API_KEY"


class ProviderLocation(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said of a provider: its name, and what is needed to find it. Holds no secret."""

    provider: str = ANTHROPIC
    region: str = ""
    project: str = ""
    resource: str = ""
    base_url: str = ""
    key_file: str = ""


def missing_extra(provider: str) -> str:
    """One line that says what to install for this provider; empty where all is there."""
    for name in _NEEDS.get(provider, ()):
        try:
            found = importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            return f"--provider {provider}: {name} is not installed: pip install 'cortex-bounded-calls[{provider}]'"
    return ""


def load(provider: str) -> None:
    """Import what the SDK's client for this provider will import at its first request; that takes a second. What is
    not there, that request will say."""
    for name in _NEEDS.get(provider, ()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def credential_of(said: ProviderLocation, environ: Mapping[str, str]) -> Credential:
    """What opens a cloud's door, and where it is. Raises CredentialError: one line that says what is missing."""
    if line := missing_extra(said.provider):
        raise CredentialError(line)
    variable = _BASE_URLS[said.provider]
    base_url = said.base_url or checked_url(variable, environ.get(variable, "").strip())
    found = {BEDROCK: _bedrock, VERTEX: _vertex, FOUNDRY: _foundry}[said.provider](said, base_url, environ)
    for name in ("region", "project", "resource"):
        value = getattr(found.platform, name)
        if value and not _WORD.fullmatch(value):
            raise CredentialError(f"--provider {said.provider}: {value!r:.60} is no {name}")
    return found


def _bedrock(said: ProviderLocation, base_url: str, environ: Mapping[str, str]) -> Credential:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    key, profile = _key(said, environ, BEARER), environ.get("AWS_PROFILE", "").strip()
    access, secret, token = (sendable(name, environ.get(name, "")) for name in names)
    if bool(access) != bool(secret):
        there, not_there = names[:2] if access else (names[1], names[0])
        raise CredentialError(f"--provider {BEDROCK}: {there} is set and {not_there} is not: set both, or neither")
    if key or not access:
        access = secret = token = ""
    region = said.region or _first(environ, "AWS_REGION", "AWS_DEFAULT_REGION") or _region_of_profile(profile)
    if not region:
        raise _lacks(BEDROCK, "region", "us-east-1", "AWS_REGION")
    return Credential.on_road(
        environ, api_key=key, key_file=said.key_file, base_url=base_url,
        platform=CloudPlatform(
            name=BEDROCK, region=region, profile="" if key or access else profile, aws_access_key=access,
            aws_secret_key=secret, aws_session_token=token,
        ),
    )  # fmt: skip


def _region_of_profile(profile: str) -> str:
    """The region that the user's AWS configuration names."""
    import boto3

    with contextlib.suppress(Exception):  # a profile that is not there: the first call says so, for all to read
        return str(boto3.Session(profile_name=profile or None).region_name or "")
    return ""


def _vertex(said: ProviderLocation, base_url: str, environ: Mapping[str, str]) -> Credential:
    if said.key_file:
        raise CredentialError(
            f"--api-key-file: {VERTEX} takes Google's credentials, no key: leave it out, and {OPENS[VERTEX]}"
        )
    region = said.region or environ.get("CLOUD_ML_REGION", "").strip()
    if not region:
        raise _lacks(VERTEX, "region", "global", "CLOUD_ML_REGION")
    project = said.project or _first(environ, "ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT")
    if not project:
        raise _lacks(VERTEX, "project", "NAME", "ANTHROPIC_VERTEX_PROJECT_ID")
    account = environ.get("GOOGLE_APPLICATION_CREDENTIALS", "").strip()
    if account and not os.path.isfile(os.path.expanduser(account)):
        raise CredentialError(f"GOOGLE_APPLICATION_CREDENTIALS: {account}: no such file")
    platform = CloudPlatform(name=VERTEX, region=region, project=project)
    return Credential.on_road(environ, base_url=base_url, platform=platform)


def _foundry(said: ProviderLocation, base_url: str, environ: Mapping[str, str]) -> Credential:
    resource = said.resource or ("" if base_url else environ.get("ANTHROPIC_FOUNDRY_RESOURCE", "").strip())
    if resource and base_url:
        raise CredentialError(
            f"--provider {FOUNDRY}: resource={resource} and an address: a resource has an address of its own; give one"
        )
    if not resource and not base_url:
        raise _lacks(FOUNDRY, "resource", "NAME", "ANTHROPIC_FOUNDRY_RESOURCE")
    key = _key(said, environ, FOUNDRY_KEY)
    if not key:
        raise CredentialError(f"--provider {FOUNDRY}: no key: {OPENS[FOUNDRY]}")
    platform = CloudPlatform(name=FOUNDRY, resource=resource)
    return Credential.on_road(environ, api_key=key, key_file=said.key_file, base_url=base_url, platform=platform)


def _lacks(provider: str, what: str, example: str, variable: str) -> CredentialError:
    how = f"give --provider {provider},{what}={example}, or set {variable}"
    return CredentialError(f"--provider {provider}: no {what}: {how}")


def _first(environ: Mapping[str, str], *names: str) -> str:
    """The first of these variables that says something."""
    return next((value for name in names if (value := environ.get(name, "").strip())), "")


def _key(said: ProviderLocation, environ: Mapping[str, str], variable: str) -> str:
    """The key in the file that the user named, else in the variable that the SDK reads."""
    return key_in(said.key_file) if said.key_file else sendable(variable, environ.get(variable, ""))


def of_environ(environ: Mapping[str, str]) -> list[Credential]:
    """All secrets of the clouds that an environment holds, so that nothing shows them. Never raises."""
    names = (BEARER, FOUNDRY_KEY, "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return [Credential(api_key=value) for name in names if (value := environ.get(name, "").strip())]


# -- the SDK's clients -------------------------------------------------------------------------------------------------


def client_of(sdk: ModuleType, credential: Credential, **given: Any) -> Any:
    """The SDK's client for a cloud, from the credential alone as far as that goes; ``given`` are what all clients take.

    Raises what the client raises where something is missing.
    """
    platform = credential.platform
    assert platform is not None, "a credential of the provider itself has another client"
    headers = headers_of(credential)
    given |= {"base_url": credential.base_url or None, "default_headers": headers}
    made: Any
    if platform.name == BEDROCK:
        made = sdk.AsyncAnthropicBedrock(aws_region=platform.region, **given)
        # Set here, whatever it has found in this process's environment; a key there and keys of AWS it would refuse.
        made.api_key = credential.api_key or None
        made.aws_access_key, made.aws_secret_key = platform.aws_access_key or None, platform.aws_secret_key or None
        made.aws_session_token, made.aws_profile = platform.aws_session_token or None, platform.profile or None
    elif platform.name == VERTEX:
        made = sdk.AsyncAnthropicVertex(region=platform.region, project_id=platform.project, **given)
    else:
        resource = {"resource": platform.resource} if platform.resource else {}
        if resource:
            del given["base_url"]
        made = sdk.AsyncAnthropicFoundry(api_key=credential.api_key, **resource, **given)
    made._custom_headers = headers  # else those of ANTHROPIC_CUSTOM_HEADERS would be there too
    return made


def headers_of(credential: Credential) -> dict[str, str]:
    """The user's own headers: all of them for an address of the user's, settings alone for the cloud's own, since the
    rest may be a secret between the user and a gateway."""
    own = bool(credential.base_url)
    return {name: value for name, value in credential.custom_headers if own or name.lower().startswith("anthropic-")}
