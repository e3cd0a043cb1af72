"""Several clusters and one account: what was set for all is never passed, whoever dies, is cut off or comes back."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from policies.limits import tenancy
from policies.limits.limit import PoolCaps
from policies.limits.tenancy import (
    ANY,
    LEASE_S,
    PARTS,
    LentShare,
    SharedAccount,
    TenantRequest,
    TenantShare,
    ask,
    in_force,
    keep,
    take,
)

GRANTS_S, CALL_S = 15.0, 20.0
LINGER_S = GRANTS_S + CALL_S


class Cluster:
    """One tenant, by a clock of its own. ``in_use``: permits that its jobs have; ``paced``: (until, part) by which some
    of them pace themselves."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        self.skew_s = chance.uniform(-1e6, 1e6)
        self.lent = LentShare()
        self.sure_s = float("-inf")
        self.in_use = self.want = 0
        self.ghosts: list[tuple[float, int, int]] = []
        """(until, permits, part) of lives that are over, as the world knows them."""
        self.paced: list[tuple[float, int]] = []
        self.asking: tuple[float, TenantRequest, TenantShare | None] | None = None

    def live(self, now_s: float, most: int) -> None:
        """Its jobs want something else; it lends them what it may, and takes back what it must."""
        chance, at_s = self._chance, now_s + self.skew_s
        if chance.random() < 0.3:
            self.want = chance.choice([0, 1, 3, 10, 40])
        share = in_force(self.lent, at_s)
        held = sum(
            permits for until_s, permits, _ in self.ghosts if until_s > now_s
        )  # its jobs tell, or nothing is lent
        may = max(0, (most if share.permits == ANY else share.permits) - held)
        if self.in_use < min(may, self.want):
            self.in_use = chance.randint(self.in_use, min(may, self.want))
        elif self.in_use > min(may, self.want) and chance.random() < 0.5:  # calls come home
            self.in_use = chance.randint(min(may, self.want), self.in_use)
        if share.part and self.in_use:
            self.paced.append((now_s + GRANTS_S, share.part))

    def die(self, now_s: float) -> None:
        """What was begun goes on without it; the next life remembers nothing."""
        at_s = now_s + self.skew_s
        until_s = max(now_s, min(self.lent.until_s, at_s + GRANTS_S) - self.skew_s) + LINGER_S
        self.ghosts.append((min(until_s, now_s + LINGER_S), self.in_use, self.part(now_s)))
        self.lent, self.in_use, self.paced, self.asking = LentShare(), 0, [], None
        self.sure_s = at_s + LINGER_S

    def pass_to(self, now_s: float) -> None:
        """Calls end in their time: no grant outlives the lease by more than its own, and no call that."""
        if now_s + self.skew_s >= self.lent.until_s + LINGER_S:
            self.in_use = 0

    def part(self, now_s: float) -> int:
        return max([part for until_s, part in self.paced if until_s > now_s], default=0)

    def used(self, now_s: float) -> tuple[int, int]:
        """Permits and part in use, those of its former lives too: a cluster that came back adopts what still runs."""
        ghosts = [each for each in self.ghosts if each[0] > now_s]
        permits = sum(each[1] for each in ghosts)
        return permits + self.in_use, max([self.part(now_s), *(each[2] for each in ghosts)])

    def begin_asking(self, now_s: float) -> None:
        at_s = now_s + self.skew_s
        permits, part = keep(self.lent, at_s, self.in_use, self.want, GRANTS_S)
        self.asking = at_s, TenantRequest(
            tenant=self.name, want=self.want, keeps=permits, keeps_part=part, sure=at_s >= self.sure_s,
            linger_s=LINGER_S,
        ), None  # fmt: skip


def _world(seed: int) -> tuple[float, float]:
    """Permits and parts that were in use, summed over its moments, against what could have been."""
    chance = random.Random(seed)
    most = chance.choice([1, 2, 5, 20, 100])
    account = SharedAccount(PoolCaps(concurrency=most))
    clusters = [Cluster(f"c{number}", chance) for number in range(chance.randint(2, 4))]
    now_s = 0.0
    lent: list[tuple[float, float]] = []
    for _ in range(400):
        now_s += chance.choice([0.0, 0.01, 0.3, 2.0, 9.0])
        for each in clusters:
            each.pass_to(now_s)
        one = chance.choice(clusters)
        what = chance.random()
        if what < 0.45:
            one.live(now_s, most)
        elif what < 0.5 and not one.ghosts:
            one.die(now_s)
        elif one.asking is None:
            one.begin_asking(now_s)
        elif one.asking[2] is None:
            asked_s, asked, _ = one.asking
            share = ask(account, asked, now_s)
            one.asking = (asked_s, asked, share) if chance.random() < 0.85 else None  # the answer may be lost
        else:
            asked_s, _, share = one.asking
            if chance.random() < 0.9:  # and may come late
                assert share is not None
                take(one.lent, share, asked_s, now_s + one.skew_s, GRANTS_S)
            one.asking = None
        used = [each.used(now_s) for each in clusters]
        lent.append((sum(permits for permits, _ in used) / most, sum(part for _, part in used) / PARTS))
        assert sum(permits for permits, _ in used) <= most, (seed, now_s)
        assert sum(part for _, part in used) <= PARTS, (seed, now_s)
    return sum(permits for permits, _ in lent) / len(lent), sum(part for _, part in lent) / len(lent)


def test_what_was_set_for_all_is_never_passed(tell: Callable[[str], None]) -> None:
    found = [_world(seed) for seed in range(300)]
    permits, part = (sum(each) / len(found) for each in zip(*found, strict=True))
    tell(f"{len(found)} worlds: {permits:.0%} of the permits and {part:.0%} of the rates in use")
    assert permits > 0.1, "shares are kept from everybody"
    assert part > 0.05


def _asks(account: SharedAccount, name: str, want: int, at_s: float, lent: LentShare, in_use: int = 0) -> TenantShare:
    permits, part = keep(lent, at_s, in_use, want, GRANTS_S)
    share = ask(account, TenantRequest(tenant=name, want=want, keeps=permits, keeps_part=part, linger_s=LINGER_S), at_s)
    take(lent, share, at_s, at_s, GRANTS_S)
    return share


def test_who_is_alone_has_all_and_who_comes_gets_a_fair_share_as_soon_as_it_is_given_back() -> None:
    account = SharedAccount(PoolCaps(concurrency=10, requests_per_min=600))
    one, two = LentShare(), LentShare()
    alone = _asks(account, "one", 30, 0.0, one)
    assert (alone.permits, alone.part, alone.tenants) == (10, PARTS, 1)
    first = _asks(account, "two", 30, 1.0, two)
    assert (first.permits, first.part, first.lacks) == (0, 0, True)
    assert (_asks(account, "one", 30, 2.0, one, 10).permits, one.share.part) == (5, 500)
    assert _asks(account, "two", 30, 2.5, two).permits == 0, "calls of the other are under way yet"
    _asks(account, "one", 30, 3.0, one, 5)
    assert (_asks(account, "two", 30, 3.5, two).permits, two.share.part) == (5, 0)
    _asks(account, "one", 30, 18.0, one, 5)
    assert _asks(account, "two", 30, 18.5, two, 5).part == 500, "nobody paces itself by the old rate any more"
    _asks(account, "one", 0, 20.0, one, 0)
    assert _asks(account, "two", 30, 20.5, two, 5).permits == 10


def test_what_a_silent_tenant_had_counts_until_its_last_call_must_have_ended() -> None:
    account = SharedAccount(PoolCaps(concurrency=10))
    one, two = LentShare(), LentShare()
    _asks(account, "one", 10, 0.0, one)
    for at_s in (1.0, LEASE_S + 1, LEASE_S + LINGER_S - 1):
        assert _asks(account, "two", 10, at_s, two).permits == 0
    assert _asks(account, "two", 10, LEASE_S + LINGER_S, two).permits == 10
    assert in_force(one, LEASE_S).permits == 0, "it begins nothing once its lease has run out"


def test_clusters_take_turns_where_there_are_fewer_permits_than_clusters() -> None:
    account = SharedAccount(PoolCaps(concurrency=1))
    lents = {name: LentShare() for name in "abc"}
    had: set[str] = set()
    for at_s in range(400):
        for name, lent in lents.items():
            share = _asks(account, name, 5, float(at_s), lent, 0)
            had |= {name} if share.permits else set()
    assert had == set(lents)


def test_a_share_bounds_what_a_cluster_may_use() -> None:
    of_all = PoolCaps(concurrency=10, requests_per_min=600, headroom=0.2, who="ann")
    share = TenantShare(permits=4, part=250, caps=of_all)
    found = tenancy.bounds(share, PoolCaps(requests_per_min=100, who=""))
    assert (found.concurrency, found.requests_per_min, found.who) == (4, 100, "ann")
    assert found.headroom == pytest.approx(0.8)
    assert tenancy.bounds(share, PoolCaps()).requests_per_min == 150
    assert tenancy.bounds(TenantShare(), PoolCaps(concurrency=3)) == PoolCaps(concurrency=3)


def test_who_came_back_and_remembers_nothing_gives_nothing_back_before_it_knows() -> None:
    account = SharedAccount(PoolCaps(concurrency=10))
    _asks(account, "one", 10, 0.0, LentShare())
    ask(account, TenantRequest(tenant="one", want=0, sure=False, linger_s=LINGER_S), 1.0)
    assert _asks(account, "two", 10, 2.0, LentShare()).permits == 0
    ask(account, TenantRequest(tenant="one", want=0, keeps=3, linger_s=LINGER_S), 20.0)
    assert _asks(account, "two", 10, 21.0, LentShare()).permits == 7
