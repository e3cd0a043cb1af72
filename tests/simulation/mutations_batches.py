"""Faults planted in message batches: before the intent, in doubt, in reading, and in accounting."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from actors.branch import batch_executor
from actors.channel.batches import submissions as batches
from cortex.loop import batch_submissions, event_handlers
from cortex.state import events
from cortex.values.batch_record import SubmissionStatus
from tests.simulation.loop import LIFE
from tests.simulation.mutations import Patch, planted
from tests.simulation.scenario import Plan


def _batched(made: Plan) -> bool:
    return any(job.batches for job in made.jobs)


def _doubtful(made: Plan) -> bool:
    return _batched(made) and (made.batching.trouble > 0 or bool(made.troubles_at))


def _timed_out(made: Plan) -> bool:
    job_s = [job.goal_timeout_s for job in made.jobs if job.batches and job.retries and job.goal_timeout_s]
    return any(made.batching.takes_s < 2 * each_s < 4 * made.batching.takes_s for each_s in job_s)


def _unreadable(made: Plan) -> bool:
    return _batched(made) and made.batching.unreadable > 0


@planted("no batch is handed over before its intent is on disk", likely=_batched)
def submitted_before_intent(patch: Patch) -> None:
    intend = batches.SubmissionTracker._intend

    def hasty(self: Any, place: int, calls: Any, newest: str, newest_s: float) -> None:
        k = self._state()
        rows = tuple(
            batches.BatchRequest(batch_submissions.custom_id(k, k.flights[key]), call.body)
            for key, call in calls.items() if key in k.flights
        )

        lives = LIFE.get().node.world.lives
        name = next((name for name in self._orders._processes() if name in lives), "")
        if name:
            until_s = asyncio.get_running_loop().time() + lives[name].node.up_s + 60.0
            order = batch_executor.SubmitOrder(rows, until_s, lives[name].seat._actor.incarnation)
            self._begin("hasty", self._next, lambda _: self._orders.ask(place, order))
        intend(self, place, calls, newest, newest_s)

    patch.setattr(batches.SubmissionTracker, "_intend", hasty)


@planted("a job ends for good when it can cancel whatever it may have submitted", 201911, likely=_doubtful)
def ends_with_nameless_batches(patch: Patch) -> None:
    patch.setattr(batch_submissions, "nameless", lambda k: False)


@planted("a retry takes what a cancelled batch was paid for", 200886, likely=_timed_out)
def cancelled_batches_forgotten(patch: Patch) -> None:
    patch.setattr(batch_submissions, "look_again", lambda k, other_model: k.cancelled.clear())


@planted("after a crash nothing is submitted again while nobody knows what became of it", likely=_doubtful)
def doubt_taken_for_absence(patch: Patch) -> None:
    def absent(k: Any, event: Any, out: Any) -> None:
        batch_submissions.unsubmitted(
            k, events.SubmissionRejected(event.number, msgspec.structs.replace(event.failure, sent=False))
        )

    patch.setattr(batch_submissions, "doubted", absent)


@planted("a new incarnation takes an intent for what may be there", 159, likely=_doubtful)
def intent_forgotten_by_restart(patch: Patch) -> None:
    rejoin = batch_submissions.rejoin

    def forgetful(k: Any) -> set[int]:
        for made in k.submissions.values():
            if made.stand == SubmissionStatus.INTENDED:
                made.stand = SubmissionStatus.RESTING
        return rejoin(k)

    patch.setattr(batch_submissions, "rejoin", forgetful)


@planted(
    "a list proves nothing before the last moment at which a batch can be on its way, and seen", 1000, likely=_doubtful
)
def absent_at_first_sight(patch: Patch) -> None:
    patch.setattr(batches, "absent", lambda settled_at_s, listed_at_s: True)


@planted("a lost answer leaves it open whether the batch was made", likely=_doubtful)
def lost_answer_taken_for_refusal(patch: Patch) -> None:
    patch.setattr(batches, "surely_not_made", lambda failure: True)


@planted("only rows without a result are asked again", likely=_batched)
def read_rows_asked_again(patch: Patch) -> None:
    def results(self: Any, number: int, blob: bytes) -> list[events.Event]:
        found = read(self, number, blob)
        return found[: len(found) // 2]

    read = batches.SubmissionTracker.results
    patch.setattr(batches.SubmissionTracker, "results", results)


@planted("results that end too soon are read again", 492, likely=_doubtful)
def cut_results_taken_for_all(patch: Patch) -> None:
    patch.setattr(batches, "LOOKS_SHORT_MAX", 0)


@planted("a batch that is out is read by a new incarnation", likely=_doubtful)
def batch_left_behind(patch: Patch) -> None:
    patch.setattr(batch_submissions, "take_up", lambda k, out: None)
    patch.setattr(event_handlers.batch_submissions, "take_up", lambda k, out: None)


@planted("what cannot be decided stops the job, and asks", likely=_unreadable)
def undecided_goes_on(patch: Patch) -> None:
    def on(k: Any, event: Any) -> None:
        batch_submissions.unsubmitted(k, events.SubmissionRejected(event.number, event.failure))

    patch.setattr(batch_submissions, "stuck", on)


@planted("a batch whose results nobody can read stays charged", likely=_unreadable)
def unreadable_batch_is_free(patch: Patch) -> None:
    patch.setattr(batch_submissions, "_give_up", batch_submissions.take_back)


@planted("a custom id names one attempt of one row", likely=lambda made: _batched(made) and made.batching.failing > 0)
def custom_id_without_attempt(patch: Patch) -> None:
    custom_id = batch_submissions.custom_id

    def same(k: Any, flight: Any) -> str:
        return custom_id(k, msgspec.structs.replace(flight, attempt=1))

    patch.setattr(batch_submissions, "custom_id", same)
    patch.setattr(batches, "custom_id", same)
    patch.setattr("tests.simulation.invariants_batches.custom_id", same)
