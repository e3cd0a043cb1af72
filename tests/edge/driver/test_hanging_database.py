"""A database that hangs, frozen or with its tables locked, neither answers nor refuses: the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from actors.common.process_owner import this_owner
from actors.driver.live_status import StatusPublisher
from actors.journal.journal import StoreError
from actors.observability.metrics import journal_size
from actors.observability.metrics.journal_size import JournalSize
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.support.patience import PATIENCE_S


class Hanging:
    """State folder on another machine, which answers once it is released."""

    remote = True

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()
        self.gone = False

    def _answer(self) -> None:
        self.asked.set()
        assert self.released.wait(PATIENCE_S)
        if self.gone:
            raise StoreError("no such journal")

    def notes(self, kind: str) -> list[str]:
        return []

    def put_note(self, kind: str, name: str, value: bytes) -> None:
        self._answer()

    def size_bytes(self, job: str) -> int:
        self._answer()
        return 512

    def free_bytes(self) -> None:
        return None


class Remote:
    """State folder of this machine that counts as one of another."""

    remote = True

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)


class Cortex:
    name = "cortex"

    async def ask(self, method: str, *args: Any) -> Any:
        return {}


async def test_the_loop_goes_on_while_a_status_is_published() -> None:
    folder = Hanging()
    publisher = StatusPublisher(folder, "j", this_owner("inline"), lambda: 1_000.0)  # type: ignore[arg-type]
    look = asyncio.create_task(publisher.look({"results": 1}, Cortex()))  # type: ignore[arg-type]
    assert await asyncio.to_thread(folder.asked.wait, PATIENCE_S)
    assert not look.done()
    folder.released.set()
    await look


async def test_the_loop_goes_on_while_a_driver_that_has_ended_removes_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    close = StatusPublisher.close

    def closed(self: StatusPublisher) -> None:
        threads.append(threading.get_ident())
        close(self)

    monkeypatch.setattr(StatusPublisher, "close", closed)
    run = Run(tmp_path, FunctionModel(), source=ListSource(rows(1)))
    monkeypatch.setattr(run.driver, "_control", Remote(run.driver._control))
    await run.to_end()
    assert len(threads) == 1 and threads != [threading.get_ident()]


def test_a_scrape_leaves_out_a_size_that_is_not_told_and_tells_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_size, "WAIT_S", 0.001)
    folder = Hanging()
    size = JournalSize(folder, "j")  # type: ignore[arg-type]
    assert size.read() is None
    asking = size._asking
    assert asking is not None
    assert (size.read(), size._asking) == (None, asking)  # one request at a time
    folder.released.set()
    asking.join(PATIENCE_S)
    assert size.read() == (512, None)
    folder.gone = True
    assert size._asking is not None
    size._asking.join(PATIENCE_S)
    monkeypatch.setattr(journal_size, "WAIT_S", PATIENCE_S)
    assert size.read() is None
