"""What may leave a journal, and when: not before the results that it led to are on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.history import redaction
from actors.history.catalog import replayed
from actors.history.redaction import JournalRedaction
from actors.history.result_history import lines
from actors.journal.journal import Fenced, Journal, TextRedacted
from actors.journal.sqlite.storage import FileStorage
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.values.limits import Limits
from tests.support.state_machine_harness import Stage, fed

KEYS = "abcdefgh"


class Life:
    """A job whose turns go to a journal that keeps no text."""

    def __init__(self, path: Path) -> None:
        self.stage = Stage(Batch(), Limits(concurrency=8, window_rows=8), permits=8, streams=True, keeps_text=False)
        self.path = path
        self.journal = Journal(FileStorage(path, create=True))
        self.journal.take_epoch(b"{}")
        self.thinning = JournalRedaction(self.journal, self.stage.k)
        self.written = 0
        self.put_down()

    def turn(self, *happened: events.Event) -> None:
        self.stage.turn(*happened)
        self.put_down()

    def put_down(self) -> None:
        for turn in self.stage.turns[self.written :]:
            seq = self.journal.append([codec.encode_turn(turn.at_s, map(codec.encode_batch, turn.batches))])
        self.written = len(self.stage.turns)
        self.thinning.look(self.stage.k, seq)

    def read(self, index: int = 0) -> list[bytes]:
        found = []
        for line in lines(self.journal, lambda terms: self.stage.program, index):
            if line is None:
                break
            found.append(line.value)
        return found


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(redaction, "RESULTS", 2)
    made = Life(tmp_path / "j.sqlite")
    made.turn(fed(*KEYS, ended=True))
    yield made
    made.journal.close()


def test_nothing_goes_before_its_result_is_on_disk(life):
    for _ in range(5):
        life.turn(life.stage.answered(life.stage.call()))
    assert life.journal.dropped() == 0 and len(life.read()) == 5
    life.turn(events.ResultsWritten(1, 10))
    assert life.journal.dropped() == 0, "two results were given out when the snapshot was taken"
    life.turn(events.ResultsWritten(4, 40))
    assert life.journal.dropped() > 0
    assert life.read(4) == life.stage.emitted[4:], "what is not on disk yet can be read"
    with pytest.raises(TextRedacted, match="keeps no text"):
        life.read(0)


def test_what_has_gone_is_in_no_file(life):
    """Not in a page that is free, nor in the write-ahead log."""
    texts = [f"answer number {count} " * 40 for count in range(5)]
    for text in texts:
        life.turn(life.stage.answered(life.stage.call(), text))
    held = b"".join(path.read_bytes() for path in life.path.parent.iterdir())
    assert all(text.encode() in held for text in texts)
    life.turn(events.ResultsWritten(2, 20))
    held = b"".join(path.read_bytes() for path in life.path.parent.iterdir())
    assert [text.encode() in held for text in texts] == [False, False, True, True, True]


def test_k_recovers_from_what_is_left(life):
    for count in range(1, 8):
        life.turn(life.stage.answered(life.stage.call()))
        life.turn(events.ResultsWritten(count, 10 * count))
        k = replayed(life.journal, lambda terms: life.stage.program)
        assert codec.encode_state(k) == codec.encode_state(life.stage.k)
    assert life.journal.dropped() > 0


def test_over_and_written_nothing_is_left_of_it(life):
    while life.stage.calls:
        life.turn(life.stage.answered(life.stage.call()))
    assert life.stage.k.outcome == "complete"
    life.turn(events.ResultsWritten(8, 80))
    assert life.journal.dropped() == life.journal.seq
    with pytest.raises(TextRedacted):
        list(life.journal.turns())
    assert replayed(life.journal, lambda terms: life.stage.program).tally.succeeded == 8
    assert b"hello" not in life.path.read_bytes()


def test_an_orphan_removes_nothing(life):
    other = Journal(FileStorage(life.path))
    other.take_epoch(b"{}")
    with pytest.raises(Fenced):
        life.journal.drop(1)
    assert other.dropped() == 0
    other.close()
