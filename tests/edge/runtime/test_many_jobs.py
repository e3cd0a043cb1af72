"""Many jobs in one process: what each costs the others, counted."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from actors.channel.channel import Channel
from actors.common.process_owner import this_owner
from actors.driver import driver, live_status
from actors.driver.live_status import PUBLISH_S, PUBLISHED_PER_S, LiveStatus, StatusPublisher
from actors.history.results import PastResults
from actors.journal.journal import Journal, StateFolder
from actors.runtime.inline import InlineRuntime
from actors.scheduler.status_view import FRESH_S, SchedulerStatus
from actors.top.sources import FolderSource
from cortex.scheduler.protocol import ChannelJoined
from cortex.scheduler.reports import Claim, Claims
from cortex.scheduler.state import SchedulerSettings, SchedulerState
from cortex.scheduler.step import step
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.support.patience import PATIENCE_S

JOBS, ROWS, WINDOW = 12, 60, 16


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often things are done."""
    found: Counter[str] = Counter()

    def count(owner: type, name: str) -> None:
        done = getattr(owner, name)

        @functools.wraps(done)
        def counting(*args: Any, **more: Any) -> Any:
            found[name] += 1
            return done(*args, **more)

        monkeypatch.setattr(owner, name, counting)

    for name in ("_turn", "deliver", "feed", "granted", "room", "results", "written"):
        count(Channel, name)
    count(PastResults, "read")
    return found


async def test_jobs_beside_each_other_cost_a_turn_an_answer_and_no_more(
    tmp_path: Path, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow, so commits wait in threads: others can work meanwhile."""
    append = Journal.append

    def slowly(journal: Journal, blobs: Any) -> int:
        time.sleep(0.02)
        return append(journal, blobs)

    monkeypatch.setattr(InlineRuntime, "apart", lambda *_: True)
    monkeypatch.setattr(Journal, "append", slowly)
    monkeypatch.setattr(driver, "ROOM_S", PATIENCE_S)  # who waits so long asks once more
    runtime, model = InlineRuntime(), FunctionModel(pause_s=0.005)
    limits = Limits(concurrency=2, window_rows=WINDOW)
    runs = [
        Run(tmp_path, model, source=ListSource(rows(ROWS)), job=f"j{n}", limits=limits, runtime=runtime, fresh=True)
        for n in range(JOBS)
    ]
    try:
        ended = await asyncio.gather(*(run.driver.run() for run in runs))
    finally:
        await runtime.close()
    assert [facts["rows_succeeded"] for facts in ended] == [ROWS] * JOBS
    windows = 1 + -(-(ROWS - WINDOW) // (WINDOW // 2))
    assert counts["feed"] <= JOBS * (windows + 1), "rows are taken half a window at a time"
    assert counts["room"] <= 2 * counts["feed"], "who brings them waits to be told"
    # What is written and what is granted is told now and then, so a slow machine is told it more often.
    told = sum(counts[name] for name in ("deliver", "feed", "granted", "written"))
    assert counts["_turn"] <= told + JOBS * 12
    assert counts["read"] == 0, "results of a turn on its way to disk are waited for, not read out of the journal"


@pytest.mark.parametrize("method", ["room", "results"])
async def test_a_channel_that_never_answers_one_question_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """As it may be where its process was killed while it waited."""
    answered, asked = getattr(Channel, method), []

    async def once_silent(self: Channel, *args: Any) -> Any:
        asked.append(args)
        if len(asked) == 2:
            await asyncio.Event().wait()
        return await answered(self, *args)

    monkeypatch.setattr(Channel, method, once_silent)
    monkeypatch.setattr(driver, "SILENT_S", 0.1)
    monkeypatch.setattr(driver, "ROOM_S", 0.1)
    monkeypatch.setattr(driver, "REST_S", 0.1)
    limits = Limits(concurrency=2, window_rows=WINDOW)
    run = Run(tmp_path, FunctionModel(pause_s=0.005), source=ListSource(rows(ROWS)), limits=limits, fresh=True)
    async with asyncio.timeout(PATIENCE_S):
        facts = await run.driver.run()
    await run.runtime.close()
    assert (facts["rows_succeeded"], len(asked) > 2) == (ROWS, True)


def _crowded(jobs: int) -> SchedulerState:
    state = SchedulerState(SchedulerSettings())
    for n in range(jobs):
        step(state, ChannelJoined(0.0, Claims(f"j{n}", 1, "", 1, 1, (Claim("e|c|m", "e|c|m", 0, 0, b"", ""),))))
    return state


def test_what_one_job_is_told_of_its_cortex_is_of_this_job_however_many_there_are() -> None:
    state = _crowded(50)
    overview = SchedulerStatus("c.1", state)
    facts = overview.about("j7", 1.0)
    assert (list(facts["jobs"]), list(facts["channels"]), facts["serves"]) == (["j7"], ["j7"], 50)
    whole = overview.whole(1.0)
    assert (len(whole["jobs"]), len(whole["channels"])) == (50, 50)
    assert {name: whole[name] for name in ("pools", "staff", "breakers", "nodes")}.items() <= facts.items()
    assert overview.about("j8", 1.0 + FRESH_S / 2)["pools"] is facts["pools"], "put together once for all who ask"
    assert overview.about("j7", 1.0 + FRESH_S)["pools"] is not facts["pools"]
    assert overview.about("gone", 1.0)["jobs"] == {}


async def test_many_jobs_publish_themselves_more_rarely_and_all_of_them_are_seen(tmp_path: Path) -> None:
    jobs = 4 * PUBLISHED_PER_S
    overview, now_s = SchedulerStatus("c.1", _crowded(jobs)), 1_000.0
    folder = StateFolder(tmp_path / "state").prepare()
    asked: list[str] = []

    class Told:
        name = "cortex"

        async def ask(self, method: str, *args: Any) -> Any:
            asked.append(args[0])
            return overview.about(args[0], now_s)

        def tell(self, method: str, *args: Any) -> None: ...

    publishers = [StatusPublisher(folder, f"j{n}", this_owner("inline"), lambda: now_s) for n in (1, 2)]
    with folder.hold("j1"), folder.hold("j2"):
        for _ in range(8):
            for publisher in publishers:
                await publisher.look({"results": 1}, Told())
            now_s += PUBLISH_S
        assert len(asked) == 2 * 2, "each every four seconds"
        found: dict[str, LiveStatus] = live_status.published(folder)
        assert [list(each.cortex["jobs"]) for each in found.values()] == [["j1"], ["j2"]]
        (seen,) = FolderSource(folder).look().clusters
        assert (list(seen.status["jobs"]), list(seen.status["channels"])) == (["j1", "j2"], ["j1", "j2"])
