"""One name, two journals, the same branches and cortex: each job does its work, and a channel that is over stays so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.channel.fencing import met
from actors.journal.journal import Fenced, Journal, StateFolder
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, rows


async def test_a_job_of_another_state_folder_may_have_the_name_of_one_that_was_there(tmp_path: Path) -> None:
    models = FunctionModel(), FunctionModel(), FunctionModel()
    first, second, third = (
        Run(tmp_path / folder, model, source=ListSource(rows(20)))
        for folder, model in zip(("a", "b", "c"), models, strict=True)
    )
    runtime = first.runtime
    try:
        for run in (first, second, third):
            run.driver._runtime = runtime
            async with asyncio.timeout(20):
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
    assert await met(others, ("branch:0",), journal, others) == ((7, 1),)  # type: ignore[arg-type]
    assert others.epochs == epochs and journal.epoch == journal.newest_epoch() == epochs[-1]
    assert journal.meta("owner") == b"whose"


@pytest.mark.parametrize("heard", ["branches", "cortex"])
async def test_one_whose_journal_has_another_writer_stays_fenced(tmp_path: Path, journal: Journal, heard: str) -> None:
    """It took its epoch, and came to the branches only when the next one had been there: that one goes on."""
    journal.take_epoch(b"late")
    other = StateFolder(tmp_path).journal("j")
    assert other.take_epoch(b"{}") == 2
    others = Others(**{heard: 2})
    with pytest.raises(Fenced, match="another run has taken the job over"):
        await met(others, ("branch:0",), journal, others)  # type: ignore[arg-type]
    assert other.newest_epoch() == 2
    other.set_meta("fact", b"x")
    other.close()
