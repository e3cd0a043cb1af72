"""Every bound is checked where it is born, with one line that names it."""

from __future__ import annotations

import sys

import msgspec
import pytest

from cortex.goals.apply_changes import apply
from cortex.loop.invariants import check
from cortex.state.changes import Resolve
from cortex.state.state import Goal
from cortex.values.limits import JobTerms, Limits, Route
from policies.estimates.price import parse_price
from policies.failures.retry import RetryPolicy
from policies.failures.timeout import TimeoutPolicy
from tests.support.state_machine_harness import Stage, puppet, terms

MAY_BE_NONE_AT_ALL = ("resamples_max", "alike_first", "blocked_wait_s")
OTHERS = (*MAY_BE_NONE_AT_ALL, "headroom", "warm_prefix", "batching", "retry", "timeout")
POSITIVE = [name for name in Limits.__struct_fields__ if name not in OTHERS]


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_is_above_zero(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be above zero, not {value}$"):
        Limits(**{name: value})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"resamples_max": -1}, "resamples_max must not be negative, not -1"),
        ({"blocked_wait_s": -0.5}, "blocked_wait_s must not be negative, not -0.5"),
        ({"blocked_wait_s": float("nan")}, "blocked_wait_s must not be negative, not nan"),
        ({"requests_per_min": float("inf")}, "requests_per_min must be above zero, not inf"),
        ({"headroom": 1.0}, "headroom must leave something: from 0 to below 1, not 1.0"),
        ({"headroom": -0.1}, "headroom must leave something: from 0 to below 1, not -0.1"),
        ({"window_rows": 9, "concurrency": 10}, r"window_rows \(9\) must be at least concurrency \(10\)"),
    ],
)
def test_bounds_that_make_no_sense(fields, said):
    with pytest.raises(ValueError, match=f"^{said}$") as caught:
        Limits(**fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", MAY_BE_NONE_AT_ALL)
def test_none_at_all_is_a_choice(name):
    assert getattr(Limits(**{name: 0}), name) == 0


def test_a_changed_limit_is_checked_too():
    with pytest.raises(ValueError, match="parts_max"):
        msgspec.structs.replace(Limits(), parts_max=0)


def test_a_limit_read_from_a_journal_is_checked_too():
    blob = msgspec.json.encode(Limits()).replace(b'"depth_max":24', b'"depth_max":0')
    with pytest.raises(msgspec.ValidationError, match="depth_max"):
        msgspec.json.decode(blob, type=Limits)


@pytest.mark.parametrize("window", [-1, 0, 1])
def test_a_window_holds_a_prompt_and_a_reply(window):
    with pytest.raises(ValueError, match="context_window must hold a prompt and a reply"):
        Route(endpoint="e", model="m", context_window=window)


@pytest.mark.parametrize(
    ("own", "output", "m"), [(None, 100, 900), (500, 100, 500), (5_000, 100, 900), (None, 2_000, -1_000)]
)
def test_m_is_the_window_less_the_reply_or_the_users_smaller_number(own, output, m):
    made = terms(Limits(prompt_tokens_max=own), window=1_000)
    assert made.prompt_tokens_max(output) == m


def test_terms_survive_their_bytes():
    limits = Limits(retry=RetryPolicy(attempts_max=3), timeout=TimeoutPolicy(floor_s=1.0), max_cost_nusd=5)
    made = terms(limits, price=parse_price("input=0.1,output=0.7"), places={"output": "o"}, fresh=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=JobTerms) == made


@pytest.mark.parametrize("keeps", [True, False])
def test_what_ends_takes_the_deepest_nest_along(keeps):
    """Goals may nest deeper than Python's frames."""
    deep = 2 * sys.getrecursionlimit()
    stage = Stage(puppet(begin=lambda k: [Goal("x")], keeps=keeps), Limits(depth_max=deep), permits=0)
    for depth in range(deep):
        apply(stage.k, [Goal("x", parent=depth + 1)], [], by=None, program=stage.program)
    check(stage.k)
    apply(stage.k, [Resolve(stage.goal(1))], [], by=None, program=stage.program)
    check(stage.k)
    assert stage.k.live == 0
    assert len(stage.k.goals) == (deep + 1 if keeps else 0)
