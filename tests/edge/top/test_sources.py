"""Looking is cheap: a journal is read when it has changed, and again only after a multiple of what reading it took."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.history.catalog import read_job
from actors.journal.journal import StateFolder
from actors.top import sources
from actors.top.sources import FolderSource, JobSnapshot
from tests.support.journal_surgery import as_if_killed

ALL = float("inf")
"""Time that a look may take: what it finds is asked here, however slow the machine is."""


class Clock:
    now_s = 5_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    """Three jobs that have ended."""
    import cortex

    for name in ("a", "b", "c"):
        cortex.run(_twice(), model="sim", job=name, state=str(tmp_path / "state"), progress=False)
    return StateFolder(tmp_path / "state")


def _twice() -> Any:
    import cortex

    @cortex.flow
    async def twice(ctx: cortex.Context) -> list[str]:
        return [await ctx.ask(f"Answer yes or no: is {n} even?", max_tokens=8) for n in range(2)]

    return twice()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which journals were read, in turn."""
    found: list[str] = []

    def reading(folder: StateFolder, job: str) -> Any:
        found.append(job)
        return read_job(folder, job)

    monkeypatch.setattr(sources, "read_job", reading)
    return found


def _by_name(seen: sources.TopSnapshot) -> dict[str, JobSnapshot]:
    return {each.job: each for each in seen.jobs}


def test_what_has_not_changed_is_not_read_again(folder, reads):
    clock = Clock()
    source = FolderSource(folder, clock)
    for _ in range(10):
        seen = _by_name(source.look(ALL))
        clock.now_s += 1
    assert sorted(reads) == ["a", "b", "c"]
    found = {name: (each.facts["outcome"], each.facts["calls"], each.source) for name, each in seen.items()}
    assert found == dict.fromkeys(("a", "b", "c"), ("complete", 2, "journal"))


def _written(folder: StateFolder, job: str) -> None:
    journal = folder.journal(job)
    journal.set_meta("note", time.time_ns().to_bytes(8))
    journal.close()


def test_one_that_goes_on_changing_is_read_for_a_small_share_of_the_time(folder, reads, monkeypatch):
    clock = Clock()
    source = FolderSource(folder, clock)
    taken = iter(range(0, 1_000_000, 2))  # each reading takes two seconds
    source.look(ALL)
    del reads[:]
    ours = SimpleNamespace(monotonic=lambda: float(next(taken)))  # nobody else's: threads of other tests look, too
    monkeypatch.setattr(sources, "time", ours)
    for _ in range(200):
        _written(folder, "b")
        source.look(ALL)
        clock.now_s += 1
    assert set(reads) == {"b"}
    assert 4 <= len(reads) <= 6  # 200 s times READ_SHARE are 10 s of reading


def test_the_first_look_does_not_wait_for_all_of_them(folder, reads):
    source = FolderSource(folder, Clock())
    seen = _by_name(source.look(budget_s=0.0))
    assert reads == []
    assert all(each.facts == {} for each in seen.values())
    assert set(_by_name(source.look(ALL))) == {"a", "b", "c"}
    assert sorted(reads) == ["a", "b", "c"]


def test_a_job_that_is_gone_is_forgotten(folder, reads):
    source = FolderSource(folder, Clock())
    source.look(ALL)
    folder.journal_path("b").unlink()
    assert set(_by_name(source.look(ALL))) == {"a", "c"}
    assert set(source._kept) == {"a", "c"}


def test_whether_somebody_runs_it_is_looked_at_each_time(folder, reads):
    journal = folder.journal("a")
    as_if_killed(journal, 1)
    journal.close()
    source = FolderSource(folder, Clock())
    assert _by_name(source.look(ALL))["a"].facts["outcome"] == "interrupted"
    with folder.hold("a"):
        assert _by_name(source.look(ALL))["a"].facts["outcome"] == "running"
    assert reads.count("a") == 1
