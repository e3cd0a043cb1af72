"""Tasks of a channel that nobody awaits: an error that ends one ends its job, resumable, or is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import cortex
from actors.channel import fencing
from actors.channel.batches.accumulator import BatchAccumulator
from actors.channel.channel import Channel
from actors.channel.leases.budget_client import BudgetClient
from actors.channel.leases.lease import Lease
from actors.channel.webhooks import WebhookNotifier
from actors.driver.driver import JournalUnwritable
from tests.edge.support.batch_job import Job, in_process, whole
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.patience import PATIENCE_S

Patch = pytest.MonkeyPatch


class Strange(Exception):
    """Error that no interface names."""


def failing(*_: Any, **__: Any) -> Any:
    raise Strange("out of the blue")


async def late(*_: Any, **__: Any) -> None:
    await asyncio.sleep(1.0)
    raise Strange("out of the blue")


async def leaking(*_: Any, **__: Any) -> None:
    await asyncio.sleep(1.0)
    raise asyncio.CancelledError("out of the blue")


def played(folder: Path, model: FunctionModel | None = None, program: cortex.Program | None = None) -> Run:
    """Run a job of some seconds to its end, on virtual time."""

    async def play() -> Run:
        source = ListSource(rows(40)) if program is None else None
        mine = model or FunctionModel(pause_s=1.0)
        async with asyncio.timeout(3_600):
            return await Run(folder, mine, source=source, program=program, runtime=VirtualRuntime()).to_end()

    return virtually(play())


@pytest.mark.parametrize(
    ("of", "method", "work", "words"),
    [
        (Lease, "_hold", late, "the lease can be held no more: Strange: out of the blue"),
        (Lease, "hold", leaking, "the lease can be held no more: CancelledError"),
        (Lease, "hold", late, "the lease can be held no more: Strange: out of the blue"),
        (BudgetClient, "hold", late, "the lease can be held no more: Strange: out of the blue"),
        (Channel, "_something", late, "a turn could not be taken: Strange: out of the blue"),
        (Channel, "_something", leaking, "a turn could not be taken: CancelledError"),
    ],
)
def test_a_job_whose_turns_or_lease_have_ended_by_an_error_stops_and_is_resumed(
    tmp_path: Path, of: type, method: str, work: Any, words: str
) -> None:
    with Patch.context() as patch:
        patch.setattr(of, method, work)
        with pytest.raises(JournalUnwritable, match=words):
            played(tmp_path)
    run = played(tmp_path)
    assert (run.facts["outcome"], run.facts["rows_succeeded"]) == ("complete", 40)


class Leaky(cortex.Program, frozen=True):
    """A program whose own code leaves a cancellation behind."""

    def begin(self, k: cortex.State) -> Iterable[cortex.Change]:
        yield cortex.Goal("top")

    def select(self, k: cortex.State) -> Iterable[Any]:
        raise asyncio.CancelledError("of its own loop")


def test_a_program_that_leaks_a_cancellation_ends_its_job_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(JournalUnwritable, match="a turn could not be taken: CancelledError"):
        played(tmp_path, program=Leaky())


@pytest.mark.parametrize(
    ("of", "method"), [(WebhookNotifier, "run"), (WebhookNotifier, "_news"), (fencing, "watch"), (Lease, "leave")]
)
def test_an_error_of_any_other_task_is_told_and_stops_no_job(
    tmp_path: Path, of: Any, method: str, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """So is one of the lease after the end of the job."""
    if of is fencing:
        monkeypatch.setattr("actors.channel.channel.watch", late)
    else:
        monkeypatch.setattr(of, method, late if method != "_news" else failing)
    if method == "_news":
        notifier = WebhookNotifier("http://127.0.0.1:9/", None, None, lambda: Told, None, str)  # type: ignore[arg-type,return-value]
        notifier._look()
        notifier._look()
        assert caplog.text.count("a look for news of j met an error") == 1
        assert notifier._post is not None
        notifier._post.close()
        return
    run = played(tmp_path)
    assert (run.facts["outcome"], run.facts["rows_succeeded"]) == ("complete", 40)
    assert "has ended by an error" in caplog.text or method == "leave"


class Told:
    class terms:
        job = "j"


def test_calls_that_met_an_error_before_their_submission_are_asked_again(tmp_path: Path, monkeypatch: Patch) -> None:
    settled, troubles = BatchAccumulator._settled, [Strange(), Strange()]

    async def troubled(self: BatchAccumulator, place: int, calls: Any) -> None:
        if troubles:
            raise troubles.pop()
        await settled(self, place, calls)

    monkeypatch.setattr(BatchAccumulator, "_settled", troubled)

    async def play() -> Job:
        async with asyncio.timeout(PATIENCE_S):
            return await Job(tmp_path, in_process()).to_end()

    whole(asyncio.run(play()))
    assert not troubles
