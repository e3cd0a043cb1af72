"""What a flow says that it returns is checked where it ends, as an answer is where a question does."""

from __future__ import annotations

from typing import Any

import pytest

import cortex
from policies.failures.failure import FailureKind
from tests.unit.cortex.flows.test_flow import Person, Point, Side, ran


@pytest.mark.parametrize(("says", "given", "fits"), [
    (list[str], 17, False), (list[str], ["a", 1], False), (list[str], ("a", "b"), True), (list[str], [], True),
    (str, 17, False), (str, "a", True), (bool, "yes", False), (bool, True, True), (float, 1, True), (int, "1", False),
    (Side, "up", False), (Side, "left", True), (Point, {"x": "far"}, False), (Point, Point(1), True),
    (Person, {"name": "Ann"}, False), (Person, Person(name="Ann", age=3), True), (dict[str, Point], {"a": Point(1)}, True),
    (str | None, None, True), (None, 17, True), (Any, 17, True), (set[str], {"a"}, True), (list[Person], 17, True),
    (list[str], ["a", cortex.CallFailed(FailureKind.REFUSED, "it declined")], True), (bytes, b"a", True),
])  # fmt: skip
def test_what_a_flow_returns_is_what_it_says_that_it_returns(says, given, fits):
    async def gives(ctx):
        return given

    gives.__annotations__["return"] = says
    driver = ran(cortex.flow(gives)())
    assert driver.k.outcome == ("complete" if fits else "failed")
    if not fits:
        assert "faulty: its return value does not fit its return annotation: " in driver.k.why
