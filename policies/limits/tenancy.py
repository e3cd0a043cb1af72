"""How much of what one account allows may each of several clusters use?

An ``Account`` is all that they know together of one pool (endpoint, credential, model class). It is kept in one place
that all of them reach, changed by one at a time, and its times are that place's alone. A *tenant* is a cluster, or one
process that runs a job by itself. What it may be using is counted: what it says that it keeps, or what it was lent
since, if that is more. Only what nobody may be using is lent, so all tenants together never pass what somebody set by
hand, whoever dies or is cut off: what a silent one had counts until its lease has run out and its last call must have
ended.

Two things are lent. *Permits*: calls in flight at once, where a number was set. A *part* of every rate, in thousandths,
of those that were set as of those that the provider tells to each tenant as if it were alone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from policies.limits.fair_share import fair_shares, in_turn
from policies.limits.limit import NO_CAPS, Caps

LEASE_S: Final = 30.0
"""How long a share holds unless it is asked for again."""
PARTS: Final = 1_000
ANY: Final = -1
"""Permits where no number was set: each tenant's own limit alone bounds it."""


class Tenant(msgspec.Struct, array_like=True):
    """One of those that draw on an account."""

    want: int = 0
    """Permits that it could use."""
    permits: int = 0
    """That it was lent last."""
    counted: int = 0
    """That it may be using."""
    part: int = 0
    counted_part: int = 0
    until_s: float = 0.0
    """Its lease."""
    free_s: float = 0.0
    """Unless it is heard of, nothing of it is in use any more."""


class Account(msgspec.Struct, array_like=True):
    """One pool, as all its tenants know it."""

    caps: Caps = NO_CAPS
    tenants: dict[str, Tenant] = msgspec.field(default_factory=dict)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant says of a pool of its."""

    tenant: str
    want: int
    """Permits that all its jobs together could use."""
    keeps: int = 0
    """The most that it uses now, or lets be used before the next answer. It has made sure of that."""
    keeps_part: int = 0
    """So of the rates."""
    sure: bool = True
    """False: it has just come back, and may have lent to its jobs what it does not remember."""
    linger_s: float = 0.0
    """How long after its lease something that it has let begin may be under way."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may use, for ``for_s`` seconds from the moment at which it asked."""

    permits: int = ANY
    part: int = PARTS
    caps: Caps = NO_CAPS
    """Of all tenants together, as they were set by hand."""
    tenants: int = 1
    """How many draw on the account now."""
    lacks: bool = False
    """Some tenant could use more than it has: it is worth while to ask again soon."""
    for_s: float = LEASE_S


NOTHING: Final = Share(permits=0, part=0)


def ask(account: Account, asked: Asked, at_s: float) -> Share:
    """A tenant asks for its share, or renews it, and gives back what it does not keep."""
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
    return Share(
        permits=own.permits, part=own.part, caps=account.caps, tenants=sum(want > 0 for want in live.values()),
        lacks=lacks,
    )  # fmt: skip


def _lend_permits(account: Account, own: Tenant, wants: list[int], place: int, at_s: float) -> bool:
    most = account.caps.concurrency
    if most is None:
        own.permits = ANY
        return False
    fair = in_turn([(want, 1.0) for want in wants], most, int(at_s // LEASE_S))
    free = most - sum(each.counted for each in account.tenants.values())
    own.permits = min(fair[place], own.counted + max(free, 0))
    own.counted = max(own.counted, own.permits)
    return sum(wants) > most


def _lend_part(account: Account, own: Tenant, wants: list[int], place: int) -> bool:
    """In proportion to what each could use; who wants nothing has none, and who is alone all."""
    fair = fair_shares([(PARTS if want else 0, float(max(want, 1))) for want in wants], PARTS)
    free = PARTS - sum(each.counted_part for each in account.tenants.values())
    own.part = min(fair[place], own.counted_part + max(free, 0))
    own.counted_part = max(own.counted_part, own.part)
    return sum(want > 0 for want in wants) > 1


def leave(account: Account, tenant: str) -> None:
    """Nothing of this tenant is in use any more, nor will be."""
    account.tenants.pop(tenant, None)


def bounds(share: Share, own: Caps) -> Caps:
    """What a tenant holds itself to: its share of what was set for all, and what was set for it alone.

    ``share.part`` is above 0. What the provider tells is for all tenants too: the others' part is headroom."""
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


class Lent(msgspec.Struct):
    """A tenant's own side of one pool: what it was lent, until when by its own clock, and what it may be using."""

    share: Share = NOTHING
    until_s: float = float("-inf")
    parts: list[tuple[float, int, int]] = msgspec.field(default_factory=list)
    """(until, serial, part): parts that were in force. By them a job may still pace itself until then, unless it has
    heard of a grant that came after that serial."""


def in_force(lent: Lent, at_s: float) -> Share:
    """What may be used now: nothing once the lease has run out."""
    return lent.share if at_s < lent.until_s else NOTHING


def keep(
    lent: Lent, at_s: float, in_use: int, want: int, grants_s: float, heard: int = 0, serial: int = 0
) -> tuple[int, int]:
    """Permits and part that are kept, to be told: what is not is given back, and no more is let begin from here on.

    ``in_use``: permits that the tenant's own jobs may be using. ``grants_s``: how long what they were granted holds:
    so long they may pace themselves by a rate that is not theirs any more, unless all have ``heard`` of a later grant;
    ``serial``: the last that was given.
    """
    if at_s >= lent.until_s and lent.share is not NOTHING:
        _lower(lent, NOTHING, lent.until_s + grants_s, serial)
    share = lent.share
    if share.permits != ANY:
        lent.share = share = msgspec.structs.replace(share, permits=min(share.permits, max(want, in_use)))
    lent.parts = [each for each in lent.parts if each[0] > at_s and each[1] >= heard]
    return max(in_use, share.permits), max([share.part, *(part for *_, part in lent.parts)])


def take(lent: Lent, share: Share, asked_s: float, at_s: float, grants_s: float, serial: int = 0) -> None:
    """The answer to what was asked at ``asked_s``."""
    _lower(lent, share, at_s + grants_s, serial)
    lent.until_s = max(lent.until_s, asked_s + share.for_s)


def _lower(lent: Lent, share: Share, until_s: float, serial: int) -> None:
    if share.part < lent.share.part:
        lent.parts.append((until_s, serial, lent.share.part))
    lent.share = share
