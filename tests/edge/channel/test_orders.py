"""Orders of people and drivers that reach a channel in one turn: each is made of K as the orders before it left it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.channel.channel import Channel
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.maintenance import offline_edits
from actors.messaging.servers_changed import ServersChanged
from cortex.state.state import State
from cortex.values.limits import Limits, Route
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually

SERVER = Route(endpoint="other", model="m")

ORDERS: dict[str, tuple[Callable[[Channel], Awaitable[Any]], Callable[[State], bool]]] = {
    "tokens": (
        lambda channel: channel.set_limits("ann", b'{"max_job_tokens": 5000}'),
        lambda k: k.terms.limits.max_job_tokens == 5000,
    ),
    "concurrency": (
        lambda channel: channel.set_limits("bob", b'{"concurrency": 8}'),
        lambda k: k.terms.limits.concurrency == 8,
    ),
    "servers": (
        lambda channel: channel.set_servers("eve", msgspec.msgpack.encode(ServersChanged((SERVER,), (), ""))),
        lambda k: [route.endpoint for route in k.terms.fallbacks] == ["other"],
    ),
    "key": (
        lambda channel: channel.unblock("its driver", tuple("new" for _ in channel._k.terms.routes)),
        lambda k: k.terms.route.credential == "new" or bool(k.stopping or k.outcome),
    ),
    "drain": (lambda channel: channel.stop("drain", "dan"), lambda k: k.stopping == "drain"),
    "condemn": (lambda channel: channel.condemn("it dies"), lambda k: k.why == "condemned: it dies"),
}
"""Each order, and whether K has its effect."""

TAKEN_BACK = [("tokens", "concurrency"), ("tokens", "servers"), ("concurrency", "key")]
PAIRS = [
    *TAKEN_BACK, *((second, first) for first, second in TAKEN_BACK), ("drain", "key"), ("key", "drain"),
    ("drain", "tokens"), ("condemn", "key"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_no_order_takes_back_another_of_the_same_turn(tmp_path: Path, first: str, second: str) -> None:
    async def both() -> State:
        model, limits = FunctionModel(pause_s=0.3), Limits(concurrency=4, window_rows=16)
        run = Run(tmp_path, model, source=ListSource(rows(200)), limits=limits, runtime=VirtualRuntime())
        driving = asyncio.create_task(run.driver.run())
        await asyncio.sleep(1.0)
        channel: Channel = run.runtime.find("channel:j")
        await asyncio.gather(*(ORDERS[each][0](channel) for each in (first, second)))
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        await run.runtime.close()
        return channel._k

    k = virtually(both())
    assert [name for name in (first, second) if not ORDERS[name][1](k)] == []


async def test_limits_of_a_job_at_rest_that_two_commands_set_at_once_both_hold(tmp_path: Path) -> None:
    run = Run(tmp_path, FunctionModel(pause_s=0.01), source=ListSource(rows(20)))
    await run.crash_after(lambda: run.driver.begun)
    folder = StateFolder(tmp_path)
    for who, changed in (("ann", {"max_job_tokens": 5000}), ("bob", {"concurrency": 8})):
        offline_edits.set_limits(folder, "j", who, changed)
    limits = last_state(folder, "j").terms.limits
    assert (limits.max_job_tokens, limits.concurrency) == (5000, 8)
