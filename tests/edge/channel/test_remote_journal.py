"""A turn whose journal is on another machine: nobody is told of it before it stands there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.channel import webhooks
from actors.channel.channel import Channel
from actors.journal.journal import StoreError
from actors.journal.sqlite.storage import FileStorage
from actors.ports.runtime import PeerUnavailable
from actors.scheduler.actor import Cortex
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows
from tests.support.patience import PATIENCE_S


class Line:
    """The way to a journal, which somebody may hold up."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.waits = 0
        self.held: Callable[[], bool] = lambda: True
        self.full = False


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    made, append = Line(), FileStorage.append

    def held_up(self: FileStorage, *given: Any) -> None:
        if made.held():
            made.waits += 1
            made.free.wait(2 * PATIENCE_S)
            made.waits -= 1
            if made.full:
                raise StoreError("the disk is full")
        append(self, *given)

    monkeypatch.setattr(FileStorage, "remote", True)
    monkeypatch.setattr(FileStorage, "append", held_up)
    yield made
    made.free.set()


async def _until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():  # noqa: ASYNC110 - the very next moment is wanted
            await asyncio.sleep(0.002)


async def _begun(folder: Path, line: Line) -> tuple[Run, asyncio.Task[Run], Channel, asyncio.Event]:
    """Five rows are asked; they are answered when the event is set."""
    go = asyncio.Event()

    class Waiting(FunctionModel):
        async def call(self, body: bytes, **more: Any) -> Any:
            self.asked.append(body)
            await go.wait()
            return reply("ok")

    model = Waiting()
    run = _notifying(Run(folder, model, source=ListSource(rows(5))))
    running = asyncio.create_task(run.to_end())
    await _until(lambda: len(model.asked) == 5)
    await _until(lambda: not line.waits)
    return run, running, run.runtime._actors["channel:j"], go


@pytest.fixture
def left(line: Line, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Times that a job gave its permits back: whether the journal was free then."""
    times, leave = list[bool](), Cortex.leave

    async def leaves(self: Cortex, job: str, epoch: int) -> None:
        times.append(line.free.is_set())
        await leave(self, job, epoch)

    monkeypatch.setattr(Cortex, "leave", leaves)
    return times


async def test_an_end_that_is_not_on_disk_is_told_to_nobody(tmp_path: Path, line: Line, left: list[bool]) -> None:
    run, running, channel, go = await _begun(tmp_path, line)
    entries: list[bool] = []
    close = channel._dispatch.close

    async def closed(**more: Any) -> None:
        entries.append(line.free.is_set())
        await close(**more)

    channel._dispatch.close = closed  # type: ignore[method-assign]
    line.held = lambda: bool(channel._k.outcome)
    line.free.clear()
    go.set()
    await _until(lambda: line.waits)
    facts = msgspec.json.decode(await channel.status())
    assert (facts["outcome"], facts["broken"], channel.over) == ("running", "", False)
    assert await channel.answer() == b"null"
    channel._lease.again()
    await asyncio.sleep(0.1)
    assert entries == [], "what branches hold may be asked for once more"
    assert left == [], "calls that the end abandons are under way until it is on disk"
    line.free.set()
    await running
    assert set(entries) == {True}
    assert left == [True]
    assert run.facts["outcome"] == "complete"
    assert len(run.sink.keys()) == 5


@pytest.fixture(autouse=True)
def posted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Messages to a webhook, of jobs that name one."""
    keys = list[str]()

    class Post:
        def __init__(self, *_: object) -> None:
            self.put = lambda key, message: keys.append(key)
            self.close = lambda: None

    monkeypatch.setattr(webhooks, "WebhookThread", Post)
    return keys


def _notifying(run: Run) -> Run:
    run.driver._opening = msgspec.structs.replace(run.driver._opening, notify="https://hooks.example.com/")
    return run


async def test_an_end_that_never_comes_to_disk_gives_no_permits_back(
    tmp_path: Path, line: Line, left: list[bool], posted: list[str]
) -> None:
    """Its abandoned calls go on. They count until the lease has run out, as those of a channel that has died. No
    webhook hears of it."""
    run, running, channel, go = await _begun(tmp_path, line)
    line.held = lambda: bool(channel._k.outcome)
    line.free.clear()
    go.set()
    await _until(lambda: line.waits)
    channel._lease.again()
    await asyncio.sleep(0.1)
    line.full = True
    line.free.set()
    with pytest.raises(StoreError, match="the disk is full"):
        await running
    assert left == posted == []
    line.full = False
    await _notifying(Run(tmp_path, FunctionModel(), source=ListSource(rows(5)), sink=run.sink)).to_end()
    assert left == [True]
    assert posted == ["ended/2"]
    assert len(run.sink.keys()) == 5


async def test_who_waits_for_a_turn_of_a_channel_that_closes_is_told_that_it_is_away(
    tmp_path: Path, line: Line
) -> None:
    _, running, channel, _ = await _begun(tmp_path, line)
    line.free.clear()
    waiting = asyncio.create_task(channel.stop("drain", "ann"))
    await _until(lambda: line.waits)
    closing = asyncio.create_task(channel.close())
    with pytest.raises(PeerUnavailable):
        async with asyncio.timeout(PATIENCE_S):
            await waiting
    line.free.set()
    await closing
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
