"""What a user said of the model: the part of a job's order that says where its calls go."""

from __future__ import annotations

import msgspec

from actors.common.errors import UserError
from actors.providers.credentials.clouds import ANTHROPIC, PROVIDERS, TAKES
from actors.simulator.settings import SimulatorSettings
from cortex.values.limits import MESSAGES, JobTerms

APART = ("sim", "local")
"""Models that no provider is asked for."""


class SetupError(UserError, ValueError):
    """The job cannot be set up as asked. The message is one clear line that says what to do."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user said of the model; kept with the job, so that it can be resumed. Holds no secret."""

    model: str = ""
    base_url: str = ""
    price: str = ""
    simulated: SimulatorSettings | None = None
    prompt_tokens_max: int | None = None
    via: str = MESSAGES
    """By which of the provider's roads, as in ``Route``."""
    provider: str = ""
    """One of ``PROVIDERS``; empty: not said, which is the job's own for its fallbacks and roles, else Anthropic."""
    region: str = ""
    project: str = ""
    resource: str = ""
    """Where that provider is asked, as far as it takes them (``TAKES``); empty: as the environment says."""
    price_as: str = ""
    """The model whose price, and whose window where its own is not known, this one has."""
    api_key_file: str = ""
    """Absolute path of the file that the key is in, for routes of this provider."""
    fallbacks: tuple[ModelSpec, ...] = ()
    """Where work moves, in this order, while the breaker of what stands before is open."""
    roles: dict[str, ModelSpec] = msgspec.field(default_factory=dict)
    """The models of roles. One without an address is where the job's own model is, and goes by the same road."""

    @property
    def cloud(self) -> str:
        """The cloud that serves the model; empty for the provider itself, and whoever speaks its Messages API."""
        return "" if self.provider in ("", ANTHROPIC) else self.provider


def spread(wish: ModelSpec) -> ModelSpec:
    """The same with what its fallbacks and roles do not say of themselves, and have from it."""
    roles = {role: of_role(each, wish) for role, each in wish.roles.items()}
    return msgspec.structs.replace(wish, fallbacks=tuple(_near(each, wish) for each in wish.fallbacks), roles=roles)


def of_role(role: ModelSpec, own: ModelSpec) -> ModelSpec:
    """What was not said of a role's model is as with the job's own."""
    if role.model == own.model == "sim" and role.simulated is None:
        role = msgspec.structs.replace(role, simulated=own.simulated)
    near = _near(role, own)
    same = near.provider in (own.provider, own.provider or ANTHROPIC)
    if near.model not in APART and not near.base_url and own.model not in APART and same:
        near = msgspec.structs.replace(near, base_url=own.base_url)
    return near if near.model == "local" or near.cloud else msgspec.structs.replace(near, via=own.via)


def _near(other: ModelSpec, own: ModelSpec) -> ModelSpec:
    """Another model, asked of the job's own provider unless it says another, or an address. The key's file is for all
    routes of one provider."""
    if other.model in APART or own.model in APART:
        return other
    if not other.provider and not other.base_url:
        other = msgspec.structs.replace(other, provider=own.provider)
    if other.cloud != own.cloud:
        return other
    takes = (*TAKES[own.provider or ANTHROPIC], "api_key_file")
    return msgspec.structs.replace(other, **{name: getattr(other, name) or getattr(own, name) for name in takes})


def wish_at(wish: ModelSpec, terms: JobTerms, place: int) -> ModelSpec:
    """What leads to one of a job's routes, without the others."""
    wish = spread(wish)
    lane = terms.lane_at(place)
    role = next((name for name, its in terms.roles.items() if its == lane), "") if lane else ""
    found = wish.fallbacks[place - 1] if place and not lane else wish.roles[role] if role else wish
    return msgspec.structs.replace(found, fallbacks=(), roles={})


__all__ = ["APART", "PROVIDERS", "ModelSpec", "SetupError", "of_role", "spread", "wish_at"]
