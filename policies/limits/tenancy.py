"""Division of one provider account among several clusters.

An ``SharedAccount`` is the shared state of one pool (endpoint, credential, model class). It is stored in one place that
all clusters reach, is changed by one at a time, and has the times of that place's clock. A *tenant* is a cluster, or
one process that runs a job by itself. What a tenant may be using is counted: what it reports to keep, or what it was
lent since, if that is more. Only what no tenant may be using is lent, so all tenants together never exceed what an
operator set, even if one dies or is cut off: what a silent tenant had counts until its lease has expired and its last
call must have ended.

Two things are lent. *Permits*: calls in flight at once, if a number was set. A *part*, in thousandths, of every rate:
of the rates that were set, and of the rates that the provider reports to each tenant as if it were alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from policies.limits.fair_share import fair_shares, in_turn
from policies.limits.limit import NO_CAPS, PoolCaps

LEASE_S: Final = 30.0
"""Seconds for which a share holds unless it is renewed."""
PARTS: Final = 1_000
"""Number of parts of a rate: a part is a thousandth."""
ANY: Final = -1
"""Value of `permits` if no number was set: only the tenant's own limit bounds it."""


class Tenant(msgspec.Struct, array_like=True):
    """Tenant of an account, as the account sees it."""

    want: int = 0
    """Permits that the tenant could use."""
    permits: int = 0
    """Permits that were lent last."""
    counted: int = 0
    """Permits that the tenant may be using."""
    part: int = 0
    """Part of the rates that was lent last, in thousandths."""
    counted_part: int = 0
    """Part of the rates that the tenant may be using, in thousandths."""
    until_s: float = 0.0
    """End of the tenant's lease, in seconds."""
    free_s: float = 0.0
    """Time from which nothing of a silent tenant is in use any more, in seconds."""


class SharedAccount(msgspec.Struct, array_like=True):
    """Shared state of one pool."""

    caps: PoolCaps = NO_CAPS
    """Caps set by an operator for all tenants together."""
    tenants: dict[str, Tenant] = msgspec.field(default_factory=dict)
    """Tenants by name."""


class TenantRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a tenant for its share of a pool."""

    tenant: str
    want: int
    """Permits that all jobs of the tenant together could use."""
    keeps: int = 0
    """Upper bound of the permits that the tenant uses until the next answer; the tenant enforces it."""
    keeps_part: int = 0
    """Upper bound of the part of the rates that the tenant uses until the next answer, in thousandths."""
    sure: bool = True
    """False if the tenant has just restarted and may have lent permits to its jobs that it does not remember."""
    linger_s: float = 0.0
    """Longest time after the end of the lease for which a call of the tenant may be in flight, in seconds."""


class TenantShare(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a tenant, valid for ``for_s`` seconds from the moment at which the tenant asked."""

    permits: int = ANY
    """Calls in flight at once; `ANY`: no number was set."""
    part: int = PARTS
    """Part of every rate, in thousandths."""
    caps: PoolCaps = NO_CAPS
    """Caps of all tenants together, as an operator set them."""
    tenants: int = 1
    """Number of tenants that draw on the account now."""
    lacks: bool = False
    """True if some tenant could use more than it has: ask again soon."""
    for_s: float = LEASE_S
    """Seconds for which the share is valid."""


NOTHING: Final = TenantShare(permits=0, part=0)
"""Share without permits and rates."""


def ask(account: SharedAccount, asked: TenantRequest, at_s: float) -> TenantShare:
    """Grant or renew a tenant's share, and take back what it does not keep. Changes `account`."""
    tenants = account.tenants
    for name in [name for name, each in tenants.items() if each.free_s <= at_s and name != asked.tenant]:
        del tenants[name]
    own = tenants.setdefault(asked.tenant, Tenant())
    own.want = asked.want
    own.counted = asked.keeps if asked.sure else max(own.counted, asked.keeps)
    own.counted_part = asked.keeps_part if asked.sure else max(own.counted_part, asked.keeps_part)
    own.until_s, own.free_s = at_s + LEASE_S, at_s + LEASE_S + asked.linger_s
    live = {name: each.want if each.until_s > at_s else 0 for name, each in sorted(tenants.items())}
    place = list(live).index(asked.tenant)
    lacks = _lend_permits(account, own, list(live.values()), place, at_s)
    lacks |= _lend_part(account, own, list(live.values()), place)
    return TenantShare(
        permits=own.permits, part=own.part, caps=account.caps, tenants=sum(want > 0 for want in live.values()),
        lacks=lacks,
    )  # fmt: skip


def _lend_permits(account: SharedAccount, own: Tenant, wants: list[int], place: int, at_s: float) -> bool:
    most = account.caps.concurrency
    if most is None:
        own.permits = ANY
        return False
    fair = in_turn([(want, 1.0) for want in wants], most, int(at_s // LEASE_S))
    free = most - sum(each.counted for each in account.tenants.values())
    own.permits = min(fair[place], own.counted + max(free, 0))
    own.counted = max(own.counted, own.permits)
    return sum(wants) > most


def _lend_part(account: SharedAccount, own: Tenant, wants: list[int], place: int) -> bool:
    """Lend in proportion to the permits each tenant could use; a tenant without demand gets 0, a tenant alone gets
    all.
    """
    fair = fair_shares([(PARTS if want else 0, float(max(want, 1))) for want in wants], PARTS)
    free = PARTS - sum(each.counted_part for each in account.tenants.values())
    own.part = min(fair[place], own.counted_part + max(free, 0))
    own.counted_part = max(own.counted_part, own.part)
    return sum(want > 0 for want in wants) > 1


def leave(account: SharedAccount, tenant: str) -> None:
    """Remove a tenant: it uses nothing of the account any more."""
    account.tenants.pop(tenant, None)


def bounds(share: TenantShare, own: PoolCaps) -> PoolCaps:
    """Return the caps that a tenant applies: its share of the caps of all tenants, and its own caps.

    ``share.part`` must be above 0. Rates that the provider reports are for all tenants too, so the part of the other
    tenants counts as headroom.
    """
    part, of_all = share.part / PARTS, share.caps
    headroom = 1 - (1 - max(of_all.headroom, own.headroom)) * part
    concurrency = of_all.concurrency if share.permits == ANY else max(share.permits, 1)
    return msgspec.structs.replace(
        own,
        concurrency=_least(own.concurrency, concurrency),
        requests_per_min=_least(own.requests_per_min, _part(of_all.requests_per_min, part)),
        input_tokens_per_min=_least(own.input_tokens_per_min, _part(of_all.input_tokens_per_min, part)),
        output_tokens_per_min=_least(own.output_tokens_per_min, _part(of_all.output_tokens_per_min, part)),
        headroom=min(headroom, 0.999),
        who=own.who or of_all.who,
    )  # fmt: skip


def _part(value: float | None, part: float) -> float | None:
    return None if value is None else value * part


def _least(one: float | None, other: float | None) -> float | None:
    given = [each for each in (one, other) if each is not None]
    return min(given, default=None)


class LentShare(msgspec.Struct):
    """A tenant's own state of one pool: its share, the end of the lease by its own clock, and what may still be in
    use.
    """

    share: TenantShare = NOTHING
    """Share that was lent last."""
    until_s: float = float("-inf")
    """End of the lease by the tenant's clock, in seconds."""
    parts: list[tuple[float, int, int]] = msgspec.field(default_factory=list)
    """Former parts as (until, serial, part): until then a job may still pace itself by that part, unless it has
    received a grant later than that serial."""


def in_force(lent: LentShare, at_s: float) -> TenantShare:
    """Return the share that may be used now: nothing once the lease has expired."""
    return lent.share if at_s < lent.until_s else NOTHING


def keep(
    lent: LentShare, at_s: float, in_use: int, want: int, grants_s: float, number: int = 0, serial: int = 0
) -> tuple[int, int]:
    """Return the permits and the part to report as kept. Everything else is given back, and no longer used from now on.

    ``in_use``: permits that the tenant's own jobs may be using. ``grants_s``: seconds for which the grants of the jobs
    hold; for so long a job may pace itself by a rate that is no longer the tenant's, unless all jobs have received a
    later grant. ``number``: serial of the latest grant that all jobs have received; ``serial``: serial of the latest
    grant given.
    """
    if at_s >= lent.until_s and lent.share is not NOTHING:
        _lower(lent, NOTHING, lent.until_s + grants_s, serial)
    share = lent.share
    if share.permits != ANY:
        lent.share = share = msgspec.structs.replace(share, permits=min(share.permits, max(want, in_use)))
    lent.parts = [each for each in lent.parts if each[0] > at_s and each[1] >= number]
    return max(in_use, share.permits), max([share.part, *(part for *_, part in lent.parts)])


def take(lent: LentShare, share: TenantShare, asked_s: float, at_s: float, grants_s: float, serial: int = 0) -> None:
    """Store the answer to what was asked at ``asked_s``."""
    _lower(lent, share, at_s + grants_s, serial)
    lent.until_s = max(lent.until_s, asked_s + share.for_s)


def _lower(lent: LentShare, share: TenantShare, until_s: float, serial: int) -> None:
    if share.part < lent.share.part:
        lent.parts.append((until_s, serial, lent.share.part))
    lent.share = share
