"""A job with labels whose budgets nobody can be asked for: it begins nothing until somebody has answered."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.channel.leases.budget_client import BudgetClient
from actors.jobs.wait_reasons import waits
from actors.ports.runtime import PeerGone, PeerUnavailable
from cortex.scheduler.budgets import BudgetAnswer, BudgetRequest
from cortex.state import events
from cortex.state.budget_slice import BudgetSlice
from cortex.values.limits import Route
from policies.estimates.price import Price
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import PRICE, Flat, Stage, terms

DAY = 100
LENT, SPENT = BudgetSlice("team=search", "day", DAY, 10**9), BudgetSlice("team=search", "day", DAY, 0)
SIM = Route(endpoint="sim:", model="m", context_window=200_000)


class Silent:
    """A runtime whose cortex answers nobody until it is back; and its own peer, and a journal with nothing in it."""

    cluster, seq, epoch = "k8s", 0, 1

    def __init__(self, away: type[Exception], back: BudgetAnswer) -> None:
        self._back, self.away = back, away
        self.silent = True
        self.asked_again = asyncio.Event()
        self.heard: list[BudgetRequest] = []
        self._asked = 0

    def peer(self, name: str) -> Silent:
        assert name == "cortex"
        return self

    async def ask(self, what: str, blob: bytes) -> bytes:
        assert what == "lend"
        self._asked += 1
        if self._asked > 1:
            self.asked_again.set()
        if self.silent:
            raise self.away("not now")
        self.heard.append(msgspec.msgpack.decode(blob, type=BudgetRequest))
        return msgspec.msgpack.encode(self._back)

    def account(self, seq: int) -> bytes:
        return b""

    def now_s(self) -> float:
        return 86_400.0 * DAY + 5.0


@pytest.mark.parametrize("away", [PeerUnavailable, PeerGone, RuntimeError])
@pytest.mark.parametrize(
    ("price", "back"),
    [(PRICE, BudgetAnswer()), (PRICE, BudgetAnswer((LENT,))), (None, BudgetAnswer((SPENT,))), (None, BudgetAnswer())],
)
async def test_a_job_that_cannot_ask_for_its_budgets_begins_when_it_can(
    away: type[Exception], price: Price | None, back: BudgetAnswer
) -> None:
    """So does one that costs nothing, where nothing is left."""
    runtime: Any = Silent(away, back)
    begun = asyncio.Event()
    opening = terms(price=price, route=SIM if price is None else None, labels={"team": "search"})

    def put(happened: list[events.Event]) -> None:
        stage.turn(*happened)
        allowance.look()
        if stage.calls:
            begun.set()

    allowance = BudgetClient("j", "nowhere", runtime, lambda: stage.k, put)
    first = await allowance.first(opening, runtime, runtime.now_s)
    stage = Stage(Flat(texts=("a", "b")), permits=0, opened=events.Opened(opening, 1))
    stage.turn(*first, at_s=runtime.now_s())
    stage.turn(events.PermitsGranted(8))
    allowance.look()
    assert not stage.calls and not stage.k.outcome
    assert waits(stage.k) == ["waits to hear of the budgets of its labels"]
    holding = asyncio.create_task(allowance.hold())
    async with asyncio.timeout(PATIENCE_S):
        await runtime.asked_again.wait()
        assert not stage.calls
        runtime.silent = False
        await begun.wait()
    assert len(stage.calls) == 2
    assert (stage.k.purse.slices if stage.k.purse else ()) == back.slices
    assert [(asked.new, asked.lacks_nusd) for asked in runtime.heard[:1]] == [(True, 0)]
    assert not any(asked.new for asked in runtime.heard[1:])
    holding.cancel()
    await asyncio.wait([holding])
