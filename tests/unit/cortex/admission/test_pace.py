"""How fast calls begin: the rates of a grant and of the job's user, woken some calls at a time."""

from __future__ import annotations

import pytest

from cortex.journal import codec
from cortex.loop.step import step
from cortex.state import commands, events
from cortex.state.route_share import TOGETHER_S, CallSizes
from cortex.state.state import State
from cortex.values.limits import Limits
from cortex.values.reply import UNKNOWN_USAGE, Usage
from policies.limits.pace import BURST_S, due_at_s
from tests.support.state_machine_harness import Flat, Stage, of, other, reply, terms

ENDLESS = Flat(texts=tuple(map(str, range(4_000))))


class Clocked:
    """A job whose calls are answered after ``latency_s``; it is woken by answers and when it says that it is due.

    ``begun`` are the times at which calls went out; ``turns`` counts those that time alone brought.
    """

    def __init__(
        self, limits: Limits, *granted: events.PermitsGranted, usage: Usage, latency_s: float = 0.5, **more: object
    ) -> None:
        self.k: State = codec.open_job(terms(limits, **more))  # type: ignore[arg-type]
        self.latency_s, self.reply = latency_s, reply("ok", usage)
        self.begun: list[tuple[float, commands.Call]] = []
        self.coming: list[tuple[float, commands.Call]] = []
        self.turns = 0
        self._turn(0.0, events.Opened(self.k.terms, 1), *granted)

    def _turn(self, at_s: float, *happened: events.Event) -> None:
        for call in of(step(self.k, ENDLESS, events.Turn(at_s, (happened,))), commands.Call):
            self.begun.append((at_s, call))
            self.coming.append((at_s + self.latency_s, call))

    def until(self, end_s: float) -> list[float]:
        """Run on to a time; when calls began."""
        while True:
            due_s = self.k.due_at_s()
            next_s = min([at_s for at_s, _ in self.coming[:1]] + [due_s] * (due_s is not None), default=end_s)
            if next_s >= end_s:
                return [at_s for at_s, _ in self.begun]
            come = [call for at_s, call in self.coming if at_s <= next_s]
            self.coming = self.coming[len(come) :]
            self.turns += not come
            self._turn(next_s, *[events.Answered(c.goal, c.sample, c.attempt, c.hash, self.reply) for c in come])


def rate_of(begun: list[float], from_s: float, until_s: float) -> float:
    return sum(from_s <= at_s < until_s for at_s in begun) / (until_s - from_s)


WIDE = Limits(concurrency=1_000, output_tokens_max=100)
LIGHT = Usage(10, 20)


@pytest.mark.parametrize("rate", [1.0, 7.5, 40.0, 100.0])
def test_a_granted_rate_is_kept_and_reached(rate):
    begun = Clocked(WIDE, events.PermitsGranted(500, requests_per_s=rate), usage=LIGHT).until(21.0)
    assert rate_of(begun, 1.0, 21.0) == pytest.approx(rate, rel=0.02, abs=0.051)
    most = max(sum(at_s <= other_s < at_s + 1.0 for other_s in begun) for at_s in begun)
    assert most <= rate * (1.0 + BURST_S + TOGETHER_S) + 2, "in no second more than the rate and its tolerance"


def test_time_wakes_it_some_calls_at_a_time():
    limits = Limits(concurrency=2_000, output_tokens_max=100)
    run = Clocked(limits, events.PermitsGranted(2_000, requests_per_s=100.0), usage=LIGHT, latency_s=1e9)
    assert len(run.until(10.0)) > 950
    assert run.turns <= 101


@pytest.mark.parametrize(
    ("granted", "usage", "calls_per_s"),
    [
        (events.PermitsGranted(500, input_tokens_per_s=400.0), Usage(10, 1), 40.0),
        (events.PermitsGranted(500, input_tokens_per_s=400.0), Usage(4, 1, cache_creation_tokens=6), 40.0),
        (events.PermitsGranted(500, input_tokens_per_s=400.0), Usage(10, 1, cache_read_tokens=500), 40.0),
        (events.PermitsGranted(500, output_tokens_per_s=200.0), Usage(10, 20), 10.0),
        (events.PermitsGranted(500, requests_per_s=30.0, output_tokens_per_s=200.0), Usage(10, 20), 10.0),
        (events.PermitsGranted(500, requests_per_s=5.0, output_tokens_per_s=200.0), Usage(10, 20), 5.0),
    ],
)
def test_token_rates_hold_for_what_was_counted_whatever_was_foretold(granted, usage, calls_per_s):
    """The bound of these prompts is about a hundred tokens; what is billed is a tenth of it, and is soon known."""
    begun = Clocked(WIDE, granted, usage=usage).until(40.0)
    assert rate_of(begun, 10.0, 40.0) == pytest.approx(calls_per_s, rel=0.03)


def test_a_reply_of_unknown_usage_counts_for_what_was_foretold():
    """The bound of these prompts is about a hundred tokens, and a third of it is foretold: 12 calls a second."""
    granted = events.PermitsGranted(500, input_tokens_per_s=400.0)
    begun = Clocked(WIDE, granted, usage=UNKNOWN_USAGE).until(40.0)
    assert rate_of(begun, 10.0, 40.0) == pytest.approx(12.0, rel=0.25)


CAPS = {
    "requests": (Limits(concurrency=500, requests_per_min=600), 10.0),
    "input": (Limits(concurrency=500, input_tokens_per_min=6_000, output_tokens_max=100), 10.0),
    "output": (Limits(concurrency=500, output_tokens_per_min=6_000, output_tokens_max=100), 5.0),
}


@pytest.mark.parametrize("name", CAPS)
def test_the_caps_of_the_jobs_user_hold_beside_what_is_granted(name):
    limits, calls_per_s = CAPS[name]
    begun = Clocked(limits, events.PermitsGranted(500, requests_per_s=50.0), usage=LIGHT).until(40.0)
    assert rate_of(begun, 10.0, 40.0) == pytest.approx(calls_per_s, rel=0.03)


@pytest.mark.parametrize("own", [True, False])
def test_large_calls_go_one_by_one_from_the_first(own):
    """Each is expected to take a third of a second's tokens, more than the tolerance."""
    limits = Limits(concurrency=500, output_tokens_max=100, output_tokens_per_min=6_000 if own else None)
    granted = events.PermitsGranted(500, output_tokens_per_s=0.0 if own else 100.0)
    assert len(Clocked(limits, granted, usage=LIGHT, latency_s=1e9).until(1.0)) in (3, 4)


def test_the_users_caps_hold_over_all_routes_together():
    limits = Limits(concurrency=500, requests_per_min=600)
    granted = (events.PermitsGranted(3), events.PermitsGranted(300, route=1))
    run = Clocked(limits, *granted, usage=LIGHT, fallbacks=(other("n"),))
    assert rate_of(run.until(20.0), 1.0, 20.0) == pytest.approx(10.0, rel=0.03)
    assert {call.route for _, call in run.begun} == {0, 1}


def test_a_route_ahead_of_its_pace_lets_the_next_one_serve():
    granted = (events.PermitsGranted(300, requests_per_s=5.0), events.PermitsGranted(300, route=1, requests_per_s=3.0))
    run = Clocked(WIDE, *granted, usage=LIGHT, fallbacks=(other("n"),))
    run.until(21.0)
    for place, rate in ((0, 5.0), (1, 3.0)):
        assert rate_of([at_s for at_s, call in run.begun if call.route == place], 1.0, 21.0) == pytest.approx(
            rate, rel=0.06
        )


def test_caps_change_in_a_running_job():
    limits = Limits(concurrency=500, requests_per_min=600)
    run = Clocked(limits, events.PermitsGranted(500), usage=LIGHT)
    run.until(10.0)
    run._turn(10.0, events.LimitsSet("ann", Limits(concurrency=500, requests_per_min=1_800)))
    assert rate_of(run.until(20.0), 10.5, 20.0) == pytest.approx(30.0, rel=0.03)
    run._turn(20.0, events.LimitsSet("ann", Limits(concurrency=500)))
    assert run.k.pace is None


def test_a_throttled_call_weighed_nothing_and_a_lost_one_what_was_foretold():
    stage = Stage(Flat(texts=("a", "b")), permits=0)
    stage.turn(events.PermitsGranted(2, input_tokens_per_s=10_000.0), at_s=200.0)
    pace = stage.k.shares[0].pace
    assert pace is not None and due_at_s(pace) > 200.0 - BURST_S
    after = pace.input_due_s
    stage.turn(stage.broke(stage.call(2), "lost"), events.PermitsGranted(0, input_tokens_per_s=10_000.0), at_s=200.0)
    assert pace.input_due_s == after
    stage.turn(stage.broke(stage.call(1), "throttled", status=429), at_s=200.0)
    half = (after - 200.0) / 2
    assert pace.input_due_s == pytest.approx(200.0 + half, abs=half / 10)


def test_nobody_is_woken_for_a_pace_where_nothing_would_begin():
    def paced(texts: tuple[str, ...], permits: int) -> Stage:
        stage = Stage(Flat(texts=texts), permits=0)
        stage.turn(events.PermitsGranted(permits, requests_per_s=0.5))
        return stage

    assert paced(("a", "b"), 2).k.due_at_s() is not None
    assert paced(("a", "b"), 1).k.due_at_s() is None, "no permit is free"
    assert paced(("a",), 2).k.due_at_s() is None, "nothing is left to ask"


@pytest.mark.parametrize("bad", [-1.0, float("nan")])
def test_a_rate_that_is_none_bounds_nothing(bad):
    stage = Stage(Flat(texts=("a", "b")), permits=0)
    stage.turn(events.PermitsGranted(2, requests_per_s=bad))
    assert stage.k.shares[0].pace is None


def test_what_is_foretold_follows_what_was_counted():
    sizes = CallSizes()
    assert sizes.expected(300, 90) == pytest.approx((100.0, 30.0))
    learnt = CallSizes(
        calls=1_000, input_bound=1_000_000, input_tokens=250_000, output_max=1_000_000, output_tokens=10_000
    )
    assert learnt.expected(1_000, 1_000) == pytest.approx((250.0, 10.1), rel=0.01)


def test_the_order_of_answers_leaves_no_trace_in_what_is_foretold():
    def sizes(order: list[int]) -> CallSizes:
        stage = Stage(Flat(texts=("a", "bb", "ccc")), permits=0)
        stage.turn(events.PermitsGranted(9, requests_per_s=1e6))
        for goal in order:
            stage.turn(stage.answered(stage.call(goal), usage=Usage(goal * 7, goal)))
        return stage.k.sizes

    assert sizes([1, 2, 3]) == sizes([3, 1, 2])
    assert sizes([1, 2, 3]).input_tokens == 42


def test_a_remembered_reply_teaches_nothing_and_gives_its_pace_back():
    stage = Stage(Flat(texts=("a",)), permits=0)
    stage.turn(events.PermitsGranted(2, output_tokens_per_s=10.0), at_s=200.0)
    call = stage.call()
    stage.turn(events.ReplyRecalled(call.goal, call.sample, call.hash, reply("ok", LIGHT)), at_s=200.0)
    pace = stage.k.shares[0].pace
    assert pace is not None and pace.output_due_s == pytest.approx(200.0)
    assert stage.k.sizes == CallSizes()


def recalled(stage: Stage, call: commands.Call) -> events.Event:
    stage.calls.pop((call.goal, call.attempt), None)
    return events.ReplyRecalled(call.goal, call.sample, call.hash, reply("known"))


ENDS = {
    # end of a call at once: whether the next call may begin then
    "remembered": (recalled, True),
    "cancelled before it was sent": (lambda stage, call: stage.broke(call, "cancelled", sent=False), True),
    "its time was over before it was sent": (lambda stage, call: stage.broke(call, "timed_out", sent=False), True),
    "given back": (lambda stage, call: stage.given_back(call, 0), True),
    "answered": (lambda stage, call: stage.answered(call), False),
    "throttled": (lambda stage, call: stage.broke(call, "throttled", status=429), False),
    "no connection": (lambda stage, call: stage.broke(call, "transient", sent=False), False),
}


@pytest.mark.parametrize("by", ["its user", "the grant"])
@pytest.mark.parametrize("name", ENDS)
def test_only_a_call_that_asked_somebody_counts_for_the_rate(name: str, by: str):
    """A job whose questions were answered before is over at once, whatever its rate."""
    ended, begins = ENDS[name]
    limits, per_s = (Limits(requests_per_min=1.0), 0.0) if by == "its user" else (Limits(), 1 / 60)
    stage = Stage(Flat(texts=tuple("abcd")), limits, permits=0)
    stage.turn(events.PermitsGranted(4, requests_per_s=per_s))
    assert len(stage.calls) == 1
    stage.turn(ended(stage, stage.call()))
    assert bool(stage.calls) is begins
    if name == "remembered":
        for _ in "bcd":
            stage.turn(ended(stage, stage.call()))
        assert stage.emitted == ["known"] * 4


def test_a_new_pace_and_one_that_was_held_begin_with_their_phase():
    stage = Stage(Flat(texts=tuple("abcd")), permits=0)
    granted = events.PermitsGranted(4, requests_per_s=0.25, phase=0.5)
    stage.turn(granted, at_s=100.0)
    assert not stage.calls and stage.k.due_at_s() == pytest.approx(102.0 - BURST_S + TOGETHER_S)
    stage.turn(granted, at_s=102.0)
    assert len(stage.calls) == 1, "another grant puts nothing off"
    stage.turn(events.PermitsGranted(4, starts=0, requests_per_s=0.25, phase=0.5), at_s=103.0)
    stage.turn(granted, at_s=200.0)
    assert len(stage.calls) == 1 and stage.k.due_at_s() == pytest.approx(202.0 - BURST_S + TOGETHER_S)
