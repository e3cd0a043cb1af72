"""Records of which the fields are set all the time: set like slots, and else as any other record."""

from __future__ import annotations

import gc

import msgspec
import pytest

from cortex.state.goals import Goal
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.values.counters import JobCounters
from cortex.values.fast_setattr import fast_setattr
from cortex.values.ledger import Ledger
from tests.support.state_machine_harness import Flat, Stage


@pytest.mark.parametrize("kind", [Goal, Ledger, RouteShare, State, JobCounters])
def test_what_is_set_for_each_call_is_set_like_a_slot(kind: type) -> None:
    assert kind.__setattr__ is object.__setattr__ and kind.__delattr__ is object.__delattr__


def test_a_record_so_marked_is_what_it_was_but_for_that() -> None:
    class Plain(msgspec.Struct):
        number: int = 0
        text: str = ""

    class Quick(msgspec.Struct):
        number: int = 0
        text: str = ""

    plain, quick = Plain(1), fast_setattr(Quick)(1)
    for made in (plain, quick):
        made.number, made.text = 5, "five"
        with pytest.raises(AttributeError):
            made.other = 1  # type: ignore[union-attr]
        del made.text
        with pytest.raises(AttributeError):
            _ = made.text
        made.text = "six"
    assert msgspec.msgpack.encode(plain) == msgspec.msgpack.encode(quick)
    assert msgspec.json.decode(b'{"number":7}', type=Quick) == Quick(7)


def test_the_collector_knows_of_k_from_its_beginning() -> None:
    """It may be in a cycle, through whoever listens to its decisions; and nobody tells of it when that is set."""
    k = Stage(Flat()).k
    assert gc.is_tracked(k)
    assert gc.is_tracked(msgspec.msgpack.decode(msgspec.msgpack.encode(k), type=State))
