"""Between the look at a job and the run that asks its failed rows again, the job may have become another."""

from __future__ import annotations

import msgspec
import pytest

from actors.channel.feeding import RowIntake
from actors.common.errors import UserError
from actors.common.process_owner import this_owner
from actors.jobs.opening import Opening, resuming_batch
from cortex.journal import codec
from cortex.programs.batch import Batch
from cortex.state import events
from cortex.values.limits import Route
from tests.support.state_machine_harness import Stage, fed


def _over() -> Stage:
    stage = Stage(Batch(), permits=2, streams=True)
    stage.turn(fed("a", "b", ended=True))
    stage.fail("refused")
    stage.answer()
    assert stage.k.outcome == "complete"
    return stage


def _opening(stage: Stage, edition: int = 1, **more: object) -> Opening:
    kinds = {"refused": 1}
    again = events.RowsReopened("ann", edition, ("b",), (0,), kinds, stage.k.position, **more)  # type: ignore[arg-type]
    terms = stage.k.terms
    if again.model:
        terms = msgspec.structs.replace(terms, route=Route(endpoint="sim", model=again.model))
    return Opening(terms=terms, owner=this_owner("inline"), who="ann", reopened=again)


def test_it_comes_before_everything_else_and_the_job_goes_on():
    stage = _over()
    batch, anew = resuming_batch(stage.k, _opening(stage), 2, ())
    assert [type(event) for event in batch] == [events.Rejoined, events.RowsReopened, events.Resumed] and not anew
    stage.turn(*batch)
    assert (stage.k.edition, stage.k.outcome) == (1, "")


def test_another_model_for_these_rows_is_no_other_job():
    stage = _over()
    batch, anew = resuming_batch(stage.k, _opening(stage, model="n"), 2, ())
    assert not anew
    stage.turn(*batch)
    assert stage.k.terms.route.model == "n" and stage.k.terms.route == batch[1].route


def test_the_same_opening_twice_opens_once():
    stage = _over()
    stage.turn(*resuming_batch(stage.k, _opening(stage), 2, ())[0])
    batch, _ = resuming_batch(stage.k, _opening(stage), 3, ())
    assert not any(isinstance(event, events.RowsReopened) for event in batch)


def test_a_job_that_was_cancelled_meanwhile_is_left_alone():
    stage = Stage(Batch(), permits=2, streams=True)
    stage.turn(fed("a", "b", ended=True))
    stage.fail("refused")
    opening = _opening(stage)
    stage.turn(events.Stopped("bob", "cancel"))
    with pytest.raises(UserError, match="has changed meanwhile"):
        resuming_batch(stage.k, opening, 2, ())


@pytest.mark.parametrize(("edition", "written"), [(1, 2), (0, 0), (None, 2)])
async def test_how_much_of_a_list_was_written_is_told_for_this_list_alone(edition: int | None, written: int):
    """The driver of the run before told it, and the message came late: the file would keep what a retry took back."""
    stage = _over()
    stage.turn(*resuming_batch(stage.k, _opening(stage), 2, ())[0])

    async def put(blob: bytes, size: int, batch: object = None) -> None:
        stage.turn(*codec.decode_batch(blob))

    await RowIntake(put, lambda: stage.k, lambda: False).written(2, 90, (), edition)
    assert stage.k.written_rows == written
