"""What is set by hand outlives the cortex that heard it, whether any job has heard of it or not."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.cluster.shipping.kv_store import ClusterNotes, ClusterStore
from policies.limits.limit import NO_CAPS, PoolCaps
from tests.edge.support.lease_fixture import ROUTE, World
from tests.edge.support.virtual_clock import virtually


class Kv:
    """The faces of Ray's key-value store that are used."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def _internal_kv_put(self, key: bytes, value: bytes, overwrite: bool = False) -> None:
        if overwrite or key not in self.kept:
            self.kept[key] = value

    def _internal_kv_get(self, key: bytes) -> bytes | None:
        return self.kept.get(key)

    def _internal_kv_list(self, prefix: bytes) -> list[bytes]:
        return [key for key in self.kept if key.startswith(prefix)]

    def _internal_kv_del(self, key: bytes, del_by_prefix: bool = False) -> None:
        self.kept = {name: value for name, value in self.kept.items() if not name.startswith(key)}


@pytest.mark.parametrize("before", ["nobody", "a job that has left"])
def test_a_cap_holds_for_a_cortex_that_no_job_can_tell_of_it(before: str) -> None:
    async def play() -> None:
        world = World()
        world.notes = ClusterNotes(Kv())  # type: ignore[assignment]
        world.start()
        if before != "nobody":
            gone = world.add("gone", wish=1)
            await asyncio.sleep(8.0)
            gone.k.outcome = "complete"
            gone.turn()
            await asyncio.sleep(1.0)
            del world.channels["gone"]
        await world.cortex.cap("ann", ROUTE, msgspec.msgpack.encode(PoolCaps(concurrency=7, requests_per_min=90.0)))
        for again in (True, False):
            await world.cortex.close()
            await world.start().begin(again)
            kept = world.cortex._state.pools[ROUTE].caps
            assert (kept.concurrency, kept.requests_per_min, kept.who) == (7, 90.0, "ann")
        job = world.add("j", wish=50)
        await asyncio.sleep(20.0)
        assert job.told[-1].permits == 7
        await world.end()

    virtually(play())


def test_a_cap_that_was_taken_away_does_not_come_back_with_the_memory_of_a_job() -> None:
    async def play() -> None:
        world = World()
        world.start()
        job = world.add("j", wish=50)
        await asyncio.sleep(8.0)
        await world.cortex.cap("ann", ROUTE, msgspec.msgpack.encode(PoolCaps(concurrency=7)))
        await asyncio.sleep(8.0)
        assert job.told[-1].permits == 7
        memo = job.k.shares[0].memo = job.told[-1].memo
        await world.cortex.cap("ann", ROUTE, msgspec.msgpack.encode(NO_CAPS))
        job.k.shares[0].memo = memo  # it had not heard when the cortex died
        await world.cortex.close()
        await world.start().begin(again=True)
        await asyncio.sleep(40.0)
        assert world.cortex._state.pools[ROUTE].caps.concurrency is None
        assert job.told[-1].permits == 50
        await world.end()

    virtually(play())


def test_a_channel_is_housed_until_its_job_ends() -> None:
    shelf = ClusterStore(Kv(), None, "j", own=False)
    assert shelf.host_of("j") == ""
    shelf.set_host("j", "10.0.0.2")
    shelf.set_host("j~1", "10.0.0.3")
    assert (shelf.host_of("j"), shelf.host_of("j~1")) == ("10.0.0.2", "10.0.0.3")
    shelf.clear("channel:j")
    assert shelf.host_of("j") == shelf.host_of("j~1") == ""


def test_notes_and_programs_do_not_meet_in_the_store() -> None:
    kv = Kv()
    notes, shelf = ClusterNotes(kv), ClusterStore(kv, None, "j", own=False)
    notes.put("cap/e||m", b"one")
    notes.put("cap/e||m", b"two")
    notes.put("other/x", b"three")
    shelf.clear("channel:j")
    assert notes.found("cap/") == {"cap/e||m": b"two"}
    assert notes.found("none/") == {}
    found: dict[str, Any] = notes.found("")
    assert set(found) == {"cap/e||m", "other/x"}
