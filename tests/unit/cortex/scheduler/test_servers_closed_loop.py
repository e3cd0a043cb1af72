"""A job at several servers of one model, in a closed loop with the real policies, in virtual time (simulated)."""

from __future__ import annotations

import pytest

from cortex.calls import affinity
from cortex.state.goals import Status
from tests.support.servers_simulation import Machine, Servers

UNLIKE = [(4, 1.0), (4, 2.0), (8, 1.0), (8, 4.0), (16, 2.0), (16, 4.0), (24, 3.0), (32, 4.0), (6, 1.5), (12, 2.5)]
"""Slots and seconds a call of ten servers of unlike speed: 50 calls/s in all."""


def ten(**of: dict[str, float]) -> list[Machine]:
    """Ten servers; ``of``: further fields by place, as ``at_3={...}``."""
    more = {int(name.removeprefix("at_")): fields for name, fields in of.items()}
    return [
        Machine(slots=slots, mean_s=mean_s, **more.get(place, {}))  # type: ignore[arg-type]
        for place, (slots, mean_s) in enumerate(UNLIKE)
    ]


def each_row_once(found: Servers, rows: int) -> bool:
    """Return whether each row has exactly one answer that counts."""
    ended = [goal.status for goal in found.k.goals.values()]
    return (found.k.outcome, found.k.tally.answered, ended.count(Status.RESOLVED)) == ("complete", rows, rows)


@pytest.mark.long
def test_ten_servers_of_which_one_is_killed_and_one_slowed_tenfold() -> None:
    """At least 95 % of the sum of what they can do, before and after; each row exactly once."""
    found = Servers(ten(at_4={"dies_s": 150.0}, at_7={"slow_from_s": 150.0}), rows=13_500).run(1_000)
    before, after = found.done(70, 150) / found.can(100), found.done(180, 280) / found.can(200)
    assert (before > 0.95, after > 0.95) == (True, True), (before, after)
    assert each_row_once(found, 13_500)
    assert found.attempts_counted == 0, "no row used up an attempt for it"


def test_three_servers_of_which_one_is_killed_and_returns() -> None:
    mortal = Machine(slots=8, mean_s=1.0, dies_s=40.0, returns_s=60.0)
    machines = [Machine(slots=4, mean_s=0.5), mortal, Machine(slots=6)]
    found = Servers(machines, rows=1_700).run(1_000)
    assert found.done(45, 60) > 0.9 * found.can(50)
    assert found.done(75, 90) > 0.9 * found.can(80), "it has its part again"
    assert each_row_once(found, 1_700)
    assert found.attempts_counted == 0


def test_a_server_that_is_dead_from_the_start_costs_no_attempt() -> None:
    machines = [Machine(slots=8, mean_s=1.0, dies_s=0.0), Machine(slots=4, mean_s=0.5), Machine(slots=6)]
    found = Servers(machines, rows=600).run(1_000)
    assert found.done(20, 50) > 0.9 * found.can(20)
    assert each_row_once(found, 600)
    assert (found.attempts_counted, found.failures["transient"] < 60) == (0, True), found.failures


def test_a_server_that_throttles_costs_no_attempt() -> None:
    machines = [Machine(slots=4, mean_s=0.5), Machine(throttles_from_s=30.0, throttles_until_s=60.0, mean_s=1.0)]
    found = Servers(machines, rows=1_200).run(1_000)
    assert found.failures["throttled"] > 0
    assert found.done(35, 60) > 0.9 * found.can(40)
    assert each_row_once(found, 1_200)
    assert found.attempts_counted == 0


def test_few_calls_in_flight_go_to_the_faster_servers() -> None:
    """Of twelve calls at once most are at the server that is four times as fast."""
    machines = [Machine(slots=50, mean_s=4.0), Machine(slots=50, mean_s=1.0)]
    found = Servers(machines, rows=1_500, concurrency=12).run(100)
    assert found.done(40, 90) > 0.85 * 12 / 1.0


def between(found: Servers, first: float, last: float) -> float:
    """Calls per second while the rows from this share of all to that one were answered."""
    many = len(found.answered_s)
    begin, end = int(many * first), int(many * last)
    return (end - begin) / (found.answered_s[end] - found.answered_s[begin])


def test_rows_about_one_document_go_to_the_server_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rows a document, half of a call's time for a document that is not kept: .89 find it kept, and .62 else."""
    machines = ten()[:5]
    there = Servers(machines, rows=2_000, alike=10, prefill=0.5, metrics=True).run(900)
    monkeypatch.setattr(affinity, "beginnings_of", lambda change: ())
    anywhere = Servers(machines, rows=2_000, alike=10, prefill=0.5, metrics=True).run(900)
    assert each_row_once(there, 2_000)
    kept, by_chance = (each.found / (each.found + each.missed) for each in (there, anywhere))
    assert (kept > 0.75, kept > by_chance + 0.2) == (True, True), (kept, by_chance)
    assert between(there, 0.5, 0.9) > 1.15 * between(anywhere, 0.5, 0.9)


@pytest.mark.long
@pytest.mark.parametrize("alike", [3, 100, 9_000])
def test_however_many_rows_a_document_has_nothing_is_lost_by_it(monkeypatch: pytest.MonkeyPatch, alike: int) -> None:
    there = Servers(ten(), rows=9_000, alike=alike, prefill=0.5, metrics=True).run(900)
    monkeypatch.setattr(affinity, "beginnings_of", lambda change: ())
    anywhere = Servers(ten(), rows=9_000, alike=alike, prefill=0.5, metrics=True).run(900)
    assert each_row_once(there, 9_000)
    assert between(there, 0.4, 0.9) > 0.97 * between(anywhere, 0.4, 0.9)
