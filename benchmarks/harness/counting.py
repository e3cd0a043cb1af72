"""Counts of the work done for calls, equal on every machine.

The real driver, channel, branches and scheduler run in one event loop in virtual time, with files and journal on disk;
only the model is fake. Counted are commits, messages and their encoded bytes (calls within one process are not encoded
and count as none), journal bytes, and every call of a Python function, by the standard library's profiler.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from actors.api.client import new_loop
from actors.api.session import Session
from actors.cluster.sockets.serialization import sealed
from actors.common.gc_tuning import unwatched
from actors.driver import driver
from actors.files.sinks.jsonl_sink import FileSink
from actors.files.sources.row_source import BatchSource
from actors.jobs.spec import JobSpec
from actors.journal.sqlite.storage import FileStorage
from actors.observability.traces import tracer
from actors.observability.wiring import of_environ
from actors.routing.model_spec import ModelSpec
from actors.scheduler.actor import Cortex
from benchmarks.harness import profile_parts, rows
from benchmarks.harness.baselines import bare
from benchmarks.harness.models import AtOnce, Oracle
from benchmarks.harness.server import DIGITS, MARK, Board, Connection, answer
from cortex.programs.batch import Batch
from cortex.programs.hanoi import Hanoi
from cortex.scheduler.state import SchedulerSettings
from cortex.values.limits import Limits
from policies.limits.limit import LimitPolicy
from tests.edge.support.virtual_clock import VirtualLoop, VirtualRuntime, virtually

COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>"})
"""Functions up to Python 3.11, inlined from 3.12 on."""
PLACES = 1_000
"""Calls that the pool is known to allow at once: finding the limit is not counted."""
HOP_S = 0.001
"""Virtual seconds of a message between processes."""
TURN_S = 0.001
"""Virtual seconds of a turn and its commit: leases are renewed and branches report as time passes."""
Figures = dict[str, float]


class Work:
    """Counts of work; can be added and subtracted."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.counts: Counter[str] = Counter()
        self.functions: Counter[tuple[str, str]] = Counter()
        """Calls of Python functions, by file and name."""

    def note_functions(self, profiler: cProfile.Profile) -> None:
        """Add a profiler's counts. Functions of the benchmark are left out."""
        for entry in profiler.getstats():
            code = entry.code
            if isinstance(code, str) or code.co_name in COMPREHENSIONS:
                continue
            if profile_parts.part(code.co_filename) not in _NOT_OURS:
                file = profile_parts.own(code.co_filename) or code.co_filename
                self.functions[file, code.co_name] += entry.callcount

    def less(self, other: Work) -> Work:
        """Return this work minus the other's: start and end, common to both, cancel."""
        found = Work(self.calls - other.calls)
        found.counts = Counter(self.counts)
        found.counts.subtract(other.counts)
        found.functions = Counter(self.functions)
        found.functions.subtract(other.functions)
        return found

    def figures(self, per: int) -> Figures:
        """Return the counts by name, scaled to ``per`` calls."""
        scale = per / self.calls
        found = {name: round(count * scale, 1) for name, count in sorted(self.counts.items()) if count}
        found["functions"] = round(self.functions.total() * scale, 1)
        found["functions of ours"] = round(
            sum(n for (file, _), n in self.functions.items() if profile_parts.own(file)) * scale, 1
        )
        return found

    def by_part(self, per: int) -> Figures:
        """Return function calls by part of the code, scaled to ``per`` calls."""
        found: Counter[str] = Counter()
        for (file, _), count in self.functions.items():
            found[profile_parts.part(file)] += count
        return {part: round(count * per / self.calls, 1) for part, count in found.most_common() if count}


_NOT_OURS = frozenset({"benchmark", "cProfile"})


@contextmanager
def _profiled(work: Work) -> Iterator[None]:
    profiler = cProfile.Profile(builtins=False)
    gc.collect()
    with unwatched():
        profiler.enable()
        try:
            yield
        finally:
            profiler.disable()
    work.note_functions(profiler)


class _Peer:
    """Peer whose messages are counted and take virtual time."""

    __slots__ = ("_hop_s", "_peer", "_runtime", "_work", "name", "near", "now")

    def __init__(self, peer: Any, work: Work, hop_s: float, runtime: Any) -> None:
        self._peer, self._work, self._hop_s, self._runtime = peer, work, hop_s, runtime
        self.name = peer.name
        self.near = not hop_s
        self.now = None if hop_s else self._now

    def _note(self, method: str, content: Any) -> None:
        name = f"{self.name.partition(':')[0]}.{method}"
        self._work.counts[f"messages: {name}"] += 1
        self._work.counts["bytes of messages"] += len(sealed(content))

    async def ask(self, method: str, *args: Any) -> Any:
        self._note(method, args)
        if not self._hop_s:
            return await self._peer.ask(method, *args)
        await asyncio.sleep(self._hop_s)
        answer = await self._peer.ask(method, *args)
        self._work.counts["bytes of messages"] += len(sealed(answer))
        await asyncio.sleep(self._hop_s)
        return answer

    def _now(self, method: str, *args: Any) -> Any:
        if found := self._peer.now(method, *args):  # otherwise nothing was sent
            self._note("work", args[:-1])
        return found

    def tell(self, method: str, *args: Any) -> None:
        self._note(method, args)
        if self._hop_s:
            self._runtime.background(self._later(method, args))
        else:
            self._peer.tell(method, *args)

    async def _later(self, method: str, args: tuple[Any, ...]) -> None:
        await asyncio.sleep(self._hop_s)
        self._peer.tell(method, *args)


class _Runtime(VirtualRuntime):
    """Runtime that counts messages."""

    def __init__(self, work: Work, branches: int, hop_s: float) -> None:
        self._work, self._hop_s = work, hop_s
        super().__init__(branches=branches)
        self.telemetry = of_environ({})
        known = LimitPolicy(start=PLACES)
        settings = SchedulerSettings(branches_min=branches, branches_max=branches, limit=known)
        self._actors["cortex"] = Cortex(self, branches, settings=settings)

    def peer(self, name: str) -> Any:
        return _Peer(super().peer(name), self._work, self._hop_s, self)


class _Session(Session):
    """Session with a counting runtime."""

    runtime: _Runtime

    async def _runtime(self, cluster: str) -> Any:
        return self.runtime


def _counting_commits(work: Work, turn_s: float) -> Any:
    append = FileStorage.append
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)

    def counted(self: FileStorage, epoch: int, seq: int, blobs: Sequence[bytes]) -> None:
        work.counts["commits"] += 1
        work.counts["bytes of the journal"] += sum(map(len, blobs))
        loop.at_s += turn_s
        append(self, epoch, seq, blobs)

    return mock.patch.object(FileStorage, "append", counted)


@contextmanager
def _virtual_clocks() -> Iterator[None]:
    """Replace the machine clock of periodic work by the loop's virtual clock."""
    clock = asyncio.get_running_loop().time
    publisher = mock.patch.object(driver, "StatusPublisher", partial(driver.StatusPublisher, clock=clock))
    with publisher, mock.patch.object(tracer, "time", SimpleNamespace(monotonic=clock)):
        yield


async def session(
    work: Work, order: JobSpec, model: Any, branches: int, hop_s: float,
    profiled: Callable[[Work], AbstractContextManager[None]] = _profiled, turn_s: float = TURN_S, **files: Any,
) -> Any:  # fmt: skip
    """Run a job from beginning to end; return its result. ``profiled``: context in which functions are counted."""
    runtime = _Runtime(work, branches, hop_s)
    whole = _Session(order, {}, model=model, **files)
    whole.runtime = runtime
    with _virtual_clocks(), _counting_commits(work, turn_s), profiled(work):
        return await whole.run()


def batch(calls: int, branches: int = 1, hop_s: float = 0.0, concurrency: int = 300) -> Work:
    """Count `cortex batch`, from a file to a file, with a model that answers at once."""
    work = Work(calls)
    with tempfile.TemporaryDirectory(prefix="count-") as place:
        folder = Path(place)
        rows.write_input(folder / "in.jsonl", calls)
        source = BatchSource(
            str(folder / "in.jsonl"), model="bench", output_tokens_max=None, spool=folder / "spool"
        )  # fmt: skip
        source.check()
        order = JobSpec(
            program=Batch(), model_spec=ModelSpec(model="bench"), job="count", state=str(folder), cluster="inline",
            limits=Limits(concurrency=concurrency),
        )  # fmt: skip
        sink = FileSink(str(folder / "out.jsonl"))
        ended = virtually(session(work, order, AtOnce(), branches, hop_s, source=source, sink=sink))
        source.close()
        complete(ended.facts, calls)
        rows.check_all(rows.results(folder / "out.jsonl"), calls)
    return work


def hanoi(disks: int) -> Work:
    """Count a chain of steps with three votes each and a model that knows the moves."""
    calls = 3 * (2**disks - 1)
    work = Work(calls)
    with tempfile.TemporaryDirectory(prefix="count-") as place:
        order = JobSpec(program=Hanoi(disks=disks, k=3), job="count", state=place, cluster="inline")
        ended = virtually(session(work, order, Oracle(), 1, 0.0))
        complete(ended.facts, calls)
        if not ended.answer["solved"]:
            raise rows.Lost(f"the towers do not stand: {ended.answer}")
    return work


def complete(facts: dict[str, Any], calls: int) -> None:
    """Check that the job made each call once. Raises ``rows.Lost``."""
    if (facts["outcome"], facts["calls"], facts["attempts"]) != ("complete", calls, calls):
        raise rows.Lost(f"{calls} calls, and the job says {facts['outcome']}, {facts['calls']}, {facts['attempts']}")


class _Board(Board):
    """Board that answers at once."""

    def take(self, transport: asyncio.Transport, body: bytes | bytearray, api: int) -> None:
        start = body.find(MARK) + len(MARK)
        transport.write(answer(int(body[start : start + DIGITS]), api))


class _Connection(Connection):
    """Connection that counts requests."""

    def __init__(self, board: _Board, work: Work) -> None:
        super().__init__(board)
        self._work = work

    def data_received(self, data: bytes) -> None:
        self._work.counts["bytes of requests"] += len(data)
        super().data_received(data)


async def _asked(work: Work, at_once: int) -> None:
    loop = asyncio.get_running_loop()
    board = _Board(0.0)
    server = await loop.create_server(lambda: _Connection(board, work), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with _profiled(work):
        answered = await bare(f"http://127.0.0.1:{port}", iter(range(work.calls)), at_once)
    server.close()
    if answered != work.calls:
        raise rows.Lost(f"{answered} of {work.calls} calls were answered")


def http(calls: int, at_once: int = 20) -> Work:
    """Count the client of a branch alone over real HTTP; client and server share an event loop."""
    work = Work(calls)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_asked(work, at_once))
    return work
