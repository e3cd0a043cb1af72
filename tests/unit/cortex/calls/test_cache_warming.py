"""Warm-first fan-out: one goes ahead for each prefix, the rest follow, whatever becomes of the first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cortex.calls.cache_warming import CACHED_S, PATIENCE_S, PREFIX_BYTES_MIN, prefix_of
from cortex.state import commands, events
from cortex.state.changes import Ask
from cortex.state.program import Program
from cortex.state.state import Goal
from cortex.values.ledger import Charge
from cortex.values.limits import Limits
from tests.support.state_machine_harness import PRICE, Stage, of, puppet

MARK = {"cache_control": {"type": "ephemeral"}}
LONG = "long " * 1_000


def body(system: str = LONG, text: str = "q", mark: bool = True, **more: Any) -> bytes:
    """A request whose system prompt may be cached; its members in an order of no meaning."""
    block = {"type": "text", "text": system, **(MARK if mark else {})}
    return msgspec.json.encode({"messages": [{"role": "user", "content": text}], "model": "m", "max_tokens": 8, "system": [block], **more})


def rows(*bodies: bytes) -> Program:
    select = lambda k: [Ask(goal, body=bodies[goal.value]) for goal in k.open("row")]  # noqa: E731
    return puppet(begin=lambda k: [Goal("row", index) for index in range(len(bodies))], select=select)


def warm(*bodies: bytes, permits: int = 8, on: bool = True, **more: Any) -> Stage:
    return Stage(rows(*bodies), Limits(warm_prefix=on, **more), permits=permits)


SAME = {
    "another question": (body(text="a"), body(text="b")),
    "another length of reply": (body(), body(max_tokens=99)),
    "blocks after the mark": (body(messages=[{"role": "user", "content": "x"}]), body(messages=[{"role": "user", "content": "y"}])),
}
OTHER = {
    "another prefix": (body(LONG + "a"), body(LONG + "b")),
    "another model": (body(), body(model="n")),
    "other tools": (body(tools=[{"name": "a"}]), body(tools=[{"name": "b"}])),
    "a mark further on": (
        body(messages=[{"role": "user", "content": [{"type": "text", "text": "x", **MARK}]}]),
        body(messages=[{"role": "user", "content": [{"type": "text", "text": "y", **MARK}]}]),
    ),
}
NONE = {
    "no mark": body(mark=False),
    "a short prefix": body("short"),
    "a mark that only the text speaks of": body(mark=False, text='"cache_control"'),
    "no JSON": b"cache_control",
    "a list": b'["cache_control"]',
    "messages of no form": b'{"messages": [7], "cache_control": 1}',
}


@pytest.mark.parametrize("name", SAME)
def test_what_shares_a_prefix(name):
    one, two = SAME[name]
    assert prefix_of(0, one) == prefix_of(0, two) != b""
    assert prefix_of(0, one) != prefix_of(1, one), "each route has a cache of its own"


@pytest.mark.parametrize("name", OTHER)
def test_what_does_not(name):
    one, two = OTHER[name]
    assert b"" != prefix_of(0, one) != prefix_of(0, two) != b""


@pytest.mark.parametrize("name", NONE)
def test_what_has_none(name):
    assert prefix_of(0, NONE[name]) == b""
    assert len(LONG) > PREFIX_BYTES_MIN


def test_one_goes_ahead_and_the_rest_follow_its_answer():
    stage = warm(*(body(text=str(index)) for index in range(5)))
    assert [call.goal for call in stage.calls.values()] == [1]
    assert stage.k.due_at_s() == stage.k.at_s + PATIENCE_S
    out = stage.answer()
    assert [call.goal for call in of(out, commands.Call)] == [2, 3, 4, 5]
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_off_by_default():
    assert len(warm(body(text="a"), body(text="b"), on=False).calls) == 2


def test_each_prefix_has_one_ahead_and_what_has_none_goes_at_once():
    """Those that wait take no permit from the others."""
    bodies = (body(text="a"), body(text="b"), body(text="c"), body(LONG + "2", text="a"), body(LONG + "2", text="b"), body("short"))
    assert [call.goal for call in warm(*bodies, permits=3).calls.values()] == [1, 4, 6]


@pytest.mark.parametrize("kind", ["transient", "rejected", "timed_out"])
def test_a_failed_one_lets_the_next_go_ahead(kind):
    stage = warm(*(body(text=str(index)) for index in range(4)))
    out = stage.fail(kind, goal=1, status=400 if kind == "rejected" else 0)
    assert [call.goal for call in of(out, commands.Call)] == [2]
    assert {3, 4} <= {call.goal for call in of(stage.answer(goal=2), commands.Call)}


def test_nobody_waits_for_ever():
    stage = warm(*(body(text=str(index)) for index in range(3)))
    out = stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    assert [call.goal for call in of(out, commands.Call)] == [2, 3]
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_a_prefix_is_warm_for_five_minutes_after_its_last_use():
    begin = lambda k: [Goal("row", index, due_at_s=when) for index, when in enumerate((0.0, 300.0, 590.0, 990.0, 990.0))]  # noqa: E731
    bodies = [body(text=str(index)) for index in range(5)]
    select = lambda k: [Ask(goal, body=bodies[goal.value]) for goal in k.open("row")]  # noqa: E731
    stage = Stage(puppet(begin=begin, select=select), Limits(warm_prefix=True), permits=8)
    assert CACHED_S == 300.0
    stage.answer(goal=1)  # at 102
    for at_s, asked in ((300.0, [2]), (590.0, [3]), (990.0, [4])):
        assert [call.goal for call in of(stage.turn(events.Ticked(), at_s=at_s), commands.Call)] == asked
    assert [call.goal for call in of(stage.answer(goal=4), commands.Call)] == [5]


def test_one_that_waits_to_be_asked_again_is_not_woken_by_the_answer():
    """It went without, failed, and rests; the answer of the one ahead comes then."""
    stage = warm(body(text="a"), body(text="b"))
    stage.turn(events.Ticked(), at_s=stage.k.due_at_s())
    stage.turn(stage.broke(stage.call(2), "throttled", status=429), at_s=200.0)
    rests_until_s = stage.goal(2).due_at_s
    assert of(stage.turn(stage.answered(stage.call(1)), at_s=200.0), commands.Call) == []
    assert stage.goal(2).due_at_s == rests_until_s > stage.k.at_s


def test_a_goal_that_ends_while_it_waits_waits_no_more():
    stage = warm(body(text="a"), body(text="b"))
    stage.turn(events.Stopped("ann", "cancel"))
    assert stage.k.outcome == "cancelled"
    assert all(not warmth.waiting for warmth in stage.k.warmths.values())


def test_a_resumed_job_sends_one_ahead_again():
    stage = warm(*(body(text=str(index)) for index in range(3)))
    stage.turn(events.Stopped("ann", "drain"))
    stage.fail("lost", goal=1)
    assert stage.k.outcome == "partial"
    out = stage.turn(events.Resumed("ann"))
    assert len(of(out, commands.Call)) == 1
    stage.answer_all()
    assert stage.k.outcome == "complete"


def test_many_prefixes_are_forgotten_when_they_are_cold():
    stage = warm(*(body(f"{LONG}{index}") for index in range(1_030)), permits=2_000, concurrency=2_000)
    assert len(stage.k.warmths) == 1_030, "all are ahead"
    for call in list(stage.calls.values()):
        stage.calls.pop((call.goal, call.attempt))
    stage.turn(*[stage.answered(call) for call in of(stage.said, commands.Call)])
    assert stage.k.outcome == "complete"


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)])
def test_a_request_with_a_mark_reserves_what_writing_a_cache_costs_whoever_stands_beside_it(order: tuple[int, ...]) -> None:
    """In one turn, and with as many tokens as those without."""
    more = len(body("s")) - len(body("s", mark=False))

    def asks(place: int, marked: int) -> bytes:
        return body("s" * (10 if marked else 10 + more), str(place), mark=bool(marked))

    def charges(*bodies: bytes) -> list[Charge]:
        return [flight.charge for flight in Stage(rows(*bodies), Limits(), price=PRICE).k.flights.values()]

    together = charges(*(asks(place, marked) for place, marked in enumerate(order)))
    (without,), (marked,) = charges(asks(0, 0)), charges(asks(0, 1))
    assert without.tokens == marked.tokens and without.nusd < marked.nusd
    assert together == [(without, marked)[which] for which in order]
