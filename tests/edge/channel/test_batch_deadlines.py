"""Deadlines of message batches between machines whose clocks differ, by minutes or by years: none is compared.

And before the last moment at which a request may be pending, nobody is asked, or believed, that there is no batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors.branch import batch_executor
from actors.channel.batches import submissions
from actors.common.errors import UserError
from actors.common.process_owner import this_owner
from actors.jobs.opening import Opening, resuming_batch
from actors.ports.message_batches import BatchStatus
from actors.ports.runtime import PeerUnavailable
from cortex.state import commands, events
from cortex.state.state import State
from policies.failures.failure import Failure, FailureKind
from tests.edge.support.virtual_clock import virtually
from tests.unit.cortex.loop.test_batch_submissions import keys, stage

A_YEAR_S = 365 * 86_400.0
TIMEOUT_S = 300.0
CLOCKS_S = (0.0, 2_940.0, -2_940.0, A_YEAR_S, -A_YEAR_S)
"""Seconds by which the clock of the branch's machine is ahead: 49 minutes, as in seed 400019, and a year."""


class Far:
    """Branch on another machine, and the way to it. Its provider notes when a batch was submitted."""

    def __init__(self, ahead_s: float, way_s: float, later: str = "branch:0.1") -> None:
        self.ahead_s, self.way_s, self.names = ahead_s, way_s, ["branch:0.1", later]
        self.executor = batch_executor.BatchExecutor()
        self.submitted_s: list[float] = []
        self.orders: list[Any] = []
        self.batches, self.endpoint, self.first_id = self, "sim", ""

    async def submit(self, rows: Any, timeout_s: float) -> str:
        self.submitted_s.append(asyncio.get_running_loop().time())
        return "b1"

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus]:
        return [BatchStatus("b7", True, 3, 1.7e9 + 5, self.first_id)]

    def peer(self, name: str) -> Far:
        return self

    def steady_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, method: str, job: str, epoch: int, place: int, blob: bytes, names: Any) -> bytes:
        self.orders.append(order := batch_executor._order_decoder.decode(blob))
        submits = isinstance(order, batch_executor.SubmitOrder)
        await asyncio.sleep(self.way_s if submits else 0.0)
        clock = (self.names[-1 if submits else 0], self.steady_s() + self.ahead_s)
        answer = await self.executor.carry_out(blob, self, lambda: 0.0, self, clock)  # type: ignore[arg-type]
        if submits and self.way_s > TIMEOUT_S:
            raise PeerUnavailable("branch:0")
        return answer


def tracked(far: Any, k: State) -> tuple[submissions.SubmissionTracker, list[events.Event]]:
    put: list[events.Event] = []
    job_s = k.at_s
    return submissions.SubmissionTracker(
        "j", far, lambda: k, put.extend, lambda: {"branch:0": "branch:0.1"}, lambda: job_s + far.steady_s()  # type: ignore[arg-type]
    ), put


def intended() -> tuple[State, dict[int, commands.Call]]:
    made = stage()
    made.turn(events.SubmissionIntended(1, 0, keys(made), "b0"))
    calls = dict(zip(made.k.flights, made.calls.values(), strict=True))
    return made.k, calls


@pytest.mark.parametrize("ahead_s", CLOCKS_S)
@pytest.mark.parametrize(("way_s", "comes"), [(0.0, True), (TIMEOUT_S - 1, True), (TIMEOUT_S + 1, False)])
def test_an_order_to_submit_holds_until_its_deadline_whatever_the_clock_of_the_branch(
    ahead_s: float, way_s: float, comes: bool
) -> None:
    async def play() -> None:
        far, (k, calls) = Far(ahead_s, way_s), intended()
        tracker, put = tracked(far, k)
        tracker._bodies[1] = calls
        await tracker._submit(1)
        assert len(far.submitted_s) == comes
        kind = events.SubmissionAccepted if comes else events.SubmissionUncertain
        assert [type(event) for event in put] == [kind]

    virtually(play())


def test_an_order_to_submit_that_came_too_late_uses_up_no_try() -> None:
    """Its failure is of a kind for which the calls are asked anew, as where the breaker stays open."""

    async def play() -> None:
        far, (k, calls) = Far(0.0, TIMEOUT_S), intended()
        tracker, put = tracked(far, k)
        tracker._bodies[1] = calls
        await tracker._submit(1)
        [event] = put
        assert isinstance(event, events.SubmissionRejected) and event.failure.kind is FailureKind.LOST
        assert far.submitted_s == []

    virtually(play())


def test_a_submission_of_several_requests_ends_at_its_deadline_too() -> None:
    """A key that is refused at the last moment has the request sent again, an upload is followed by another request:
    each had the whole time, and after a crash of the channel the batch was made when its rows had been asked again."""

    class Slow(Far):
        async def submit(self, rows: Any, timeout_s: float) -> str:
            await asyncio.sleep(timeout_s - 1.0)
            await asyncio.sleep(timeout_s - 1.0)
            return await super().submit(rows, timeout_s)

    async def play() -> None:
        far, (k, calls) = Slow(0.0, 0.0), intended()
        tracker, put = tracked(far, k)
        tracker._bodies[1] = calls
        await tracker._submit(1)
        assert TIMEOUT_S <= far.steady_s() <= TIMEOUT_S + batch_executor.OVERTIME_S
        await asyncio.sleep(3 * TIMEOUT_S)
        assert far.submitted_s == []
        [event] = put
        assert isinstance(event, events.SubmissionUncertain) and event.failure.kind is FailureKind.TIMED_OUT

    virtually(play())


def test_a_branch_that_took_the_place_of_the_one_that_told_its_clock_submits_nothing() -> None:
    async def play() -> None:
        far, (k, calls) = Far(A_YEAR_S, 0.0, later="branch:0.2"), intended()
        tracker, put = tracked(far, k)
        tracker._bodies[1] = calls
        work = asyncio.create_task(tracker._submit(1))
        await asyncio.sleep(1.0)
        assert (far.submitted_s, put) == ([], [])
        far.names = ["branch:0.2"]
        await work
        assert (len(far.submitted_s), [type(event) for event in put]) == (1, [events.SubmissionAccepted])

    virtually(play())


@pytest.mark.parametrize("ahead_s", CLOCKS_S)
@pytest.mark.parametrize(("marker_at_s", "not_before_s"), [(1.7e9, 1.7e9 - submissions.A_DAY_S), (0.0, 0.0)])
def test_a_lost_batch_is_searched_for_by_the_clock_of_its_provider(
    ahead_s: float, marker_at_s: float, not_before_s: float
) -> None:
    """Had the channel's clock counted, one a day ahead would see no batch as young enough, and submit it again."""

    async def play() -> None:
        far, (k, _) = Far(0.0, 0.0), intended()
        k.submissions[1].marker_at_s, k.ahead_s = marker_at_s, ahead_s
        tracker, put = tracked(far, k)
        far.first_id = next(iter(tracker._ids(k.submissions[1])))
        await tracker._find(1)
        assert put == [events.SubmissionAccepted(1, "b7")]
        assert far.orders == [batch_executor.ListOrder("b0", not_before_s)]

    virtually(play())


def test_an_intent_tells_when_the_newest_batch_was_created_by_the_clock_of_its_provider() -> None:
    async def play() -> None:
        far, (k, calls) = Far(0.0, 0.0), intended()
        tracker, put = tracked(far, k)
        await tracker._gathering._settled(0, calls)
        assert put == [events.SubmissionIntended(2, 0, tuple(calls), "b7", 1.7e9 + 5)]

    virtually(play())


class Orphaned(Far):
    """Branch whose predecessor was suspended while it handed a batch over, and has not died: it goes on, later.

    ``lies``: what keeps the list, or the results of another batch in it, from being read.
    """

    def __init__(self, lies: str, arrives_s: float) -> None:
        super().__init__(0.0, 0.0)
        self.lies, self.arrives_s = lies, arrives_s
        self.now_s = self.steady_s

    async def listed(self, since: str, not_before_s: float, batches_max: int) -> list[BatchStatus] | Failure:
        if self.lies == "list":
            return Failure(FailureKind.REJECTED, "this key may not list", 403)
        if self.lies == "account":
            return Failure(FailureKind.BLOCKED, "Your credit balance is too low", 400)
        mine = BatchStatus("b8", True, 3, 1.7e9 + 6, "")
        other = BatchStatus("b7", True, 3, 1.7e9 + 5, "")
        return [other, mine] if self.steady_s() >= self.arrives_s else [other]

    async def results(self, name: str) -> AsyncIterator[tuple[str, Any]]:
        yield ("", Failure(FailureKind.REJECTED, "results are gone", 404)) if name == "b7" else (self.first_id, None)


def searched(lies: str, arrives_s: float) -> tuple[list[events.Event], float]:
    """Return what the search for a lost batch ends with, and after how many seconds."""

    async def play() -> tuple[list[events.Event], float]:
        far, (k, _) = Orphaned(lies, arrives_s), intended()
        tracker, put = tracked(far, k)
        far.first_id = next(iter(tracker._ids(k.submissions[1])))
        await tracker._find(1)
        return put, far.steady_s()

    return virtually(play())


def test_a_batch_that_arrives_late_is_found_though_another_one_cannot_be_read() -> None:
    """Seed 15032534: a person was asked at once, saw no batch, and said so; its row was paid once more."""
    put, after_s = searched("results", TIMEOUT_S - 1)
    assert put == [events.SubmissionAccepted(1, "b8")] and after_s >= TIMEOUT_S - 1


@pytest.mark.parametrize("lies", ["results", "list"])
def test_a_person_is_asked_once_no_request_can_be_pending(lies: str) -> None:
    k, _ = intended()
    [event], after_s = searched(lies, float("inf"))
    assert isinstance(event, events.SubmissionUnreadable)
    assert after_s >= k.submissions[1].settled_at_s - k.at_s


def test_a_blocked_account_is_told_at_once() -> None:
    """It asks nobody what became of the batch."""
    [event], after_s = searched("account", float("inf"))
    assert isinstance(event, events.SubmissionUnreadable) and event.failure.kind is FailureKind.BLOCKED
    assert after_s == 0.0


@pytest.mark.parametrize("asks", [False, True])
def test_nobody_is_believed_that_there_is_no_batch_while_it_may_still_arrive(asks: bool) -> None:
    k, _ = intended()
    made = k.submissions[1]
    made.stand = submissions.SubmissionStatus.ASKING if asks else submissions.SubmissionStatus.DOUBTED

    def said(name: str, now_s: float) -> list[type]:
        opening = Opening(terms=k.terms, owner=this_owner("inline"), who="ann", decided=((1, name),))
        return [type(event) for event in resuming_batch(k, opening, 2, (), now_s=now_s)[0]]

    for now_s in (0.0, made.settled_at_s - 1.0):
        with pytest.raises(UserError, match="submission 1 of j may still arrive at the provider until "):
            said("", now_s)
    assert events.SubmissionRejected in said("", made.settled_at_s)
    assert events.SubmissionAccepted in said("b8", 0.0)
    made.name = "b7"  # it has arrived
    assert events.SubmissionRejected in said("", 0.0)
