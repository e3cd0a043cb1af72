"""Typed answers of flows: asked for by structured outputs on lanes that have them, and in words on all others."""

from __future__ import annotations

import datetime as dt
import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass

import cortex
from cortex.flows.answer_types import returns_of
from cortex.state import events
from cortex.values.limits import Route
from tests.support.synchronous_driver import Driver
from tests.unit.cortex.flows.test_flow import Person, Point


class Map(msgspec.Struct):
    counts: dict[str, int]


@cortex.flow
async def asks(ctx: Any, returns: int = 0) -> Any:
    given = (Point, Person, Literal["left", "right"], int, Map)[returns]
    return await ctx.ask("where?", returns=given, params={"temperature": 0, "output_config": {"effort": "low"}})


def _asked(driver: Driver) -> list[Any]:
    return [json.loads(call.body) for call in driver.calls]


@pytest.mark.parametrize("returns", [0, 1])
def test_a_typed_answer_is_asked_for_by_structured_outputs(returns: int) -> None:
    type_, answer = ((Point, '{"x":1}'), (Person, '{"name":"Ann","age":3}'))[returns]
    driver = Driver(asks(returns=returns), lambda text: answer, structured_lanes=(0,))
    k = driver.run()
    (body,) = _asked(driver)
    assert body["messages"] == [{"role": "user", "content": "where?"}]
    form = returns_of(type_).structured
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": form}}
    assert body["temperature"] == 0
    assert k.outcome == "complete"
    assert driver.replayed() == k


@pytest.mark.parametrize(("returns", "answer"), [(2, "left"), (3, "4"), (4, '{"counts":{"a":1}}')])
def test_what_structured_outputs_do_not_express_is_asked_for_in_words(returns: int, answer: str) -> None:
    driver = Driver(asks(returns=returns), lambda text: answer, structured_lanes=(0,))
    driver.run()
    (body,) = _asked(driver)
    assert body["messages"][0]["content"].startswith("where?\n\nAnswer with ")
    assert body["output_config"] == {"effort": "low"}


def test_a_journal_without_the_lanes_asks_in_words_as_before() -> None:
    driver = Driver(asks(), lambda text: '{"x":1}')
    driver.run()
    (body,) = _asked(driver)
    assert body["messages"][0]["content"] == f"where?\n\n{returns_of(Point).instruction}"


@pytest.mark.parametrize(("lanes", "structured"), [((0,), [True, False]), ((1,), [False, True]), ((0, 1), [True, True])])
def test_each_role_asks_as_its_own_route_can(lanes: tuple[int, ...], structured: list[bool]) -> None:
    @cortex.flow
    async def both(ctx: Any) -> Any:
        return [await ctx.ask("a?", returns=Point), await ctx.ask("b?", returns=Point, model="judge")]

    role = Route(endpoint="other", model="other", context_window=200_000)
    terms: dict[str, Any] = {"structured_lanes": lanes, "roles": {"judge": 1}, "role_routes": (role,)}
    driver = Driver(both(), lambda text: '{"x":1}', **terms)
    driver.turn(events.PermitsGranted(4, route=1))
    driver.run()
    assert ["output_config" in body for body in _asked(driver)] == structured


def test_an_answer_that_does_not_fit_is_asked_again_with_the_error_and_the_form() -> None:
    driver = Driver(asks(), lambda text: '{"x":1}' if "was refused" in text else '{"x":"one"}', structured_lanes=(0,))
    assert driver.run().outcome == "complete"
    first, second = _asked(driver)
    assert first["output_config"] == second["output_config"]
    assert "Your last answer was refused: Expected `int`, got `str` - at `$.x`" in second["messages"][0]["content"]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)

    number: int = Field(alias="the number")
    day: dt.date


def test_a_model_with_aliases_and_strict_fields_is_made_again_from_what_k_keeps() -> None:
    got = []

    @cortex.flow
    async def ask(ctx: Any) -> None:
        got.append(await ctx.ask("what?", returns=Strict))

    driver = Driver(ask(), lambda text: '{"the number": 3, "day": "2024-02-29"}')
    assert driver.run().outcome == "complete"
    assert got == [Strict.model_validate({"the number": 3, "day": dt.date(2024, 2, 29)})]


@dataclass
class Even:
    n: Annotated[int, AfterValidator(lambda value: value - value % -2)]
    name: Annotated[str, Field(max_length=3)] = "a"


def test_a_dataclass_of_pydantic_is_checked_by_its_validators() -> None:
    got = []

    @cortex.flow
    async def ask(ctx: Any) -> None:
        got.append(await ctx.ask("what?", returns=Even))

    driver = Driver(ask(), lambda text: '{"n": 3, "name": "b"}' if "was refused" in text else '{"n": 3, "name": "long"}')
    assert driver.run().outcome == "complete"
    assert got == [Even(4, "b")]
    assert "String should have at most 3 characters" in json.loads(driver.calls[1].body)["messages"][0]["content"]
    assert driver.replayed() == driver.k


def test_a_conversation_is_asked_in_words() -> None:
    @cortex.flow
    async def ask(ctx: Any) -> Any:
        return await ctx.ask(cortex.Conversation("talk").said("where?"), returns=Point)

    driver = Driver(ask(), lambda text: '{"x":1}', structured_lanes=(0,))
    (body,) = _asked(driver)
    assert "output_config" not in body
    assert "Answer with JSON alone" in json.dumps(body["messages"])


@pytest.mark.parametrize("lanes", [(), (0,)])
def test_the_reason_of_pydantic_has_no_link_in_jobs_that_ask_by_structured_outputs(lanes: tuple[int, ...]) -> None:
    """In words, the reason is that of release 0.1.0, whose journals hold it."""
    answers = {True: '{"name":"Ann","age":3}', False: '{"name":"Ann","age":"three"}'}
    driver = Driver(asks(returns=1), lambda text: answers["was refused" in text], structured_lanes=lanes)
    assert driver.run().outcome == "complete"
    second = json.loads(driver.calls[1].body)["messages"][0]["content"]
    assert ("https://errors.pydantic.dev" in second) == (not lanes)
    assert not lanes or "Input should be a valid integer, unable to parse string as an integer - at `$.age`" in second
