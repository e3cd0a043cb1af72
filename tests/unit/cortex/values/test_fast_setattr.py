"""Records of which the fields are set all the time: set like slots, and else as any other record."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import cortex
from cortex.state.goals import Goal
from cortex.state.route_share import RouteShare
from cortex.state.state import State
from cortex.values.counters import JobCounters
from cortex.values.fast_setattr import fast_setattr
from cortex.values.ledger import Ledger
from tests.support.state_machine_harness import Flat, Stage

DECORATED = [Goal, Ledger, RouteShare, State, JobCounters]


def _structs(kind: type = msgspec.Struct) -> set[type]:
    """All struct classes that are defined now."""
    found = {kind}
    for below in kind.__subclasses__():
        found |= _structs(below)
    return found


def _reached(kind: Any, seen: set[Any]) -> set[Any]:
    """All types that values of this type can hold, as annotations say."""
    if kind in seen:
        return seen
    seen.add(kind)
    below = get_type_hints(kind).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
    for each in (*get_args(kind), *below):
        _reached(each, seen)
    return seen


def test_every_decorated_class_is_listed_here() -> None:
    for module in pkgutil.walk_packages(cortex.__path__, "cortex."):
        importlib.import_module(module.name)
    here = {kind for kind in _structs() if kind.__module__.partition(".")[0] == "cortex"}
    fast = {kind for kind in here if kind.__setattr__ is object.__setattr__}
    assert {kind for kind in fast if kind.__base__ not in fast} == set(DECORATED)  # one below inherits it


@pytest.mark.parametrize("kind", DECORATED)
def test_no_cycle_through_a_decorated_class_stays_unfreed(kind: Any) -> None:
    """The precondition of `fast_setattr`: no cycle can go through the class, or the collector always tracks it."""
    if kind is State:
        assert gc.is_tracked(Stage(Flat()).k)
    elif kind is Goal:
        assert not kind.__struct_config__.gc, "its values are plain data, and no collection goes over a million of them"
    else:
        fields = get_type_hints(kind).values()
        held = set().union(*(_reached(each, set()) for each in fields))
        assert not held & {kind, Any, object, Goal, State}, "nothing in its fields can refer to it"


@pytest.mark.parametrize("kind", DECORATED)
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
