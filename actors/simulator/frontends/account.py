"""Provider ``sim``: its account and its client, both in this process (``actors.providers.registry``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from actors.providers.credentials.account import Account, ClientSpec, ProviderLocation
from actors.providers.registry import Provider
from actors.simulator.settings import SimulatorSettings


def account(row: Provider, location: ProviderLocation, environ: Mapping[str, str], *, start: bool) -> Account:
    """Return the account of a simulated provider with these settings (``SimulatorSettings``)."""
    settings: SimulatorSettings = location.settings or SimulatorSettings()
    return Account(
        endpoint=f"{row.name}:{settings.answers_hash()}", model=row.name, context_window=settings.context_window,
        settings=encode(settings), notice="the provider is simulated: a rehearsal",
    )  # fmt: skip


def encode(settings: SimulatorSettings) -> bytes:
    """Return the settings as a ``ClientSpec`` holds them."""
    return msgspec.msgpack.encode(settings)


def model_of(spec: ClientSpec) -> object:
    """Return the simulated model of an account."""
    from actors.simulator.frontends.in_memory import SimulatedModel

    return SimulatedModel(msgspec.msgpack.decode(spec.settings, type=SimulatorSettings))
