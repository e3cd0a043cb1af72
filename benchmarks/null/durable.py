"""Least program that is still durable, with a model that answers at once: ``python -m benchmarks.null.durable
inline``.

Hand-written code whose only promise is that no paid reply is lost: goals in a dictionary, messages of 256 requests,
two messages ahead of each of two branches, a pool of coroutines in each, and a SQLite journal of every message's own
bytes, flushed once a turn before anything is sent. No leases, budget, bounds, retries, deadlines, typed programs,
telemetry, failover or recovery. The difference to Cortex is what these cost.

``inline``: one process; ``ray``: channel and branches are actors of a private Ray. Both use uvloop without garbage
collection.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.harness import rows
from benchmarks.harness.models import AtOnce
from cortex.values.reply import Reply, text_of

TOGETHER = 256
"""Requests of a message."""
AHEAD = 2
"""Messages under way to a branch."""
BRANCHES = 2
POOL = 100
"""Coroutines of a branch."""

Ask = Callable[[bytes], Awaitable[bytes]]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


class Goal(msgspec.Struct):
    """Call from creation to answer."""

    number: int
    text: str = ""


class Journal:
    """Journal of a row for each message, with one commit a turn."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        for text in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE messages (blob BLOB)"):
            self._db.execute(text)

    def commit(self, blobs: list[bytes]) -> None:
        """Write the messages to disk."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO messages VALUES (?)", [(blob,) for blob in blobs])
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class Branch:
    """Executor of the calls of a message, as many at once as its pool has coroutines."""

    def __init__(self) -> None:
        self._model = AtOnce()

    async def work(self, blob: bytes) -> bytes:
        """Return the message of the answers."""
        found: list[tuple[int, bytes]] = []
        calls = iter(_decode(blob))
        await asyncio.gather(*(self._takes(calls, found) for _ in range(POOL)))
        return _encode(found)

    async def _takes(self, calls: Iterator[tuple[int, bytes]], found: list[tuple[int, bytes]]) -> None:
        for number, body in calls:
            reply = await self._model.call(body, output_tokens_max=rows.OUTPUT_TOKENS_MAX, timeout_s=60.0)
            assert isinstance(reply, Reply)
            found.append((number, reply.body))


class Channel:
    """Loop that has all goals answered, turn by turn."""

    def __init__(self, asks: list[Ask], path: Path) -> None:
        self._journal = Journal(path)
        self._free = asks * AHEAD
        self._came: asyncio.Queue[tuple[Ask, bytes]] = asyncio.Queue()
        self._goals: dict[int, Goal] = {}

    async def run(self, calls: int) -> tuple[float, list[str]]:
        """Return the seconds from the first turn to the last answer, and the answers."""
        began_s = time.perf_counter()
        sent = answered = 0
        brought: list[bytes] = []
        async with asyncio.TaskGroup() as sending:
            while answered < calls or brought:
                messages: list[tuple[Ask, bytes]] = []
                while self._free and sent < calls:
                    numbers = range(sent, sent := min(calls, sent + TOGETHER))
                    asked = _encode([(number, self._select(number)) for number in numbers])
                    messages.append((self._free.pop(), asked))
                self._journal.commit([*brought, *(blob for _, blob in messages)])
                brought = []
                for message in messages:
                    sending.create_task(self._carried(*message))
                for ask, blob in await self._arrived() if answered < calls else ():
                    self._free.append(ask)
                    brought.append(blob)
                    answered += self._absorb(blob)
        took_s = time.perf_counter() - began_s
        self._journal.close()
        return took_s, [self._goals[number].text for number in range(calls)]

    def _select(self, number: int) -> bytes:
        self._goals[number] = Goal(number)
        return msgspec.json.encode(rows.params(number))

    async def _carried(self, ask: Ask, blob: bytes) -> None:
        self._came.put_nowait((ask, await ask(blob)))

    async def _arrived(self) -> list[tuple[Ask, bytes]]:
        some = [await self._came.get()]
        while not self._came.empty():
            some.append(self._came.get_nowait())
        return some

    def _absorb(self, blob: bytes) -> int:
        found = _decode(blob)
        for number, body in found:
            self._goals[number].text = text_of(body)
        return len(found)


def _no_collection() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def inline(calls: int, folder: str) -> tuple[float, list[str]]:
    """Run in one process."""
    _no_collection()

    async def all_of_it() -> tuple[float, list[str]]:
        return await Channel([Branch().work for _ in range(BRANCHES)], Path(folder, "journal")).run(calls)

    return uvloop.run(all_of_it())


def on_ray(calls: int, folder: str) -> tuple[float, list[str]]:
    """Run channel and branches as actors."""
    import ray

    from benchmarks.null import durable as own  # other processes find the classes by this module's name

    ray.init(address="local", num_cpus=BRANCHES, include_dashboard=False, log_to_driver=False)
    try:
        branch, channel = (ray.remote(num_cpus=0)(made) for made in (own.RayBranch, own.RayChannel))
        made: Any = channel.remote([branch.remote() for _ in range(BRANCHES)], folder)
        ray.get(made.run.remote(TOGETHER * BRANCHES, "warm-up"))  # starts the processes
        took_s, found = ray.get(made.run.remote(calls, "journal"))
        return float(took_s), list(found)
    finally:
        ray.shutdown()


class RayBranch(Branch):
    """Actor form of ``Branch``."""

    def __init__(self) -> None:
        _no_collection()
        super().__init__()


class RayChannel:
    """Actor form of ``Channel``, new for each run."""

    def __init__(self, branches: list[Any], folder: str) -> None:
        _no_collection()
        self._branches, self._folder = branches, folder

    async def run(self, calls: int, name: str) -> tuple[float, list[str]]:
        """Run ``Channel.run`` with a journal of this name."""
        return await Channel([branch.work.remote for branch in self._branches], Path(self._folder, name)).run(calls)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("road", choices=("inline", "ray"))
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--state", default=tempfile.gettempdir(), help="folder on the disk to measure")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="null-durable-", dir=given.state) as folder:
        took_s, found = (on_ray if given.road == "ray" else inline)(given.calls, folder)
        rows.check_all(((f"r{number:06d}", text) for number, text in enumerate(found)), given.calls)
        size_bytes = sum(file.stat().st_size for file in Path(folder).rglob("journal*"))
    facts = {"calls_per_s": given.calls / took_s, "journal_bytes_a_call": round(size_bytes / given.calls)}
    print(msgspec.json.encode(facts).decode(), flush=True)


if __name__ == "__main__":
    main()
