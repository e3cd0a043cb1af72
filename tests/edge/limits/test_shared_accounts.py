"""Two clusters, one account: what was set for both holds across both, and what one does not use the other has."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.journal.journal import DatabaseUnreachable, StoreError
from actors.limits import shared_accounts
from actors.ports.runtime import PeerUnavailable
from policies.failures.route_choice import pool_name
from policies.limits import tenancy
from policies.limits.limit import PoolCaps
from policies.limits.tenancy import SharedAccount, TenantRequest, TenantShare
from tests.edge.support.in_process_job import FunctionModel, ListSource, MeetingModel, Run, rows
from tests.edge.support.lease_fixture import World, act
from tests.support.patience import PATIENCE_S

ADDRESS = "postgresql://h/d"
POOL = pool_name("test", "", "m")


class Here:
    """Accounts that the clusters of one process share."""

    def __init__(self, **caps: Any) -> None:
        self.account = SharedAccount(PoolCaps(**caps))
        self.away = ""
        self.ask_s: list[float] = []
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1
        if self.away:
            raise StoreError(self.away)

    def ask(self, pool: str, asked: TenantRequest) -> TenantShare:
        assert pool == POOL
        if self.away:
            raise DatabaseUnreachable(self.away)
        self.ask_s.append(time.monotonic())
        return tenancy.ask(self.account, asked, time.monotonic())

    def leave(self, pool: str, tenant: str) -> None:
        tenancy.leave(self.account, tenant)


def _shared(monkeypatch: pytest.MonkeyPatch, **caps: Any) -> Here:
    made = Here(**caps)
    monkeypatch.setattr(shared_accounts, "accounts_at", lambda address: made)
    return made


def _run(folder: Path, model: FunctionModel, count: int) -> Run:
    run = Run(folder, model, source=ListSource(rows(count)))
    opening = run.driver._opening
    terms = msgspec.structs.replace(opening.terms, places={shared_accounts.PLACE: ADDRESS})
    run.driver._opening = msgspec.structs.replace(opening, terms=terms)
    return run


async def test_a_limit_holds_across_two_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, model = _shared(monkeypatch, concurrency=5), MeetingModel(5, pause_s=0.01)
    first, second = (_run(tmp_path / name, model, 60) for name in "ab")
    await asyncio.gather(first.to_end(), second.to_end())
    assert len(model.complete) == 120
    assert model.most_at_once == 5, "all of it is used, and no more"
    assert there.account.tenants == {}, "what they had is given back"


async def test_who_is_alone_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, model = _shared(monkeypatch), MeetingModel(20, pause_s=0.05)
    began_s = time.monotonic()
    await _run(tmp_path, model, 100).to_end()
    assert model.most_at_once >= 20, "where no number was set its own limit alone bounds it"
    assert len(there.ask_s) <= 4 + 5 * (time.monotonic() - began_s), "it asks as often as something is new"


async def test_where_nobody_answers_any_more_a_share_runs_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, model = _shared(monkeypatch, concurrency=2), FunctionModel(pause_s=0.05)
    monkeypatch.setattr(tenancy, "LEASE_S", 0.6)
    monkeypatch.setattr(shared_accounts, "LOOK_S", 0.05)
    ask = tenancy.ask
    monkeypatch.setattr(tenancy, "ask", lambda *given: msgspec.structs.replace(ask(*given), for_s=0.6))
    run = _run(tmp_path, model, 60)
    running = asyncio.create_task(run.to_end())
    while len(model.complete) < 10:  # noqa: ASYNC110 - the very next moment is wanted
        await asyncio.sleep(0.005)
    there.away = "the database postgresql://h/d is away"
    model._pause_s = 0.2  # what is left takes several times as long as the share may last
    cortex: Any = run.runtime.find("cortex")
    while cortex._state.pools[POOL].granted or model.at_once:  # noqa: ASYNC110 - its share has run out
        await asyncio.sleep(0.005)
    asked = len(model.asked)
    assert asked < 60
    await asyncio.sleep(0.2)
    assert len(model.asked) == asked, "nothing is begun without a share"
    assert caplog.text.count("postgresql://h/d is away") == 1
    there.away, model._pause_s = "", 0.01
    await running
    assert len(model.complete) == 60
    assert model.most_at_once <= 2


async def test_an_error_that_no_store_names_ends_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there, model = _shared(monkeypatch), FunctionModel()
    ask, troubles = there.ask, [RuntimeError("out of the blue"), RuntimeError("out of the blue")]

    def troubled(pool: str, asked: TenantRequest) -> TenantShare:
        if troubles:
            raise troubles.pop()
        return ask(pool, asked)

    there.ask = troubled  # type: ignore[method-assign]
    monkeypatch.setattr(shared_accounts, "LOOK_S", 0.01)
    async with asyncio.timeout(PATIENCE_S):
        await _run(tmp_path, model, 20).to_end()
    assert len(model.complete) == 20
    assert caplog.text.count("out of the blue") >= 2


async def test_a_database_that_refuses_lets_nothing_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, model = _shared(monkeypatch), FunctionModel()
    there.away = "cannot use the database postgresql://h/d: it refuses"
    with pytest.raises(StoreError, match="it refuses"):
        await _run(tmp_path, model, 5).to_end()
    assert model.asked == []


def _renewing() -> int:
    """So many loops renew shares."""
    return sum(getattr(task.get_coro(), "__qualname__", "") == "AccountSharing._run" for task in asyncio.all_tasks())


def test_a_cortex_that_came_back_at_the_second_try_renews_its_shares_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that renew share what they know: an older answer after a newer one would raise what was given back."""
    _shared(monkeypatch)

    async def play(world: World) -> None:
        world.notes.put(shared_accounts.ADDRESS, ADDRESS.encode())
        names, tries = world.names, iter((True, False))

        async def first_away(prefix: str) -> tuple[str, ...]:
            if next(tries):
                raise PeerUnavailable("the cluster's head")
            return await names(prefix)

        monkeypatch.setattr(world, "names", first_away)
        cortex = world.start(again=True)
        with pytest.raises(PeerUnavailable):
            await cortex.begin(True)
        assert _renewing() == 0, "nothing has begun"
        await cortex.begin(True)
        assert _renewing() == 1

    act(play)


async def test_two_jobs_that_come_at_once_are_one_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    there, world = _shared(monkeypatch), World()
    cortex = world.start()
    await asyncio.gather(*(cortex.share(ADDRESS) for _ in range(2)))
    assert (there.prepared, _renewing()) == (1, 1)
    with pytest.raises(StoreError, match="already shares its limits at"):
        await cortex.share("postgresql://h/other")
    await world.end()


async def test_of_two_places_that_are_named_at_once_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _shared(monkeypatch)
    world = World()
    cortex = world.start()
    parts = await asyncio.gather(
        cortex.share(ADDRESS), cortex.share("postgresql://h/other"), return_exceptions=True
    )  # fmt: skip
    assert [type(each) for each in parts] == [type(None), StoreError]
    await world.end()
