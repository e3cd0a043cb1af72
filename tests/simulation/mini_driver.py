"""Small driver: arms the branches, opens the job, feeds rows and reads results, despite repeated kills.

Its output is kept by the simulated world, like a file.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from actors.driver.credential_sender import ARM_S
from actors.jobs.opening import Opening
from actors.journal.journal import StoreError
from actors.maintenance import offline_edits
from actors.maintenance.retry_rows import NoFailedRows, reopening
from actors.ports.runtime import ClusterError, PeerGone, PeerUnavailable
from actors.routing.model_factory import ConnectionSpec, encode
from cortex.state.events import Row, RowsReopened
from cortex.values.limits import JobTerms
from policies.limits.limit import PoolCaps

LOOK_S = 0.5
PATIENCE = 100
"""Requests to a peer without an answer before the driver begins anew."""
FOLDER = "/simulated"


class Sink:
    """Results file that outlives the driver."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.outcome = ""
        self.why = ""
        self.facts: dict[str, Any] = {}
        self.retried = 0


class SimDriver:
    """Driver of one job. ``resumes`` decides whether to resume a job that ended partial; ``decides`` returns the user's
    decisions about message batches in doubt.
    """

    count, ordered = 1, False
    cuts = lies = False
    """``cuts``: the sink may hold more than the journal, and is cut back: after a retry, or where a disk lies."""

    def __init__(
        self, runtime: Any, terms: JobTerms, connection: ConnectionSpec, rows: list[Row], sink: Sink, resumes: Any, cap: int,
        decides: Callable[[], tuple[tuple[int, str], ...]], retries: int = 0, journal: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        self._retries = retries
        self.cuts = bool(retries)
        self._journal = journal
        self._reopened: RowsReopened | None = None
        self._runtime = runtime
        self._terms = terms
        self._connection = encode(connection)
        self._pool = connection.pool_name
        self._cap = cap
        self._decides = decides
        self._rows = rows
        self._sink = sink
        self._resumes = resumes
        self._channel = runtime.peer(f"channel:{terms.job}")

    async def run(self) -> None:
        """Drive the job until it has ended for good."""
        while True:
            try:
                await self._begin()
                if await self._follow() and not await self._again():
                    break
            except (PeerGone, StoreError, ClusterError) as error:
                if "damaged" in str(error) and isinstance(error, StoreError):
                    self._sink.outcome, self._sink.why = "damaged", str(error)
                    break  # a person must look, or bring back a backup
                # the channel ended itself, was fenced, or its disk was full: begin anew
            await asyncio.sleep(LOOK_S)
        await self._runtime.end_actor(f"channel:{self._terms.job}")

    async def _again(self) -> bool:
        """Reopen failed rows, as often as the user wants. Return False if none is left."""
        sink = self._sink
        if sink.outcome not in ("complete", "partial") or sink.retried >= self._retries or self._journal is None:
            return False
        if not sink.facts["rows_failed"] or not sink.facts["source_ended"]:
            return False
        try:
            self._reopened = reopening(
                self._journal(), offline_edits.loaded, (), who="sim", position=sink.facts["position"]
            )
        except NoFailedRows:
            return False
        sink.retried += 1
        sink.outcome = ""
        await self._runtime.end_actor(f"channel:{self._terms.job}")
        return True

    def _rows_now(self) -> list[Row]:
        """Return all rows of the source, followed by the reopened ones."""
        rows, places = list(self._rows), {row.key: place for place, row in enumerate(self._rows)}
        for _, event in self._journal().reopenings() if self._journal is not None else ():
            for key in sorted(event.keys, key=places.__getitem__):
                rows.append(msgspec.structs.replace(self._rows[places[key]], place=places[key]))
        return rows

    async def _ask(self, peer: Any, method: str, *args: Any) -> Any:
        for _ in range(PATIENCE):
            try:
                return await peer.ask(method, *args)
            except PeerUnavailable:
                await asyncio.sleep(0.2)
        raise PeerGone(peer.name)

    async def _begin(self) -> None:
        branches, _ = await self._ask(self._runtime.peer("cortex"), "staff", False)
        await asyncio.gather(*(self._send_credential(name) for name in branches))
        if self._cap:
            caps = msgspec.msgpack.encode(PoolCaps(concurrency=self._cap, who="sim"))
            await self._ask(self._runtime.peer("cortex"), "cap", "sim", self._pool, caps)
        job = self._terms.job
        await self._runtime.start_actor("channel", f"channel:{job}", job, FOLDER)
        opening = Opening(
            terms=self._terms, owner=self._runtime.owner(), who="sim", decided=self._decides(), reopened=self._reopened
        )
        await self._ask(self._channel, "start", msgspec.msgpack.encode(opening))
        self._reopened = None

    async def _send_credential(self, name: str) -> None:
        try:
            async with asyncio.timeout(ARM_S):
                await self._runtime.peer(name).ask("set_credential", self._terms.job, self._connection)
        except (PeerUnavailable, PeerGone, TimeoutError):
            pass  # the status names it, or its peers have the credential

    async def _follow(self) -> bool:
        """Feed and read until the job has ended. Return False if it is to be resumed."""
        sink = self._sink
        rows = self._rows_now() if self._retries else self._rows
        edition = None
        if self.cuts:
            facts = msgspec.json.decode(await self._ask(self._channel, "status"))
            edition = facts["reopened"]
            self._cut_back(facts["results_written"], facts["checksum_written"])
        while True:
            facts = msgspec.json.decode(await self._ask(self._channel, "status"))
            if facts["broken"]:
                raise StoreError(facts["broken"])
            await asyncio.gather(*(self._send_credential(name) for name in facts["unarmed"]))
            await self._feed(facts, rows)
            blob = await self._ask(self._channel, "results", len(sink.values), LOOK_S)
            some = msgspec.msgpack.decode(blob)
            for index, value in some:
                if index == len(sink.values):
                    sink.values.append(value)
            if some:
                checksum = (self._checksum(),) if self.lies else ()
                await self._ask(self._channel, "written", len(sink.values), 0, (), edition, *checksum)
            elif facts["outcome"] != "running" and len(sink.values) >= facts["results"] - facts["results_restored"]:
                if self._resumes(facts):
                    return False
                if not await self._ask(self._channel, "seal", facts["results"]):
                    continue
                if len(sink.values) < facts["results"]:
                    continue  # restored ones, which come now
                facts = msgspec.json.decode(await self._ask(self._channel, "status"))
                sink.outcome, sink.why, sink.facts = facts["outcome"], facts["why"], facts
                return True

    def _cut_back(self, written: int, checksum: int) -> None:
        """Truncate the sink, like a file, to what the journal records; let it be written anew if it is something else.
        """
        values = self._sink.values
        del values[written:]
        if self.lies and (len(values) != written or self._changed(checksum)):
            values.clear()

    def _changed(self, checksum: int) -> bool:
        return checksum not in (-1, self._checksum())

    def _checksum(self) -> int:
        return zlib.crc32(repr(self._sink.values).encode())

    async def _feed(self, facts: dict[str, Any], source: list[Row]) -> None:
        wanted, position = int(facts["rows_wanted"]), int(facts["position"])
        while not facts["source_ended"] and wanted > 0:
            rows = source[position : position + wanted]
            end = position + len(rows)
            ended = end >= len(source)
            wanted = await self._ask(self._channel, "feed", msgspec.msgpack.encode(rows), position, end, ended)
            position = end
            if ended:
                return
