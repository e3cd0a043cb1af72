"""Secrets of all providers in an environment: found, so that nothing shows them, and removed before a process is
started."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, MutableMapping
from typing import Final

from actors.providers.credentials.account import ProviderLocation, credential_of
from actors.providers.credentials.credential import PROXY_NAMES, Credential, CredentialError, without_password
from actors.providers.registry import PROVIDERS, Provider

_OWN_NAMES: Final = (
    "CORTEX_API_KEY_FILE",
    # Credentials of a collector of telemetry: passed to channels in a call, as keys are to branches.
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
)


def keys_in(environ: Mapping[str, str]) -> list[Credential]:
    """Return the credentials whose secrets are to leave the environment before a process is started: the key of each
    provider, under whatever name it stands there, and passwords of proxies. Never raises."""
    found: list[Credential] = []
    for row in PROVIDERS.values():
        found += [Credential(api_key=value) for name in _keys_of(row) if (value := environ.get(name, "").strip())]
        if row.key_variable:
            with contextlib.suppress(CredentialError):
                found.append(credential_of(ProviderLocation(provider=row.name), environ, required=False))
    return [each for each in found if each.has_key]


def hidden_in(environ: Mapping[str, str]) -> list[Credential]:
    """Return all other secrets of providers in an environment, each as a credential, so that nothing shows them. Never
    raises."""
    names = [name for row in PROVIDERS.values() for name in (*_secret_values(row), *row.hidden_variables)]
    return [Credential(api_key=value) for name in names if (value := environ.get(name, "").strip())]


def _secret_values(row: Provider) -> tuple[str, ...]:
    """Variables whose whole value is a secret: not lines of headers, of which some are settings."""
    names = (*_keys_of(row), *row.secret_variables)
    return tuple(name for name in names if name and name != row.headers_variable)


def _keys_of(row: Provider) -> tuple[str, ...]:
    """Variables of a row that hold a key."""
    return tuple(filter(None, (row.key_variable, row.server_key_variable)))


def secret_names() -> frozenset[str]:
    """Names of the environment variables that give access to something by themselves."""
    rows = PROVIDERS.values()
    of_keys = (name for row in rows for name in (*_keys_of(row), row.key_file_variable) if name)
    return frozenset((*_OWN_NAMES, *of_keys, *(name for row in rows for name in row.secret_variables)))


def scrub(environ: MutableMapping[str, str], *credentials: Credential) -> tuple[str, ...]:
    """Remove every secret from `environ`, in place; return the names removed, sorted.

    Removed are the variables that hold a key, proxies with a password, and any variable, whatever its name, whose
    value contains a secret of the given credentials.
    """
    names = secret_names()
    secrets = [secret for credential in credentials for secret in credential.secrets()]
    removed = sorted(
        name
        for name, value in environ.items()
        if name.upper() in names
        or (name.lower() in PROXY_NAMES and without_password(value) != value)
        or any(secret in value for secret in secrets)
    )
    for name in removed:
        del environ[name]
    return tuple(removed)
