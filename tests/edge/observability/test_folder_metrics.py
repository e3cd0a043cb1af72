"""`cortex metrics` on a state folder that is missing, cannot be read, or does not answer."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from actors.journal.errors import FAULTS
from actors.journal.journal import DatabaseUnreachable, StateFolder, StoreError
from actors.journal.postgres import folder as postgres
from actors.observability import folder_metrics
from actors.observability.folder_metrics import UNREAD_AGAIN_S, FolderMetrics
from actors.observability.metrics.scrape_server import ScrapeServer
from tests.edge.support.in_process_job import FunctionModel
from tests.edge.support.metered_job import Found, found_in, of, run_of
from tests.support.patience import PATIENCE_S

ENDED = "cortex_job_ended_timestamp_seconds"


def _raising(error: Exception) -> Any:
    def fail(*args: Any, **more: Any) -> Any:
        raise error

    return fail


def _faults(found: Found) -> list[str]:
    return [each for each in FAULTS if of(found, "cortex_state_fault", cortex_fault=each)]


def _absent(path, patch):
    return path / "nowhere"


def _without_jobs(path, patch):
    return path


def _a_file(path, patch):
    (path / "file").touch()
    return path / "file"


def _below_a_file(path, patch):
    return _a_file(path, patch) / "state"


def _scan_fails(number: int) -> Any:
    def prepare(path, patch):
        (path / "jobs").mkdir()
        patch.setattr(os, "scandir", _raising(OSError(number, os.strerror(number))))
        return path

    return prepare


def _no_writes(path, patch):
    (path / "jobs").mkdir()
    patch.setattr(os, "access", lambda *args: False)
    return path


@pytest.mark.parametrize(
    ("prepare", "fault", "words"),
    [
        (_absent, "missing", "there is no state folder"), (_without_jobs, "empty", "has no folder jobs"),
        (_a_file, "unreadable", "a file, no folder"), (_below_a_file, "unreadable", "a file, no folder"),
        (_scan_fails(errno.EACCES), "unreadable", "no permission"), (_no_writes, "read_only", "is read-only"),
        (_scan_fails(errno.EIO), "away", "the disk fails"), (_scan_fails(errno.ESTALE), "away", "gone from its server"),
        (_scan_fails(errno.ENOTCONN), "away", "not connected"), (_scan_fails(errno.ETIMEDOUT), "away", "timed out"),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_a_folder_is_told_in_one_line_and_on_both_pages(
    prepare, fault, words, tmp_path, monkeypatch
):
    told: list[str] = []
    metrics = FolderMetrics(StateFolder(prepare(tmp_path, monkeypatch)), tell=told.append)
    for _ in range(2):
        found = found_in((await metrics.ask())[0])
        assert (of(found, "cortex_state_up"), _faults(found)) == (0, [fault])
        assert not any("ended" in name for name, _ in found)
    assert len(told) == 1 and words in told[0].lower() and "\n" not in told[0]
    assert words in (await metrics.health()).lower()


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (StoreError("of another release"), "unreadable"), (DatabaseUnreachable("away"), "away"),
        (OSError(errno.EIO, "fails"), "away"),
    ],
)  # fmt: skip
def test_a_folder_that_fails_while_it_is_read_is_told_as_well(error, fault, tmp_path, monkeypatch):
    folder = StateFolder(str(tmp_path)).prepare()
    told: list[str] = []
    metrics = FolderMetrics(folder, tell=told.append)
    assert _faults(found_in(metrics.samples())) == [] and not told
    monkeypatch.setattr(type(folder), "jobs", _raising(error))
    assert _faults(found_in(metrics.samples())) == [fault]
    monkeypatch.undo()
    assert of(found_in(metrics.samples()), "cortex_state_up") == 1
    assert len(told) == 2 and told[1].endswith("can be read again")


@pytest.mark.parametrize(
    ("rows", "there", "fault"),
    [
        (_raising(StoreError("cannot use the database")), True, "away"), (lambda *asked: [(True,)], True, "read_only"),
        (lambda *asked: [(False,)], False, "empty"), (lambda *asked: [(False,)], True, ""),
    ],
)  # fmt: skip
def test_of_a_database_it_is_told_whether_it_answers_is_the_primary_and_has_tables(rows, there, fault, monkeypatch):
    folder = StateFolder("postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(postgres.DatabaseConnection, "rows", lambda self, *asked: rows(*asked))
    monkeypatch.setattr(type(folder), "_ready", lambda self: there)
    monkeypatch.setattr(type(folder), "jobs", lambda self: [])
    assert _faults(found_in(FolderMetrics(folder).samples())) == ([fault] if fault else [])


def test_a_folder_is_made_if_that_was_asked_for_but_not_one_that_was_there_before(tmp_path):
    state = tmp_path / "state"
    metrics = FolderMetrics(StateFolder(str(state)), create=True)
    assert _faults(found_in(metrics.samples())) == [] and (state / "jobs").is_dir()
    state.rename(tmp_path / "elsewhere")
    assert _faults(found_in(metrics.samples())) == ["missing"] and not state.exists()


async def test_a_journal_that_cannot_be_read_is_counted_and_tried_again(tmp_path, monkeypatch, caplog):
    await run_of(tmp_path, FunctionModel()).to_end()
    now_s = folder_metrics.time.time()
    metrics = FolderMetrics(StateFolder(str(tmp_path)), now_s=lambda: now_s)
    monkeypatch.setattr(folder_metrics, "read_job", _raising(StoreError("damaged")))
    for _ in range(2):
        found = found_in(metrics.samples())
        assert (of(found, "cortex_ends_unread"), of(found, "cortex_state_up")) == (1, 1)
    assert [each.message for each in caplog.records] == ["the end of job j is not told: damaged"]
    monkeypatch.undo()
    assert of(found_in(metrics.samples()), "cortex_ends_unread") == 1
    now_s += UNREAD_AGAIN_S
    found = found_in(metrics.samples())
    assert of(found, "cortex_ends_unread") == 0 and of(found, ENDED, cortex_job_id="j") > 0


async def test_a_job_that_is_removed_while_the_folder_is_read_does_not_take_the_folder_down(tmp_path, monkeypatch):
    folder = StateFolder(str(tmp_path)).prepare()
    (tmp_path / "jobs" / "gone.sqlite").symlink_to(tmp_path / "removed")
    assert of(found_in(FolderMetrics(folder).samples()), "cortex_state_up") == 1


async def test_one_thread_at_a_time_reads_a_folder_that_hangs(tmp_path, monkeypatch):
    folder = StateFolder(str(tmp_path)).prepare()
    goes_on, begun = threading.Event(), []
    monkeypatch.setattr(type(folder), "see_readable", lambda self: (begun.append(1), goes_on.wait()))
    monkeypatch.setattr(folder_metrics, "ANSWER_S", 0.01)
    told: list[str] = []
    metrics = FolderMetrics(folder, tell=told.append)
    for samples in [*await asyncio.gather(*(metrics.ask() for _ in range(5))), *[await metrics.ask() for _ in range(3)]]:
        assert _faults(found_in(samples[0])) == ["away"]
    async with asyncio.timeout(PATIENCE_S):
        while not begun:  # noqa: ASYNC110 - a thread has no event of ours
            await asyncio.sleep(0.001)
    assert len(begun) == 1 and len(told) == 1 and "does not answer" in told[0]
    goes_on.set()
    monkeypatch.setattr(folder_metrics, "ANSWER_S", PATIENCE_S)
    assert of(found_in((await metrics.ask())[0]), "cortex_state_up") == 1
    assert of(found_in((await metrics.ask())[0]), "cortex_state_up") == 1
    assert len(begun) in (2, 3) and told[-1].endswith("can be read again") and not metrics.problem


def _got(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_the_health_page_says_what_is_wrong(tmp_path):
    metrics = FolderMetrics(StateFolder(str(tmp_path / "state")))
    server = ScrapeServer("127.0.0.1:0", {})
    where = (await server.open()).removesuffix("/metrics")
    assert await asyncio.to_thread(_got, f"{where}/healthz") == (200, "ok\n")
    server.serve(metrics.ask, metrics.health)
    try:
        status, text = await asyncio.to_thread(_got, f"{where}/healthz")
        assert status == 503 and text == f"there is no state folder {tmp_path}/state: correct --state; a first job makes it\n"
        StateFolder(str(tmp_path / "state")).prepare()
        assert await asyncio.to_thread(_got, f"{where}/healthz") == (200, "ok\n")
        assert 'cortex_state_fault{cortex_fault="missing"} 0.0' in (await asyncio.to_thread(_got, f"{where}/metrics"))[1]
    finally:
        await server.close()
