"""Jobs with shards: a driver that deals rows to them and collects their results, despite repeated kills."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import msgspec

from actors.driver.driver import FLUSH_ROWS, FLUSH_S
from actors.driver.sharding import DriverHooks, ShardRouter
from actors.files.sources.row_source import SourceWindow
from actors.journal.journal import StoreError
from cortex.state.events import Row
from tests.simulation.mini_driver import FOLDER, LOOK_S, SimDriver
from tests.simulation.scenario import Plan, plan

BACK = ("over_budget", "max_failed", "deadline")


def sharded(seed: int) -> Plan:
    """Return the plan of a seed, with shards in each of its batches."""
    chance = random.Random(f"{seed}/shards")
    made = plan(seed)
    jobs = [
        replace(
            job, program="batch", shards=chance.choice((2, 2, 3, 5)), retries=0, batches=False, judge=False,
            rows=max(job.rows, 20), deadline_s=None, cap_share=chance.choice((job.cap_share, job.cap_share, 0.2, 0.6)),
        )
        for job in made.jobs[:2]
    ]  # fmt: skip
    return replace(made, jobs=jobs)


class Rows:
    """Rows of a job, like a file."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows, self._at = rows, 0

    def seek(self, position: int) -> None:
        self._at = position

    def read(self, rows_max: int) -> SourceWindow:
        some = self._rows[self._at : self._at + rows_max]
        self._at += len(some)
        return SourceWindow(tuple(some), self._at, self._at >= len(self._rows))


class ShardsDriver(SimDriver):
    """Driver of a job with shards. The router is the real one."""

    count = 1
    ordered = False

    async def _follow(self) -> bool:
        facts: dict[str, Any] = {}
        sink = self._sink

        async def told() -> dict[str, Any]:
            facts.update(msgspec.json.decode(await self._ask(self._channel, "status")))
            return facts

        async def written(rows: int, size_bytes: int, parts: tuple[int, ...]) -> None:
            checksum = (self._checksum(),) if self.lies else ()
            await self._ask(self._channel, "written", rows, size_bytes, parts, None, *checksum)

        def over() -> bool:
            return facts["outcome"] != "running" or bool(facts["broken"])

        async def gather() -> None:
            while True:
                await dealing.drain(_File(sink.values), FLUSH_S, FLUSH_ROWS)
                await told()
                if facts["broken"] or await self._ask(self._channel, "seal", facts["results"]):
                    return

        steering = DriverHooks(over, told, written)
        dealing = ShardRouter(self._runtime, FOLDER, self.count, self.ordered, steering, lambda rows: 0, False)
        await told()
        await dealing.begin()
        written_rows = facts["results_written"]
        self._cut_back(written_rows, facts["checksum_written"])
        if dealing.start_at(len(sink.values), written_rows, len(sink.values)) != len(sink.values):
            sink.values.clear()
        work = [asyncio.create_task(gather())]
        work += [asyncio.create_task(dealing.feed(Rows(self._rows))), asyncio.create_task(self._look(told))]
        try:
            while not work[0].done():
                await asyncio.wait([task for task in work if not task.done()], return_when=asyncio.FIRST_COMPLETED)
                for task in work:
                    if task.done():
                        task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        await told()
        if facts["broken"]:
            raise StoreError(facts["broken"])
        if self._resumes(facts):
            return False
        if facts["outcome"] == "complete" and (lost := await dealing.missing()):
            raise StoreError(lost)
        sink.outcome, sink.why, sink.facts = facts["outcome"], facts["why"], facts
        return True

    async def _look(self, told: Any) -> None:
        while True:
            facts = await told()
            await asyncio.gather(*(self._send_credential(name) for name in facts["unarmed"]))
            await asyncio.sleep(LOOK_S)


class _File:
    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def write(self, values: list[Any]) -> None:
        self._values.extend(values)

    def flush(self) -> tuple[int, int]:
        return len(self._values), 0
