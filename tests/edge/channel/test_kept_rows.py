"""A program that keeps its rows, killed as it goes: what has ended stands in pieces, and K is as it would be without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import Journal, StateFolder
from benchmarks.harness.scale_worker import Kept
from cortex.journal import codec, snapshots
from cortex.state import events
from cortex.values.limits import Limits
from tests.edge.support.in_process_job import FunctionModel, ListSource, Run, reply, rows

ROWS = 300
LIMITS = Limits(concurrency=8, window_rows=32, snapshot_events=20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 5)
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 300)


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    source = StateFolder(folder).journal("j")
    yield source
    source.close()


def pieces(source: Journal) -> set[tuple[int, int]]:
    """Generation and number of each that is there."""
    found = source._storage._db.execute("SELECT place >> 32, place & 0xffffffff FROM pieces")  # type: ignore[attr-defined]
    return {(generation, number) for generation, number in found}


def wanted(source: Journal) -> set[tuple[int, int]]:
    """Those that belong to a snapshot."""
    spans = [span for _, head in source._storage.heads(0) if (span := snapshots.span_of(head)) is not None]
    return {(generation, number) for generation, first, last in spans for number in range(first, last + 1)}


async def test_killed_again_and_again_k_is_what_its_turns_say(tmp_path: Path) -> None:
    model = FunctionModel(lambda asked: reply("ok"))
    for count in (60, 120, 121, 180, 250):
        run = Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS)
        await run.crash_after(lambda count=count: len(model.asked) >= count)
        with opened(tmp_path) as source:
            kept = list(source.snapshots(0, source.seq))
            assert len(kept) == len(source._storage.heads(0)) <= 2
            for seq, blob in kept:
                turns = [turn for number, turn in source.turns(source.opened_at()) if number <= seq]
                assert codec.encode_state(codec.replay(None, turns, Kept())) == blob
            assert pieces(source) >= wanted(source) and len(wanted(source)) > 1
            assert {generation for generation, _ in pieces(source)} == {1}, "each life goes on with them"
    run = await Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS).to_end()
    assert (run.facts["outcome"], run.answer) == ("complete", ROWS)
    with opened(tmp_path) as source:
        turns = [turn for _, turn in source.turns(source.opened_at())]
        found = [
            event.goal for turn in turns for batch in turn.batches for event in batch if type(event) is events.Answered
        ]
        assert len(found) == len(set(found)) == ROWS
        whole = codec.encode_state(codec.replay(None, turns, Kept()))
    assert codec.encode_state(last_state(StateFolder(tmp_path), "j")) == whole


async def test_lives_with_one_snapshot_each_leave_nothing_behind(tmp_path: Path) -> None:
    model = FunctionModel(lambda asked: reply("ok"))
    limits = Limits(concurrency=8, window_rows=32, snapshot_events=40)
    for count in range(60, ROWS, 60):
        run = Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=limits)
        await run.crash_after(lambda count=count: len(model.asked) >= count)
    await Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=limits).to_end()
    with opened(tmp_path) as source:
        assert pieces(source) == wanted(source) and len(pieces(source)) > 3
        whole = len(codec.encode_state(last_state(StateFolder(tmp_path), "j")))
        kept = source._storage._db.execute("SELECT sum(length(blob)) FROM pieces").fetchone()[0]  # type: ignore[attr-defined]
        assert kept < whole, "K is there once"


async def test_a_job_whose_pieces_are_damaged_is_replayed_from_its_turns(tmp_path: Path) -> None:
    model = FunctionModel(lambda asked: reply("ok"))
    run = Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS)
    await run.crash_after(lambda: len(model.asked) >= 150)
    with opened(tmp_path) as source:
        source._storage._db.execute("DELETE FROM pieces")  # type: ignore[attr-defined]
        assert source.latest_snapshot() is None
    assert last_state(StateFolder(tmp_path), "j").tally.calls >= 120
    run = await Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS).to_end()
    assert (run.facts["outcome"], run.answer) == ("complete", ROWS)
    assert len(model.asked) <= ROWS + 2 * LIMITS.concurrency, "none that had its answer was asked again"


async def test_a_snapshot_takes_as_long_as_what_came_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the bytes that are written besides pieces."""
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 8_000_000)
    sizes: list[int] = []
    keep = Journal.snapshot

    def seen(self: Journal, seq: int, emitted: int, blob: bytes, keep_: int = 0) -> None:
        sizes.append(len(blob))
        keep(self, seq, emitted, blob, keep_)

    monkeypatch.setattr(Journal, "snapshot", seen)
    run = Run(
        tmp_path, FunctionModel(lambda asked: reply("ok")), program=Kept(), source=ListSource(rows(3_000)),
        limits=Limits(concurrency=8, window_rows=32, snapshot_events=200),
    )  # fmt: skip
    await run.to_end()
    assert len(sizes) > 8
    with opened(tmp_path) as source:
        whole = len(codec.encode_state(last_state(StateFolder(tmp_path), "j")))
        assert len(pieces(source)) > 8 and pieces(source) == wanted(source)
    assert max(sizes) < whole / 3, "and not as K does, which has all of them"
