"""A breaker half open, and a blocked account: how many probes, how often, and what they decide."""

import random
from itertools import pairwise

import msgspec
import pytest

from policies.failures import breaker as b
from policies.failures.breaker import BreakerMove
from tests.support.breaker_states import CLOSED, HALF_OPEN, OPEN, P, blocked, half_open, opened, told


def test_so_many_probes_and_so_many_answers() -> None:
    breaker = half_open(10.0)
    assert b.probes_wanted(P, breaker, 10.0) == 3
    b.probe_out(P, breaker, 10.0, 90.0, 2)
    assert b.probes_wanted(P, breaker, 10.0) == 1
    with pytest.raises(ValueError, match="2 probes where 1 are wanted"):
        b.probe_out(P, breaker, 10.0, 90.0, 2)
    b.probe_out(P, breaker, 10.0, 90.0)
    assert told(breaker, 11.0, good=2) is None
    assert b.probes_wanted(P, breaker, 11.0) == 0  # three answers decide, and the third is on its way
    moved = told(breaker, 12.0, good=1)
    assert moved is not None and moved.new is CLOSED and "3 of 3 probes were good" in moved.why
    assert b.probes_wanted(P, breaker, 12.0) == 0


def test_one_bad_probe_opens_again_at_once() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    moved = told(breaker, 11.0, good=1, bad=1)
    assert moved is not None and moved.new is OPEN and moved.why == "1 of 2 probes failed"
    assert breaker.until_s == 13.0  # the second stay is twice as long


def test_what_opened_it_is_forgotten_when_it_has_closed() -> None:
    breaker = half_open(10.0)
    told(breaker, 11.0, good=3)
    told(breaker, 11.5, good=1, bad=18)
    assert breaker.state is CLOSED
    told(breaker, 12.0, bad=1)
    assert breaker.state is OPEN


def test_lost_probes_of_a_long_outage_leave_nothing_behind() -> None:
    breaker = opened()
    for n in range(500):
        at_s = breaker.until_s + 100.0
        b.passed(P, breaker, at_s)
        b.probe_out(P, breaker, at_s, at_s + 80.0, b.probes_wanted(P, breaker, at_s))
        told(breaker, at_s + 90.0 * (n % 2), bad=1)
    assert len(breaker.waves) <= P.probes + 1


def test_slow_probes_do_not_close() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    moved = told(breaker, 11.0, good=3, slow=3)
    assert moved is not None and moved.new is OPEN
    assert moved.why == "3 of 3 probes were slow"


def test_a_void_probe_makes_room_for_another() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    assert told(breaker, 11.0, void=2) is None
    assert b.probes_wanted(P, breaker, 11.0) == 2


def test_a_lost_probe_is_replaced_after_its_deadline() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 2)
    b.probe_out(P, breaker, 11.0, 95.0)
    assert b.due_at_s(breaker, 11.0) == 90.0
    assert b.probes_wanted(P, breaker, 89.9) == 0
    assert b.probes_wanted(P, breaker, 90.0) == 2
    assert b.passed(P, breaker, 90.0) is None
    b.probe_out(P, breaker, 90.0, 170.0, 2)
    told(breaker, 91.0, void=2)  # the lost ones, after all: the two that replaced them are still out
    assert b.probes_wanted(P, breaker, 91.0) == 0
    told(breaker, 92.0, void=1)
    assert b.probes_wanted(P, breaker, 92.0) == 1


def test_probes_of_an_earlier_stay_take_up_room_until_they_are_heard_of() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    of = breaker.generation
    told(breaker, 10.5, bad=1)
    assert b.passed(P, breaker, 13.0) is not None
    assert b.probes_wanted(P, breaker, 13.0) == 1
    told(breaker, 13.5, good=1, generation=of)
    assert b.probes_wanted(P, breaker, 13.5) == 2
    assert breaker.good == 0  # it decided nothing


def test_leave_that_was_not_used_is_leave_for_another() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    b.probe_back(breaker, 10.0, [90.0] * 2)
    assert b.probes_wanted(P, breaker, 10.0) == 2
    b.probe_out(P, breaker, 10.0, 90.0, 2)
    told(breaker, 11.0, void=1)  # used after all: it was no answer of those that are out
    assert b.probes_wanted(P, breaker, 11.0) == 0


def test_a_holder_that_returns_what_was_lost_long_ago_makes_no_room() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    b.probe_out(P, breaker, 90.0, 170.0, 3)  # of another holder
    b.probe_back(breaker, 95.0, [90.0] * 3)
    assert b.probes_wanted(P, breaker, 95.0) == 0


def test_a_holder_that_returns_answered_probes_makes_no_room_twice() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    told(breaker, 11.0, void=3)
    b.probe_out(P, breaker, 11.0, 91.0, 3)  # of another holder
    b.probe_back(breaker, 12.0, [90.0] * 3)
    assert b.probes_wanted(P, breaker, 12.0) == 0
    b.probe_back(breaker, 13.0, [91.0] * 3)
    assert b.probes_wanted(P, breaker, 13.0) == 3


@pytest.mark.parametrize(
    ("returned_s", "returned", "last_s"),
    [
        (92.0, [90.0] * 3, 95.0),  # late: the deadlines of those answered are past
        (12.0, [90.0] * 3, 95.0),
        (50.0, [90.0] * 2, 60.0),  # a part; the rest is never returned
        (12.0, [], 172.0),
    ],
)
def test_answered_probes_stand_for_none_of_another_holder_later(
    returned_s: float, returned: list[float], last_s: float
) -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    told(breaker, 11.0, void=3)
    b.probe_out(P, breaker, 11.0, 91.0, 3)  # of another holder, which dies
    b.probe_back(breaker, returned_s, returned)
    if returned_s < 91.0:
        assert b.probes_wanted(P, breaker, returned_s) == 0
    at_s = max(returned_s, 91.0)
    b.probe_out(P, breaker, at_s, at_s + 80.0, 3)
    last_s = max(last_s, at_s)
    b.probe_back(breaker, last_s, [at_s + 80.0] * 3)
    assert b.probes_wanted(P, breaker, last_s) == 3
    assert b.due_at_s(breaker, last_s) > last_s


def test_answered_probes_that_nobody_returns_leave_nothing_behind() -> None:
    breaker = half_open(10.0)
    for at_s in range(10, 2_000, 10):
        b.probe_out(P, breaker, at_s, at_s + 20.0, 3)
        told(breaker, at_s + 1.0, void=3)
        assert sum(len(wave.answered) for wave in breaker.waves) <= 2 * P.probes


def test_an_answer_that_may_be_of_either_holder_takes_up_room_until_the_earlier_deadline() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 1)
    b.probe_out(P, breaker, 20.0, 100.0, 1)
    told(breaker, 21.0, void=1)
    b.probe_back(breaker, 22.0, [100.0])
    assert b.probes_wanted(P, breaker, 89.9) == 2
    assert b.probes_wanted(P, breaker, 90.0) == 3


@pytest.mark.parametrize("wave", [[2, [90.0]], [2, [90.0], 1], [2, [90.0], 1, 2]])
def test_probes_in_states_of_before_are_read(wave: list[object]) -> None:
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(wave), type=b.ProbeWave)
    assert (found.generation, found.deadlines, found.answered) == (2, [90.0], [])
    breaker = half_open(10.0)
    breaker.waves = [found]
    b.probe_back(breaker, 11.0, [95.0, 95.0, 90.0])  # two that were answered, whose deadlines are not known
    assert b.probes_wanted(P, breaker, 11.0) == 3


def test_room_is_made_once_in_whichever_order_reports_and_returns_come() -> None:
    """Reports say not whose an answer is, and returns say not which probes were answered."""
    for seed in range(1_000):
        chance = random.Random(seed)
        breaker, at_s, unreported = half_open(10.0), 10.0, 0
        books: list[list[float]] = [[], []]
        flights: list[list[float]] = [[], []]
        for _ in range(chance.randint(20, 60)):
            what, holder = chance.choice(["send", "report", "end", "skip", "return", "wait"]), chance.randrange(2)
            if what == "send":
                n = min(chance.randint(1, 3), b.probes_wanted(P, breaker, at_s))
                b.probe_out(P, breaker, at_s, at_s + 30.0, n)
                books[holder] += [at_s + 30.0] * n
                flights[holder] += [at_s + 30.0] * n
            elif what in ("end", "skip") and flights[holder]:
                del flights[holder][0]
                unreported += what == "end"
            elif what == "report" and unreported:
                unreported -= 1
                told(breaker, at_s, void=1)
            elif what == "return" and max(flights[holder], default=0.0) <= at_s:
                b.probe_back(breaker, at_s, books[holder])
                books[holder] = []
            elif what == "wait":
                at_s += 11.0
            out = sum(deadline_s > at_s for deadline_s in flights[0] + flights[1])
            assert out + b.probes_wanted(P, breaker, at_s) <= P.probes, seed
            if max(books[0] + books[1], default=0.0) <= at_s:
                assert b.probes_wanted(P, breaker, at_s) == P.probes, f"{seed}: room was lost until a deadline"
        assert b.probes_wanted(P, breaker, at_s + 30.0) == P.probes, f"{seed}: room was lost"


@pytest.mark.parametrize("outage_s", [1.0, 60.0, 3_600.0, 86_400.0])
@pytest.mark.parametrize("draw", [0.0, 0.5, 0.99])
def test_closed_soon_after_the_provider_is_well_again(outage_s: float, draw: float) -> None:
    """Every probe fails until it is over; 1 s a probe. It may take the longest stay and a probe or two."""
    breaker = opened(draw=draw)
    at_s, answer_s = 0.0, 1.0
    while breaker.state is not CLOSED:
        at_s = max(at_s, b.due_at_s(breaker, at_s)) if breaker.state is OPEN else at_s
        b.passed(P, breaker, at_s, draw)
        n = b.probes_wanted(P, breaker, at_s)
        b.probe_out(P, breaker, at_s, at_s + 80.0, n)
        well = at_s >= outage_s
        at_s += answer_s
        told(breaker, at_s, draw=draw, **{"good" if well else "bad": n})
    assert outage_s < at_s <= outage_s + P.open_max_s + 2 * answer_s


# ------------------------------------------------------------------------------------------- blocked


def test_a_blocked_account_gets_one_probe_a_minute_and_one_good_answer_closes() -> None:
    breaker = blocked()
    assert breaker.until_s == 60.0
    assert b.passed(P, breaker, 59.9) is None
    assert b.passed(P, breaker, 60.0) == BreakerMove(OPEN, HALF_OPEN, "credit balance is too low")
    assert b.probes_wanted(P, breaker, 60.0) == 1
    b.probe_out(P, breaker, 60.0, 140.0)
    assert b.probes_wanted(P, breaker, 60.0) == 0
    moved = told(breaker, 61.0, good=1)
    assert moved == BreakerMove(HALF_OPEN, CLOSED, "the account answers again")
    assert not breaker.blocked


@pytest.mark.parametrize("end", ["blocked", "bad", "void", "lost", "back"])
def test_at_most_one_probe_a_minute_however_it_ends(end: str) -> None:
    breaker = blocked()
    probes: list[float] = []
    at_s = 0.0
    while at_s < 3_600.0:
        b.passed(P, breaker, at_s)
        if b.probes_wanted(P, breaker, at_s):
            b.probe_out(P, breaker, at_s, at_s + 70.0)
            probes.append(at_s)
            if end == "back":
                b.probe_back(breaker, at_s, [at_s + 70.0])
            elif end != "lost":
                told(breaker, at_s + 0.2, **{"void" if end == "blocked" else end: 1})
            if end == "blocked":
                b.block(P, breaker, at_s + 0.2, breaker.generation, "still", 0.9)
        at_s += 0.5
    gaps = [later - earlier for earlier, later in pairwise(probes)]
    assert min(gaps) >= 60.0
    assert len(probes) >= 40  # and it is not given up
    assert breaker.blocked


def test_after_a_probe_that_was_refused_for_its_own_request_the_next_may_go_soon() -> None:
    """Rows that are all refused would take a minute each."""
    breaker = blocked()
    assert not b.probe_rejected(P, breaker, 59.0, breaker.generation), "it is open: no probe was out"
    b.passed(P, breaker, 60.0)
    b.probe_out(P, breaker, 60.0, 140.0)
    told(breaker, 61.0, void=1)
    assert not b.probe_rejected(P, breaker, 61.0, breaker.generation - 1), "an attempt from before the block"
    assert b.probe_rejected(P, breaker, 61.0, breaker.generation)
    assert [b.probes_wanted(P, breaker, at_s) for at_s in (61.0, 61.9, 62.0)] == [0, 0, 1]
    assert b.due_at_s(breaker, 61.0) == 61.0 + P.open_s
    assert not b.probe_rejected(P, breaker, 61.5, breaker.generation), "a second report puts nothing off"
    b.probe_out(P, breaker, 62.0, 140.0)
    assert b.probes_wanted(P, breaker, 100.0) == 0 and breaker.blocked
    assert b.probes_wanted(P, breaker, 140.0) == 1


def test_probes_of_a_route_that_is_not_blocked_are_not_hurried() -> None:
    breaker = half_open(10.0)
    assert not b.probe_rejected(P, breaker, 11.0, breaker.generation)


def test_a_stated_reset_is_waited_for() -> None:
    assert blocked(retry_after_s=600.0).until_s == 600.0
    assert blocked(retry_after_s=600.0, draw=0.5).until_s == 675.0  # never before it


def test_calls_that_come_home_blocked_put_nothing_off() -> None:
    breaker = blocked()
    for n in range(50):
        assert b.block(P, breaker, float(n), 0, "credit", 0.0) is None
    assert breaker.until_s == 60.0


def test_a_sick_route_found_blocked_by_its_probe() -> None:
    breaker = half_open(10.0)
    b.probe_out(P, breaker, 10.0, 90.0, 3)
    told(breaker, 11.0, void=1)
    moved = b.block(P, breaker, 11.0, breaker.generation, "credit", 0.0)
    assert moved == BreakerMove(HALF_OPEN, OPEN, "credit") and breaker.blocked
    b.passed(P, breaker, 71.0)
    assert b.probes_wanted(P, breaker, 71.0) == 0  # two of the three are still out: one at a time
    assert b.probes_wanted(P, breaker, 90.0) == 1
