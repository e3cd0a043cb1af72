"""Model specification: the part of a job's order that says where its calls go."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from actors.common.errors import UserError
from actors.providers.credentials.account import ProviderLocation
from actors.providers.credentials.base_url import BY_NAME
from actors.providers.registry import Provider, named, of_model, row_of
from actors.simulator.settings import SimulatorSettings
from cortex.values.limits import MESSAGES, JobTerms


class SetupError(UserError, ValueError):
    """The job cannot be set up as specified. The message is one clear line that says what to do."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specification of a model and its provider, as the user gives it; kept with the job, so that the job can be
    resumed. Holds no secret."""

    model: str = ""
    base_url: str = ""
    price: str = ""
    simulated: SimulatorSettings | None = None
    prompt_tokens_max: int | None = None
    via: str = MESSAGES
    """Single calls or message batches, as in ``Route``."""
    provider: str = ""
    """Name of a provider; empty: not said. Fallbacks and roles then have the job's own, the job the default one."""
    region: str = ""
    project: str = ""
    resource: str = ""
    """Place of the account, as far as the provider takes these words; empty: as the environment says."""
    price_as: str = ""
    """Model whose price, and whose window where its own is not known, this one has."""
    api_key_file: str = ""
    """Absolute path of the file with the key, for routes of this provider."""
    fallbacks: tuple[ModelSpec, ...] = ()
    """Routes to which work moves, in this order, while the breaker of each route before is open."""
    roles: dict[str, ModelSpec] = msgspec.field(default_factory=dict)
    """Models of roles. One without an address is at the job's own provider, and goes out as the job's calls do."""
    metrics_from: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """URLs of the metrics of the server at ``base_url``, one for each replica; left out where there are none: they are
    at its own root."""
    place: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Further words for the place of the account; left out of what a job keeps where there are none."""
    peers: tuple[ModelSpec, ...] | msgspec.UnsetType = msgspec.UNSET
    """Further servers of the same model, which rank equal and share the work by load; left out of what a job keeps
    where there are none."""
    dns: str | msgspec.UnsetType = msgspec.UNSET
    """Name whose addresses are the servers: ``base_url`` is then that of the name, which is asked no call, and those of
    further servers hold an address in place of the name. Left out where servers are named one by one."""

    @property
    def further(self) -> tuple[ModelSpec, ...]:
        """Specifications of the routes after the job's own: the servers that rank equal with it, then the fallbacks."""
        return (*(self.peers or ()), *self.fallbacks)

    @property
    def servers(self) -> list[str]:
        """Addresses of the servers of the job's own model; one, perhaps empty, if there are no further ones. That of a
        name is the first."""
        return [f"{BY_NAME if self.dns else ''}{self.base_url}", *(each.base_url for each in self.peers or ())]

    def with_further(self, further: tuple[ModelSpec, ...]) -> ModelSpec:
        """Return the specification with other routes in place of these, as many of them."""
        end = len(self.peers or ())
        return msgspec.structs.replace(self, peers=further[:end] or msgspec.UNSET, fallbacks=further[end:])

    def at_servers(self, addresses: Sequence[str]) -> ModelSpec:
        """Return the specification at the servers with these addresses, at least one. An address that is named twice
        counts once; the metrics of a server that stays are where they were. Where the first is that of a name
        (``BY_NAME``), the others are servers found under it."""
        own, *others = dict.fromkeys(addresses)
        by_name, own = own.startswith(BY_NAME), own.removeprefix(BY_NAME)
        dns = urlsplit(own).hostname or msgspec.UNSET if by_name else msgspec.UNSET
        known = {each.base_url: each.metrics_from for each in (self, *(self.peers or ()))}
        alone = msgspec.structs.replace(self, fallbacks=(), roles={}, peers=msgspec.UNSET, dns=dns)
        peers = tuple(
            msgspec.structs.replace(alone, base_url=each, metrics_from=known.get(each, msgspec.UNSET))
            for each in others
        )  # fmt: skip
        return msgspec.structs.replace(
            self, base_url=own, metrics_from=known.get(own, msgspec.UNSET), peers=peers or msgspec.UNSET, dns=dns
        )

    def with_metrics(self, urls: tuple[str, ...]) -> ModelSpec:
        """Return the specification with the URLs of metrics: all are of replicas of the one server, or each is of one
        of several servers, in their order. Raises ``ValueError`` for another number of them, and for servers that are
        found under a name."""
        peers = self.peers or ()
        if urls and self.dns:
            raise ValueError(f"each server of {self.dns} is asked at its own /metrics: leave it out")
        if not peers:
            return msgspec.structs.replace(self, metrics_from=urls or msgspec.UNSET)
        if urls and len(urls) != 1 + len(peers):
            raise ValueError(f"{len(urls)} for {1 + len(peers)} servers: name one for each, in their order")
        placed = tuple(
            msgspec.structs.replace(peer, metrics_from=urls[at : at + 1] or msgspec.UNSET)
            for at, peer in enumerate(peers, 1)
        )
        return msgspec.structs.replace(self, metrics_from=urls[:1] or msgspec.UNSET, peers=placed)

    @property
    def row(self) -> Provider:
        """Row of the provider that is asked. Raises ``SetupError`` for a provider that this release does not know."""
        try:
            return of_model(self.model) or row_of(self.provider)
        except KeyError:
            raise SetupError(f"--provider {self.provider}: no such provider: give {', '.join(named())}") from None

    def location(self) -> ProviderLocation:
        """Return the location of the account at the provider."""
        return ProviderLocation(
            provider=self.row.name, region=self.region, project=self.project, resource=self.resource,
            place=self.place or {}, base_url=self.base_url, key_file=self.api_key_file, model=self.model,
            settings=self.simulated, host=self.dns or "",
        )  # fmt: skip

    def placed(self, words: dict[str, str]) -> ModelSpec:
        """Return the specification with these words for the place of the account."""
        further = {word: value for word, value in words.items() if word not in self.__struct_fields__}
        place = {**(self.place or {}), **further} or msgspec.UNSET
        own = {word: value for word, value in words.items() if word not in further}
        return msgspec.structs.replace(self, **own, place=place)


def spread(spec: ModelSpec) -> ModelSpec:
    """Return the specification with its fallbacks and roles completed by what they have from it. Further servers have
    everything from the start."""
    roles = {role: of_role(each, spec) for role, each in spec.roles.items()}
    return msgspec.structs.replace(spec, fallbacks=tuple(_near(each, spec) for each in spec.fallbacks), roles=roles)


def of_role(role: ModelSpec, own: ModelSpec) -> ModelSpec:
    """Return a role's model, completed by the job's own."""
    if role.model == own.model and role.simulated is None:
        role = msgspec.structs.replace(role, simulated=own.simulated)
    near = _near(role, own)
    if near.row is own.row and not near.row.by_model and not near.base_url:
        near = msgspec.structs.replace(near, base_url=own.base_url, metrics_from=own.metrics_from)
    return msgspec.structs.replace(near, via=own.via) if near.row.batches else near


def _near(other: ModelSpec, own: ModelSpec) -> ModelSpec:
    """Return another model's specification, completed: it is at the job's own provider unless it names one, or an
    address. The key's file is for all routes of one provider."""
    if other.row.by_model or own.row.by_model:
        return other
    if not other.provider and not other.base_url:
        other = msgspec.structs.replace(other, provider=own.provider)
    if other.row is not own.row:
        return other
    here, there = other.location(), own.location()
    other = other.placed({word: value for word in own.row.place if (value := here.at(word) or there.at(word))})
    return msgspec.structs.replace(other, api_key_file=other.api_key_file or own.api_key_file)


def spec_at(spec: ModelSpec, terms: JobTerms, place: int) -> ModelSpec:
    """Return the specification of one of a job's routes, without the others."""
    spec = spread(spec)
    lane = terms.lane_at(place)
    role = next((name for name, its in terms.roles.items() if its == lane), "") if lane else ""
    found = spec.further[place - 1] if place and not lane else spec.roles[role] if role else spec
    return msgspec.structs.replace(found, fallbacks=(), roles={}, peers=msgspec.UNSET)


__all__ = ["ModelSpec", "SetupError", "of_role", "spec_at", "spread"]
