"""What a running job publishes: whole, private, only when it changes; what a dead one left behind deceives nobody."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from actors.cli.inspection import job_status
from actors.common.process_owner import Owner, this_owner
from actors.driver import driver, live_status
from actors.driver.live_status import LiveStatus, StatusPublisher, dated
from actors.journal.journal import StateFolder
from actors.ports.runtime import PeerUnavailable
from actors.top.sources import FolderSource
from tests.support.patience import PATIENCE_S


class Told:
    """A cortex that tells what it is told to tell."""

    name = "cortex"

    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status
        self.asked = 0
        self.away = False

    async def ask(self, method: str, *args: Any) -> Any:
        assert method == "status"
        self.asked += 1
        if self.away:
            raise PeerUnavailable("cortex")
        return self.status

    def tell(self, method: str, *args: Any) -> None: ...


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def _folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state").prepare()


def _publisher(folder: StateFolder, clock: Clock, job: str = "j") -> StatusPublisher:
    return StatusPublisher(folder, job, this_owner("inline"), clock)


async def test_about_once_a_second_and_not_while_nothing_changes(tmp_path):
    folder, clock, cortex = _folder(tmp_path), Clock(), Told({"cortex": "c", "breakers": {}})
    publisher = _publisher(folder, clock)
    path = (folder.path / "live") / "j.json"
    with folder.hold("j"):
        for _ in range(6):
            await publisher.look({"results": 1}, cortex)
            clock.now_s += 0.5
        assert cortex.asked == 3
        assert live_status.read(folder, "j").at_s == 1_000.0
        before = path.stat()
        clock.now_s += 5
        await publisher.look({"results": 1}, cortex)
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert path.stat().st_ino == before.st_ino
        clock.now_s += 1
        await publisher.look({"results": 2}, cortex)
        found = live_status.read(folder, "j")
        assert (found.facts, found.cortex["cortex"], found.at_s) == ({"results": 2}, "c", clock.now_s)
        assert live_status.published(folder).keys() == {"j"}
        publisher.close()
        assert not path.exists()
        assert live_status.read(folder, "j") is None


async def test_it_is_for_its_owner_alone(tmp_path):
    old = os.umask(0)
    try:
        folder = _folder(tmp_path)
        await _publisher(folder, Clock()).look({"results": 1}, Told({}))
    finally:
        os.umask(old)
    at = folder.path / "live"
    assert stat.S_IMODE(at.stat().st_mode) == 0o700
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in at.iterdir()] == [("j.json", 0o600)]


async def test_a_cortex_that_is_away_and_a_folder_that_cannot_be_written_stop_no_job(tmp_path):
    folder, clock, cortex = _folder(tmp_path), Clock(), Told({})
    cortex.away = True
    with folder.hold("j"):
        await _publisher(folder, clock).look({"results": 1}, cortex)
        assert live_status.read(folder, "j").facts == {"results": 1}
        assert live_status.read(folder, "j").cortex == {}
    ((folder.path / "live") / "j.json").unlink()
    (folder.path / "live").rmdir()
    (folder.path / "live").write_text("in the way")
    await _publisher(folder, clock).look({"results": 1}, cortex)


async def test_a_cortex_that_falls_silent_is_told_with_its_last_answer_and_the_time_of_it(tmp_path):
    """Without that, ``status`` shows a running job without nodes, as if nothing had happened."""
    folder, clock, cortex = _folder(tmp_path), Clock(), Told({"cortex": "c", "nodes": {"n": {}}})
    publisher = _publisher(folder, clock)
    with folder.hold("j"):
        await publisher.look({"results": 1}, cortex)
        assert live_status.read(folder, "j").cortex_at_s == 0
        cortex.away = True
        for clock.now_s in (1_030.0, 1_080.0):
            await publisher.look({"results": 1}, cortex)
        found = live_status.read(folder, "j")
        assert (found.cortex_at_s, found.asked_at_s, found.cortex["nodes"]) == (1_000.0, 1_000.0, {"n": {}})
        assert found.at_s == 1_030.0, "nothing has changed since"
        seen = job_status._seen(found, 1_080.0)
        assert seen.endswith("; no news from the scheduler for 1 min 20 s: pools, branches and nodes are of then"), seen
        (known,) = FolderSource(folder, clock).look().clusters
        assert known.as_of_s == 1_000.0, "top shows its age"
        cortex.away, clock.now_s = False, 1_100.0
        await publisher.look({"results": 1}, cortex)
        assert "no news" not in job_status._seen(live_status.read(folder, "j"), 1_101.0)


async def test_a_channel_that_falls_silent_is_told_while_its_driver_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "NEWS_S", 0.001)
    hangs = asyncio.Event()
    published: list[dict[str, Any]] = []

    class Silent(driver.Driver):
        def __init__(self) -> None:
            self._runtime, self._live = self, self  # type: ignore[assignment]

        def now_s(self) -> float:
            return 1.8e9

        def peer(self, name: str) -> str:
            return name

        async def look(self, facts: dict[str, Any], cortex: Any) -> None:
            published.append(facts)
            hangs.set()

        async def _keep_order(self) -> None:
            pass

        async def refresh(self) -> dict[str, Any]:
            await hangs.wait()
            return {"results": 2}

    assert await Silent()._refreshed({"results": 1, "waits": ""}) == {"results": 2}
    assert published[0]["results"] == 1
    assert published[0]["waits"].startswith("no news from the job's channel since 20")


def _dead() -> Owner:
    """A process that was, and is no more."""
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    return msgspec.structs.replace(this_owner("inline"), pid=child.pid, started="1")


def _left_behind(folder: StateFolder, job: str, owner: Owner) -> None:
    (folder.path / "live").mkdir(exist_ok=True)
    data = msgspec.json.encode(LiveStatus(owner=owner, at_s=1.0, facts={"results": 1}))
    ((folder.path / "live") / f"{job}.json").write_bytes(data)


async def test_what_a_killed_process_left_is_not_live_and_the_next_run_removes_it(tmp_path):
    folder = _folder(tmp_path)
    _left_behind(folder, "killed", _dead())
    _left_behind(folder, "unheld", this_owner("inline"))
    _left_behind(folder, "held", this_owner("inline"))
    ((folder.path / "live") / "torn.json").write_text('{"owner": ')
    with folder.hold("held"), folder.hold("killed"):  # somebody else runs it by now
        assert live_status.published(folder).keys() == {"held"}
        await _publisher(folder, Clock(), "next").look({}, Told({}))
        assert {path.stem for path in (folder.path / "live").iterdir()} == {"held", "killed", "next"}


def test_what_lasts_so_long_is_said_as_a_moment():
    facts = {"breakers": {"r": {"state": "open", "for_s": 12.2, "why": ""}}, "pools": [{"held_for_s": 0.0}], "n": 1}
    assert dated(facts, 1_000.1) == {
        "breakers": {"r": {"state": "open", "until_s": 1012.0, "why": ""}}, "pools": [{"held_until_s": 0.0}], "n": 1,
    }  # fmt: skip
    later = {"breakers": {"r": {"state": "open", "for_s": 11.2, "why": ""}}, "pools": [{"held_for_s": 0.0}], "n": 1}
    assert dated(later, 1_001.1) == dated(facts, 1_000.1)


async def test_a_job_that_runs_is_published_and_removed_at_its_end(tmp_path):
    import cortex

    @cortex.flow
    async def asks(ctx: cortex.Context) -> str:
        for n in range(3):
            await ctx.ask(f"Answer yes or no: is {n} even?", max_tokens=8)
        while not whole.is_set():  # it goes on until all of it was seen, however slow this machine is
            await ctx.sleep(0.1)
        return "done"

    folder, whole = StateFolder(tmp_path / "state"), threading.Event()
    running = asyncio.create_task(asyncio.to_thread(_run, asks(), folder))
    live: LiveStatus | None = None
    until_s = time.monotonic() + PATIENCE_S
    while not running.done():
        if not whole.is_set() and (found := live_status.read(folder, "asks")) is not None:
            live = found
        if (live is not None and _answered(live) == 3) or time.monotonic() > until_s:
            whole.set()
        await asyncio.sleep(0.05)
    await running
    assert live is not None, "it never published anything"
    assert live.facts["outcome"] == "running"
    assert live.facts["rate_per_s"] >= 0
    assert list(live.cortex["staff"]) == ["branch:0"]
    assert _answered(live) == 3
    assert list((folder.path / "live").iterdir()) == []


def _answered(told: LiveStatus) -> int:
    """Calls that its cortex has heard of."""
    return sum(sum(route["series"]["answered"]) for route in told.cortex.get("routes", {}).values())


def _run(program: Any, folder: StateFolder) -> None:
    import cortex

    cortex.run(program, model="sim", job="asks", state=str(folder.path), progress=False)


async def test_a_cortex_that_is_away_is_not_asked_every_second(tmp_path):
    folder, clock, cortex = _folder(tmp_path), Clock(), Told({})
    cortex.away = True
    publisher = _publisher(folder, clock)
    for _ in range(21):
        await publisher.look({"results": 1}, cortex)
        clock.now_s += 1.0
    assert cortex.asked == 3
    clock.now_s -= 3_600  # the clock was set
    await publisher.look({"results": 1}, cortex)
    assert cortex.asked == 4
