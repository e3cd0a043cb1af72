"""A program that keeps its rows, killed as it goes: what has ended stands in pieces, and K is as it would be without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.records import last_state
from actors.store import Folder, Journal
from benchmarks.scaling import Kept
from cortex import events, journal, snapshots
from cortex.limits import Limits
from tests.edge.jobs import FunctionModel, ListSource, Run, reply, rows

ROWS = 300
LIMITS = Limits(concurrency=8, window_rows=32, snapshot_events=20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_GOALS_MIN", 5)
    monkeypatch.setattr(snapshots, "PIECE_BYTES", 300)


@contextmanager
def opened(folder: Path) -> Iterator[Journal]:
    source = Folder(folder).journal("j")
    yield source
    source.close()


def pieces(source: Journal) -> list[int]:
    found = source._storage._db.execute("SELECT place FROM pieces ORDER BY place")  # type: ignore[attr-defined]
    return [place for (place,) in found]


def goals_in_pieces(source: Journal) -> list[int]:
    """Of each snapshot, as it is kept, in how many pieces it stands."""
    blobs = source._storage.snapshots(0, source.seq, 1 << 62, None)
    return [parts.last - parts.first + 1 for _, blob in blobs if (parts := snapshots.split(blob)) is not None]


async def test_killed_again_and_again_k_is_what_its_turns_say(tmp_path: Path) -> None:
    model = FunctionModel(lambda asked: reply("ok"))
    for count in (60, 120, 121, 180, 250):
        run = Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS)
        await run.crash_after(lambda count=count: len(model.asked) >= count)
        with opened(tmp_path) as source:
            kept = list(source.snapshots(0, source.seq))
            for seq, blob in kept:
                turns = [turn for number, turn in source.turns(source.opened_at()) if number <= seq]
                assert journal.encode_state(journal.replay(None, turns, Kept())) == blob
            assert len(kept) <= 2 and max(goals_in_pieces(source)) > 1
            epochs = {place >> 32 for place in pieces(source)}
            assert len(epochs) <= 2, "of this life and, while one of its snapshots is kept, of the one before"
    run = await Run(tmp_path, model, program=Kept(), source=ListSource(rows(ROWS)), limits=LIMITS).to_end()
    assert (run.facts["outcome"], run.answer) == ("complete", ROWS)
    with opened(tmp_path) as source:
        turns = [turn for _, turn in source.turns(source.opened_at())]
        found = [event.goal for turn in turns for batch in turn.batches for event in batch if type(event) is events.Answered]
        assert len(found) == len(set(found)) == ROWS
        whole = journal.encode_state(journal.replay(None, turns, Kept()))
    assert journal.encode_state(last_state(Folder(tmp_path), "j")) == whole


async def test_a_snapshot_takes_as_long_as_what_came_since_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in goals that are encoded."""
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
        whole = len(journal.encode_state(last_state(Folder(tmp_path), "j")))
        assert len(pieces(source)) > 8
    assert max(sizes) < whole / 3, "and not as K does, which has all of them"
