"""A program's parameters are the same JSON whoever built it: by it a job is resumed, and a changed program told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import cortex
from cortex.control import ControlBounds, DispatchRules
from cortex.programs.toolloop import toolloop
from cortex.state.program import Program, build, params_of


class Inner(msgspec.Struct, frozen=True):
    share: float = 0


class Outer(Program, frozen=True):
    rate: float = 1
    names: tuple[str, ...] = ()
    inner: Inner = Inner()


@cortex.flow
async def flowing(ctx: cortex.Context, seconds: float, several: set[int] | None = None) -> None:
    """Nothing."""


@pytest.mark.parametrize(
    "program",
    [
        Outer(), Outer(rate=2, names=["a"], inner=Inner(1)), flowing(seconds=3), flowing(seconds=3, several={3, 1, 2}),
        toolloop(count=2, bounds=ControlBounds(seconds_max=5, usd_max=1), rules=DispatchRules(approve=["record"])),
    ],
)  # fmt: skip
def test_what_is_built_again_has_the_same_parameters(program: Any) -> None:
    assert params_of(build(type(program), params_of(program))) == params_of(program)


def test_what_does_not_fit_is_said_by_whoever_builds_it() -> None:
    wrong = Outer(rate="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Outer: .*rate"):
        build(Outer, params_of(wrong))


@pytest.mark.parametrize("name", ["answer", "tools", "params", "select", "read", "function"])
def test_a_flows_parameter_does_not_hide_what_a_program_has(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"async def one(ctx, {name}: int = 1): return {name}", scope)
    with pytest.raises(TypeError, match=f"one: a parameter cannot be named {name}: every program has that for itself"):
        cortex.flow(scope["one"])


def test_name_is_free() -> None:
    async def greet(ctx: cortex.Context, name: str) -> str:
        return name

    assert cortex.flow(greet)(name="x").params() == {"name": "x"}
