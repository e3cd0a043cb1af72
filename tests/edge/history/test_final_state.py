"""What is told of a job that has ended needs none of its goals, unless something came since that is about one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from actors.history import final_state
from actors.jobs.summary import summary
from actors.journal.journal import Journal, StateFolder
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State
from tests.support.state_machine_harness import Flat, Stage


@pytest.fixture
def ended(tmp_path: Path):
    """The journal of a job of three goals that has ended, with what was written down then; and its stage."""
    stage = Stage(Flat(texts=("a", "b", "c")))
    stage.answer_all()
    (tmp_path / "jobs").mkdir()
    source = StateFolder(str(tmp_path)).journal("j", create=True)
    source.take_epoch(b"{}")
    for turn in stage.turns:
        source.append([codec.encode_turn(turn.at_s, [codec.encode_batch(batch) for batch in turn.batches])])
    final_state.write(source, stage.k, stage.other, source.seq, None)
    yield source, stage
    source.close()


def taken(source: Journal, stage: Stage, event: events.Event) -> None:
    """One more turn."""
    source.append([codec.encode_turn(stage.k.at_s + 1, [codec.encode_batch([event])])])


def whole(source: Journal) -> State:
    found = final_state.read(source)
    assert found is not None and len(found.k.goals) == 3
    return found.k


def test_a_job_that_has_ended_is_told_of_without_its_goals(ended):
    source, stage = ended
    taken(source, stage, events.PermitsGranted(0))
    found = final_state.read(source, rest=True)
    assert found is not None and not found.k.goals and isinstance(found.k, State)
    assert summary(found.k) == summary(whole(source)) and summary(found.k)["outcome"] == "complete"
    assert found.answer == msgspec.to_builtins(stage.other.answer(stage.k))


def test_a_reply_that_comes_late_is_told_with_them(ended):
    source, stage = ended
    answered = next(
        event for turn in stage.turns for batch in turn.batches for event in batch if type(event) is events.Answered
    )
    taken(source, stage, answered)
    found = final_state.read(source, rest=True)
    assert found is not None and len(found.k.goals) == 3
    assert summary(found.k) == summary(whole(source)) and found.k.tally.dropped == 1


def test_where_a_goal_lives_still_they_are_all_wanted():
    stage = Stage(Flat(texts=("a", "b")))
    assert codec.decode_rest(codec.encode_state(stage.k)) is None
    stage.answer()
    stage.k.outcome = "partial"
    assert codec.decode_rest(codec.encode_state(stage.k)) is None
