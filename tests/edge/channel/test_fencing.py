"""One name, two journals, the same branches and cortex: each job does its work, and a channel that is over stays so."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from actors.channel.dispatch.dispatcher import MEET_S
from actors.channel.fencing import LOOK_S, met, reported_of, watch
from actors.journal.journal import DatabaseUnreachable, Fenced, Journal, StateFolder, StoreError
from cortex.journal import codec
from cortex.state import events
from cortex.values.limits import JobTerms, Limits, Route
from policies.failures.timeout import TimeoutPolicy
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows
from tests.edge.support.virtual_clock import VirtualRuntime, virtually
from tests.support.patience import PATIENCE_S


async def test_a_job_of_another_state_folder_may_have_the_name_of_one_that_was_there(tmp_path: Path) -> None:
    models = FunctionModel(), FunctionModel(), FunctionModel()
    first = Run(tmp_path / "a", models[0], source=ListSource(rows(20)))
    runtime = first.runtime
    others = [
        Run(tmp_path / folder, model, source=ListSource(rows(20)), runtime=runtime)
        for folder, model in zip(("b", "c"), models[1:], strict=True)
    ]
    try:
        for run in (first, *others):
            async with asyncio.timeout(PATIENCE_S):
                facts = await run.driver.run()
            assert (facts["outcome"], facts["rows_succeeded"]) == ("complete", 20)
            await runtime.end_actor("channel:j")
    finally:
        await runtime.close()
    assert [len(model.complete) for model in models] == [20, 20, 20]
    assert [_newest(tmp_path / each) for each in ("a", "b", "c")] == [1, 2, 3], "each above what was heard of the name"


def _newest(folder: Path) -> int:
    journal = StateFolder(folder).journal("j")
    try:
        return journal.newest_epoch()
    finally:
        journal.close()


class Others:
    """Branches and cortex: what they have heard of a job of this name."""

    def __init__(self, branches: int = 0, cortex: int = 0) -> None:
        self.acknowledged, self._known, self._cortex = 0, branches, cortex
        self.epochs: list[int] = []

    def peer(self, name: str) -> Others:
        assert name == "cortex"
        return self

    async def ask(self, method: str, job: str) -> int:
        assert (method, job) == ("newest_epoch", "j")
        return self._cortex

    async def meet(self, names: tuple[str, ...], epoch: int) -> tuple[tuple[int, int], ...]:
        self.acknowledged = max(self.acknowledged, self._known)
        self._known = max(self._known, epoch)
        self.epochs.append(epoch)
        return ((7, 1),)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return StateFolder(tmp_path).prepare().journal("j", create=True)


@pytest.mark.parametrize(
    ("branches", "cortex", "epochs"),
    [(0, 0, [2]), (1, 1, [2]), (2, 0, [2, 3]), (9, 0, [2, 10]), (0, 9, [10]), (3, 9, [10]), (12, 9, [10, 13])],
)
async def test_it_begins_above_what_was_heard(journal: Journal, branches: int, cortex: int, epochs: list[int]) -> None:
    journal.take_epoch(b"{}")
    journal.take_epoch(b"whose")
    others = Others(branches, cortex)
    assert await met(others, ("branch:0",), journal, others, 0) == ((7, 1),)  # type: ignore[arg-type]
    assert others.epochs == epochs and journal.epoch == journal.newest_epoch() == epochs[-1]
    assert journal.meta("owner") == b"whose"


async def test_a_shard_begins_above_what_its_parent_has_a_report_of(tmp_path: Path) -> None:
    """Reports of an earlier epoch are dropped, and the first of a journal that has lost its end would be such."""

    class Parent(Others):
        complete = False

        def peer(self, name: str) -> Others:
            return self

        async def ask(self, method: str, *args: object) -> object:
            known = msgspec.msgpack.encode((7, self.complete))
            return 0 if method == "newest_epoch" else known if args == (2, b"") else None

    journal = StateFolder(tmp_path).prepare().journal("j~2", create=True)
    journal.take_epoch(b"{}")
    others, opening = Parent(), SimpleNamespace(terms=SimpleNamespace(shard=True))
    reported = await reported_of(journal, others, opening)  # type: ignore[arg-type]
    await met(others, ("branch:0",), journal, others, reported)  # type: ignore[arg-type]
    assert others.epochs == [8]
    others.complete = True
    assert await reported_of(journal, others, opening) == 7, "its job goes on with it"  # type: ignore[arg-type]
    route = Route(endpoint="e", model="m")
    terms = JobTerms(job="j~2", program="batch", params_json=b"{}", fingerprint="", shard=True, route=route)
    journal.append([codec.encode_turn(1.0, [codec.encode_batch([events.Opened(terms, 1)])])])
    with pytest.raises(StoreError, match="the journal of j~2 has lost its end"):
        await reported_of(journal, others, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("heard", ["branches", "cortex"])
async def test_one_whose_journal_has_another_writer_stays_fenced(tmp_path: Path, journal: Journal, heard: str) -> None:
    """It took its epoch, and came to the branches only when the next one had been there: that one goes on."""
    journal.take_epoch(b"late")
    other = StateFolder(tmp_path).journal("j")
    assert other.take_epoch(b"{}") == 2
    others = Others(**{heard: 2})
    with pytest.raises(Fenced, match="another run has taken the job over"):
        await met(others, ("branch:0",), journal, others, 0)  # type: ignore[arg-type]
    assert other.newest_epoch() == 2
    other.set_meta("fact", b"x")
    other.close()


LONG = Limits(timeout=TimeoutPolicy(first_byte_s=3_600, floor_s=3_600, ceiling_s=3_600))
"""Limits of calls that may take an hour."""


def _taken_over(folder: Path) -> None:
    other = StateFolder(folder).journal("j")
    other.take_epoch(b"{}")
    other.close()


def _removed(folder: Path) -> None:
    (folder / "jobs" / "j.sqlite").unlink()


@pytest.mark.parametrize(
    ("lose", "told"), [(_taken_over, "another run has taken the job over"), (_removed, "was removed while the job ran")]
)
def test_one_that_only_waits_hears_that_it_has_lost_its_journal(
    tmp_path: Path, lose: Callable[[Path], None], told: str
) -> None:
    async def play() -> None:
        run = Run(tmp_path, FunctionModel(lambda _: None), source=ListSource(rows(1)), limits=LONG, runtime=VirtualRuntime())
        job = asyncio.create_task(run.to_end())
        await asyncio.sleep(LOOK_S / 4)
        lose(tmp_path)
        await asyncio.wait([job], timeout=2 * LOOK_S + 10)
        assert job.done(), "it waits on"
        with pytest.raises(StoreError, match=told):
            job.result()

    virtually(play())


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_one_that_only_waits_goes_on_after_a_look_that_failed(
    tmp_path: Path, error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server that hesitates: the error was kept, and the next turn stopped the job for it."""
    looks, real = [0], Path.stat

    def stat(path: Path, **more: bool) -> object:
        if sys._getframe(1).f_code.co_name == "see_stands":
            looks[0] += 1
            if looks[0] <= 2:
                raise OSError(error, os.strerror(error), str(path))
        return real(path, **more)

    async def play() -> None:
        model = FunctionModel(pause_s=4.5 * LOOK_S)
        run = Run(tmp_path, model, source=ListSource(rows(1)), limits=LONG, runtime=VirtualRuntime())
        job = asyncio.create_task(run.to_end())
        await asyncio.sleep(LOOK_S / 4)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "stat", stat)
            await asyncio.wait([job], timeout=4 * LOOK_S)
        assert looks[0] > 2 and not job.done()
        await job
        assert len(model.complete) == 1

    virtually(play())


class FakeDispatch:
    """Dispatch of a channel that branches take for an old one, or not; ``anew``: times at which it was to begin anew."""

    def __init__(self, outdated: bool = False) -> None:
        self.outdated, self.anew = asyncio.Event(), list[float]()
        if outdated:
            self.outdated.set()

    def begin_anew(self) -> None:
        self.anew.append(asyncio.get_running_loop().time())


class Watched:
    """Journal of a channel that takes so many turns, half a minute after each look; then looks have these answers."""

    def __init__(self, *answers: Exception | None, remote: bool, turns: int = 0) -> None:
        self.seq, self.remote, self.looks = 1, remote, 0
        self._answers, self._turns = list(answers), turns

    def over(self) -> bool:
        return not self._answers

    def see_writable(self) -> None:
        self.looks += 1
        if (answer := self._answers.pop(0)) is not None:
            raise answer

    async def busy(self) -> None:
        await asyncio.sleep(LOOK_S / 2)
        for _ in range(self._turns):
            self.seq += 1
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("remote", [False, True])
def test_a_waiting_channel_looks_once_a_minute_and_a_busy_one_never(remote: bool) -> None:
    async def play(journal: Watched) -> tuple[int, int, float]:
        turns = asyncio.create_task(journal.busy())
        asked: list[int] = []
        others = FakeDispatch()
        await watch(journal, others, journal.over, lambda: asked.append(journal.looks))  # type: ignore[arg-type]
        await turns
        assert not others.anew
        return len(asked), journal.looks, asyncio.get_running_loop().time() / LOOK_S

    away, fenced, strange = DatabaseUnreachable("away"), Fenced("lost"), OSError("out of the blue")
    assert virtually(play(Watched(None, None, fenced, remote=remote))) == (1, 3, 3)
    assert virtually(play(Watched(away, away, fenced, remote=remote))) == (1, 3, 3), "no answer proves nothing"
    assert virtually(play(Watched(strange, None, fenced, remote=remote))) == (2, 3, 3), "a turn tells, and it looks on"
    assert virtually(play(Watched(fenced, turns=8, remote=remote))) == (1, 1, 9), "its turns look"


def test_one_that_branches_take_for_an_old_one_begins_anew_unless_it_is() -> None:
    async def play(journal: Watched) -> tuple[list[int], list[float]]:
        others, asked = FakeDispatch(outdated=True), list[int]()
        await watch(journal, others, journal.over, lambda: asked.append(journal.looks))  # type: ignore[arg-type]
        return asked, others.anew

    away, fenced = DatabaseUnreachable("away"), Fenced("lost")
    for remote in (False, True):
        assert virtually(play(Watched(None, None, remote=remote))) == ([], [0, MEET_S]), "the first message was lost"
        assert virtually(play(Watched(away, None, remote=remote))) == ([], [MEET_S]), "no answer proves nothing"
        assert virtually(play(Watched(fenced, remote=remote))) == ([1], []), "a turn tells it that it is over"
