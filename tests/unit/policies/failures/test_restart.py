"""Restarts of bounded intensity, and the ladder on which nothing is killed for missing news alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.failures.restart import EscalationStep, RestartPolicy, decide, path_delayed, remembered, rung

P = RestartPolicy(restarts_max=3, period_s=60.0, backoff_s=1.0, backoff_max_s=3.0)


@pytest.mark.parametrize(
    ("deaths", "at_s", "escalate", "wait_s"),
    [
        ([100.0], 100.0, False, 0.0),  # the first is started again at once
        ([90.0, 100.0], 100.0, False, 1.0),
        ([80.0, 90.0, 100.0], 100.0, False, 2.0),
        ([70.0, 80.0, 90.0, 100.0], 100.0, True, 0.0),  # a fourth in the period
        ([40.0, 80.0, 90.0, 100.0], 100.0, False, 2.0),  # the oldest is just out of it
        ([1.0, 2.0, 3.0, 4.0, 100.0], 100.0, False, 0.0),
        ([97.0, 98.0, 99.0, 100.0], 160.0, False, 0.0),
    ],
)
def test_restart_or_escalate(deaths: list[float], at_s: float, escalate: bool, wait_s: float) -> None:
    verdict = decide(P, deaths, at_s)
    assert (verdict.escalate, verdict.wait_s) == (escalate, wait_s)
    assert "died" in verdict.why


def test_the_wait_grows_to_its_bound() -> None:
    policy = msgspec.structs.replace(P, restarts_max=1_000)
    waits = [decide(policy, [100.0] * n, 100.0).wait_s for n in (1, 2, 3, 4, 5, 900)]
    assert waits == [0.0, 1.0, 2.0, 3.0, 3.0, 3.0]


@given(gaps=st.lists(st.floats(0, 40), max_size=60))
def test_what_is_remembered_decides_as_the_whole_past_does(gaps: list[float]) -> None:
    past: list[float] = []
    kept: list[float] = []
    at_s = 0.0
    for gap_s in gaps:
        at_s += gap_s
        past.append(at_s)
        kept = remembered(P, [*kept, at_s], at_s)
        assert len(kept) <= P.restarts_max + 1
        assert decide(P, kept, at_s).escalate is decide(P, past, at_s).escalate
        assert decide(P, kept, at_s).wait_s == decide(P, past, at_s).wait_s


QUIET, LOUD = P.stale_s + P.grace_s, 0.3


@pytest.mark.parametrize(
    ("silent_s", "overdue_s", "unheard", "delayed", "kills_left", "expected"),
    [
        (LOUD, 0.0, False, False, 1, EscalationStep.NONE),
        (LOUD, P.grace_s, False, False, 1, EscalationStep.NONE),  # its own deadline asks it to stop, and waits
        (LOUD, P.grace_s + 0.1, False, False, 1, EscalationStep.KILL),
        (LOUD, P.grace_s + 0.1, False, True, 1, EscalationStep.KILL),  # that news is there, whatever the path
        (LOUD, P.grace_s + 0.1, False, False, 0, EscalationStep.NONE),  # the next tick may
        (P.stale_s + 0.1, 99.0, False, False, 1, EscalationStep.ASK),  # old news of being late is no news
        (P.stale_s - 0.1, 0.0, True, False, 1, EscalationStep.NONE),
        (P.stale_s, 0.0, False, False, 1, EscalationStep.ASK),
        (P.stale_s, 0.0, True, False, 1, EscalationStep.ASK),
        (QUIET, 0.0, False, False, 1, EscalationStep.ASK),  # however long: nobody has asked it yet
        (10_000.0, 0.0, False, False, 1, EscalationStep.ASK),
        (float("inf"), 0.0, False, False, 1, EscalationStep.ASK),
        (QUIET, 0.0, True, False, 1, EscalationStep.KILL),
        (QUIET, 0.0, True, True, 1, EscalationStep.ASK),  # the path is delayed: no kill for missing news
        (10_000.0, 0.0, True, True, 1, EscalationStep.ASK),
        (QUIET, 0.0, True, False, 0, EscalationStep.NONE),
    ],
)
def test_the_ladder(
    silent_s: float, overdue_s: float, unheard: bool, delayed: bool, kills_left: int, expected: EscalationStep
) -> None:
    assert rung(P, silent_s, overdue_s, unheard, delayed, kills_left) is expected


@pytest.mark.parametrize(
    ("silent", "subjects", "lag_s", "delayed"),
    [
        (0, 8, 0.0, False),
        (1, 8, 0.0, False),
        (1, 1, 0.0, False),  # the only one there is may be dead
        (1, 2, 0.0, False),
        (2, 2, 0.0, True),
        (3, 8, 0.0, False),
        (4, 8, 0.0, True),
        (0, 8, P.lag_max_s + 0.1, True),
    ],
)
def test_a_delayed_path(silent: int, subjects: int, lag_s: float, delayed: bool) -> None:
    assert path_delayed(P, silent, subjects, lag_s) is delayed


@pytest.mark.parametrize(
    "changed",
    [
        {"restarts_max": -1}, {"kills_per_tick": -1}, {"period_s": 0.0}, {"backoff_s": -1.0}, {"grace_s": 0.0},
        {"stale_s": float("inf")}, {"delayed_share": 0.0}, {"delayed_share": 1.5}, {"lag_max_s": float("nan")},
    ],
)  # fmt: skip
def test_a_spec_that_makes_no_sense_is_refused(changed: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(changed))} must be .*, not "):
        RestartPolicy(**changed)  # type: ignore[arg-type]
