"""The road to a cloud that serves the model: its package, its place, what opens it, its address."""

from __future__ import annotations

import asyncio

import msgspec

from actors.doctor.checks import DoctorOptions, Finding, ok, warning, wrong
from actors.providers.credentials.clouds import (
    ANTHROPIC,
    BEDROCK,
    OPENS,
    SHOWN,
    VERTEX,
    ProviderLocation,
    credential_of,
    missing_extra,
)
from actors.providers.credentials.credential import CloudPlatform, Credential, CredentialError
from actors.providers.messages.client import AnthropicModel
from actors.routing.pricing import known

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def opened(asked: DoctorOptions) -> tuple[Credential | None, list[Finding]]:
    """What opens it, or None; and what was found on the way there, without a word over the network that costs."""
    provider = asked.provider["provider"]
    if line := missing_extra(provider):
        said, _, do = line.partition(": pip ")
        return None, [wrong("provider", said, f"pip {do}")]
    try:
        credential = _credential(asked)
    except CredentialError as error:
        said, gives, how = str(error).partition(": give ")
        return None, [wrong("provider", said, f"give {how}" if gives else "put that right")]
    assert credential.platform is not None, "a cloud's credential names it"
    found = [ok("provider", f"{SHOWN[provider]}: {credential.endpoint}")]
    return credential, [*found, _key(credential, credential.platform, asked)]


def secret_of(asked: DoctorOptions) -> Credential | None:
    """What opens it, to be shown by nobody. Raises CredentialError."""
    if asked.provider.get("provider", ANTHROPIC) == ANTHROPIC or missing_extra(asked.provider["provider"]):
        return None
    return _credential(asked)


def _credential(asked: DoctorOptions) -> Credential:
    said_of = ProviderLocation(**asked.provider, base_url=asked.base_url.strip(), key_file=asked.api_key_file)
    return credential_of(said_of, asked.environ)


def _key(credential: Credential, platform: CloudPlatform, asked: DoctorOptions) -> Finding:
    if credential.api_key:
        where = "--api-key-file" if asked.api_key_file else "the environment"
        return ok("key", f"a key from {where}; its fingerprint is {credential.fingerprint}")
    if platform.aws_access_key:
        return ok("key", f"AWS_ACCESS_KEY_ID and its secret; their fingerprint is {credential.fingerprint}")
    try:
        how = _of_aws(platform) if platform.name == BEDROCK else _of_google() if platform.name == VERTEX else ""
    except Exception as error:  # the libraries have many
        return wrong("key", f"no credentials: {type(error).__name__}: {str(error)[:300]}", OPENS[platform.name])
    if not how:
        return wrong("key", "there are no credentials", OPENS[platform.name])
    return ok("key", f"{how}: looked for anew wherever calls are made, on a cluster on its nodes")


def _of_aws(platform: CloudPlatform) -> str:
    """Where AWS's search for credentials finds some; empty where it does not."""
    import boto3

    found = boto3.Session(profile_name=platform.profile or None, region_name=platform.region).get_credentials()
    return "" if found is None else f"AWS credentials ({found.method})"


def _of_google() -> str:
    """Which credentials Google's search finds, renewed once."""
    import google.auth
    from google.auth.transport.requests import Request

    found, _ = google.auth.default(scopes=[_SCOPE])
    found.refresh(Request())  # type: ignore[no-untyped-call]
    return f"Google credentials ({type(found).__name__})"


async def answers(asked: DoctorOptions, credential: Credential) -> list[Finding]:
    """Whether the model is there, as far as that is told for nothing: by the count of one prompt's tokens."""
    name = asked.model
    model = AnthropicModel(credential)
    body = msgspec.json.encode({"model": name, "messages": [{"role": "user", "content": "hello"}]})
    try:
        counted = None
        if model.counts_tokens:
            await model.prepare()
            async with asyncio.timeout(asked.timeout_s):
                counted = await model.count_tokens(body)
    except TimeoutError:
        counted = None
    finally:
        await model.close()
    platform = credential.platform
    price, window = known(name, provider=asked.provider["provider"], region=platform.region if platform else "")
    found = []
    if counted is None:
        said = f"whether {name} is there and may be asked, only a paid call would show"
        found.append(warning("model", said, "give --paid to make one call of one token"))
    else:
        found.append(ok("model", f"{name} is there" + (f", with a window of {window:,} tokens" if window else "")))
    if price is None:
        said = f"the price of {name} is not known here, so a cap in money needs one"
        found.append(warning("price", said, "give --price-as MODEL, or --price input=...,output=..., with --max-cost"))
    else:
        said = f"{price.input_usd_per_mtok:g} in, {price.output_usd_per_mtok:g} out, USD per million tokens"
        found.append(ok("price", f"{said} ({price.source})"))
    return found


def address(credential: Credential) -> str:
    """Where the SDK goes for it."""
    return asyncio.run(AnthropicModel(credential).address())
