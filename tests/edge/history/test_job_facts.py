"""Whether a job that has not ended runs, goes on in a cluster, or was cut off."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from actors.cli.jobs import lost_heads
from actors.cli.jobs.job_state import standing_of
from actors.cluster import bootstrap
from actors.common.process_owner import this_owner
from actors.history.job_facts import living
from actors.journal.journal import StateFolder
from actors.observability.folder_metrics import FolderMetrics
from cortex.scheduler.state import LEASE_S
from tests.edge.support.in_process_job import FunctionModel
from tests.edge.support.metered_job import found_in, run_of

ENDED = "cortex_job_ended_timestamp_seconds"
CLUSTER = "10.0.0.5:6379"


async def _left(folder: StateFolder, cluster: str) -> None:
    """Leave a job whose driver is gone, as if it had run in this cluster."""
    model = FunctionModel(pause_s=0.01)
    await run_of(folder.path, model, 500).crash_after(lambda: len(model.asked) > 20)
    source = folder.journal("j")
    source.take_epoch(msgspec.json.encode(msgspec.structs.replace(this_owner(cluster), pid=1)))
    source.close()


def _age(folder: StateFolder, seconds: float) -> None:
    for path in (folder.path / "jobs").glob("j.sqlite*"):
        os.utime(path, (time.time() - seconds,) * 2)


def _told(folder: StateFolder) -> str:
    """Return what `cortex metrics` tells of the job; empty: nothing."""
    found = found_in(FolderMetrics(folder).samples())
    return next((dict(labels)["cortex_outcome"] for name, labels in found if name == ENDED), "")


@pytest.mark.parametrize(
    ("cluster", "lives", "since_s", "outcome", "told"),
    [
        (CLUSTER, True, 0, "detached", ""), (CLUSTER, True, 900, "detached", ""),  # however long it waits
        (CLUSTER, False, 1, "detached", ""),  # Ray may start its channel again
        (CLUSTER, False, LEASE_S + 5, "interrupted", "interrupted"),
        (CLUSTER, None, 900, "detached", ""),  # by an earlier release, or on a disk without locks
        ("inline", None, 1, "interrupted", "interrupted"), ("local", None, 1, "interrupted", "interrupted"),
        ("inline", False, 1, "interrupted", ""),  # it was in a cluster before; the metrics wait for a lease
        ("inline", False, 60, "interrupted", "interrupted"),
    ],
)  # fmt: skip
async def test_a_job_whose_channel_is_gone_is_told_once_its_lease_has_run_out(
    cluster, lives, since_s, outcome, told, tmp_path, monkeypatch
):
    monkeypatch.setattr(lost_heads, "_head_error", lambda cluster: "")
    folder = StateFolder(str(tmp_path)).prepare()
    await _left(folder, cluster)
    if lives is not None:
        with folder.attend("j"):
            pass
    _age(folder, since_s)
    if lives:
        with folder.attend("j"):
            assert (living(folder, "j"), _told(folder)) == (outcome, told)
        return
    assert living(folder, "j") == outcome
    _age(folder, since_s)
    assert _told(folder) == told
    status = standing_of(folder, "j")
    lost_heads.LostHeads(folder).see("j", status)
    gone = "no channel is left in the Ray" in status.facts["why"]
    assert gone is (cluster == CLUSTER and outcome == "interrupted")


async def test_a_channel_that_dies_after_a_scrape_is_told_by_a_later_one(tmp_path):
    """Its journal is not written to any more, so nothing but its lock tells."""
    folder = StateFolder(str(tmp_path)).prepare()
    await _left(folder, CLUSTER)
    metrics = FolderMetrics(folder)
    with folder.attend("j"):
        _age(folder, 60)
        assert not any(name == ENDED for name, _ in found_in(metrics.samples()))
    assert any(name == ENDED for name, _ in found_in(metrics.samples()))


@pytest.mark.parametrize(("waits", "error"), [(True, f"no Ray answers at {CLUSTER}: no answer within"), (False, "")])
def test_a_head_that_does_not_answer_holds_up_no_page(waits, error, monkeypatch):
    """Not even where its name is looked up for ever."""
    goes_on = threading.Event()
    monkeypatch.setattr(bootstrap, "checked_address", lambda cluster: waits and goes_on.wait(60.0))
    monkeypatch.setattr(lost_heads, "HEAD_S", 0.01 if waits else 60.0)
    told = lost_heads._head_error(CLUSTER)
    goes_on.set()
    assert told.startswith(error) and bool(told) is waits


async def test_of_a_lost_head_status_says_that_no_ray_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(lost_heads, "_head_error", lambda cluster: f"no Ray answers at {cluster}")
    folder = StateFolder(str(tmp_path)).prepare()
    await _left(folder, CLUSTER)
    with folder.attend("j"):
        pass
    _age(folder, 60)
    heads, status = lost_heads.LostHeads(folder), standing_of(folder, "j")
    heads.see("j", status)
    assert status.outcome == "interrupted" and status.facts["head_lost"]
    assert status.facts["why"].startswith("no Ray answers at 10.0.0.5:6379")
    assert "1 job rests" in heads.lines()[0]
