"""Python types of answers: each library's own code checks them, and says why an answer does not fit."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import attrs
import msgspec
import pydantic
import pytest
from annotated_types import Gt
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, computed_field, field_validator, model_validator
from typing_extensions import TypedDict

from actors.programs.python_types import PythonType
from cortex.programs.parts.typed_answers import ResultShape
from cortex.values.reply import Malformed
from cortex.values.schema import SchemaError


def even(value: int) -> int:
    if value % 2:
        raise ValueError("n must be even")
    return value


class Validated(BaseModel):
    n: int
    label: str = "None"

    _even = field_validator("n")(even)

    @field_validator("label", mode="before")
    @classmethod
    def lower(cls, value: Any) -> Any:
        return str(value).lower()

    @model_validator(mode="after")
    def small(self) -> Validated:
        if self.n > 100:
            raise ValueError("n is too large for its label")
        return self


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    n: int


class Named(BaseModel):
    number: int = Field(alias="the number")
    other: int = Field(2, validation_alias="in", serialization_alias="out")

    @computed_field
    def twice(self) -> int:
        return 2 * self.number


class Formats(BaseModel):
    price: Decimal
    key: uuid.UUID
    day: dt.date
    took: dt.timedelta
    path: Path


class Sets(BaseModel):
    tags: set[str]
    nested: dict[str, list[set[str]]]
    maybe: set[int] | None = None


class SetsToo(msgspec.Struct):
    tags: set[str]


class Inner(BaseModel):
    n: Annotated[int, AfterValidator(even)]


class Outer(BaseModel):
    items: list[Inner]


@pydantic.dataclasses.dataclass
class OfPydantic:
    n: Annotated[int, AfterValidator(even)]


@dataclasses.dataclass
class WithField:
    n: int = Field(gt=5)


@dataclasses.dataclass
class WithMark:
    n: Annotated[int, Gt(5)]


class WithKeys(TypedDict):
    n: Annotated[int, Field(gt=5)]


@dataclasses.dataclass
class Plain:
    n: int

    def __post_init__(self) -> None:
        even(self.n)


@attrs.define
class OfAttrs:
    n: int = attrs.field(validator=attrs.validators.gt(5))


class Bounded(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=1, multiple_of=2)]
    label: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.n == 66:
            raise ValueError("66 is taken")


class Renamed(msgspec.Struct, rename="camel", omit_defaults=True, tag="kind"):
    the_number: int
    the_other: int = 5


class Point:
    def __init__(self, x: int) -> None:
        self.x = x


class Hooked(msgspec.Struct):
    at: Point

    @staticmethod
    def dec_hook(kind: type, value: Any) -> Any:
        if kind is not Point or not isinstance(value, int):
            raise ValueError("expected a point")
        return Point(value)

    @staticmethod
    def enc_hook(value: Any) -> Any:
        return value.x

    @staticmethod
    def schema_hook(kind: type) -> dict[str, Any]:
        return {"type": "integer"}


WORDS = [f"word {n}" for n in range(9)]
KEY = "12345678-1234-5678-1234-567812345678"
FORMATS = {"price": "0.10", "key": KEY, "day": "2024-02-29", "took": "PT1M", "path": "a/b"}


@pytest.mark.parametrize(
    ("type_", "answer", "fields"),
    [
        (Validated, {"n": 4, "label": "ABC"}, {"n": 4, "label": "abc"}),
        (Validated, {"n": "4"}, {"n": 4, "label": "None"}),
        (Strict, {"n": 4}, {"n": 4}),
        (Named, {"the number": 1, "in": 3}, {"the number": 1, "out": 3, "twice": 2}),
        (Formats, FORMATS, FORMATS),
        (Outer, {"items": [{"n": 2}]}, {"items": [{"n": 2}]}),
        (Sets, {"tags": WORDS[::-1], "nested": {"a": [WORDS[::-1]]}, "maybe": [2, 1]},
         {"tags": WORDS, "nested": {"a": [WORDS]}, "maybe": [1, 2]}),
        (SetsToo, {"tags": WORDS[::-1]}, {"tags": WORDS}),
        (OfPydantic, {"n": 2}, {"n": 2}),
        (WithField, {"n": 6}, {"n": 6}),
        (WithMark, {"n": 6}, {"n": 6}),
        (WithKeys, {"n": 6}, {"n": 6}),
        (Plain, {"n": 6}, {"n": 6}),
        (OfAttrs, {"n": 6}, {"n": 6}),
        (Bounded, {"n": 6}, {"n": 6, "label": "a"}),
        (Renamed, {"type": "kind", "theNumber": 5}, {"type": "kind", "theNumber": 5, "theOther": 5}),
        (Hooked, {"at": 5}, {"at": 5}),
    ],
)  # fmt: skip
def test_an_answer_has_the_form_that_its_type_gives_it(type_: Any, answer: Any, fields: Any) -> None:
    made = PythonType(type_)
    shape = ResultShape(made.results)
    assert shape.held(made.read(json.dumps(answer))) == fields
    assert [*shape.properties] == [*fields]


@pytest.mark.parametrize(
    ("type_", "answer", "reason"),
    [
        (Validated, {"n": 3}, "Value error, n must be even - at `$.n`"),
        (Validated, {"n": 102}, "Value error, n is too large for its label"),
        (Strict, {"n": "4"}, "Input should be a valid integer - at `$.n`"),
        (Strict, {"n": 4, "x": 1}, "Extra inputs are not permitted - at `$.x`"),
        (Formats, FORMATS | {"price": "ten"}, "Input should be a valid decimal - at `$.price`"),
        (Formats, FORMATS | {"key": "x"}, "at `$.key`"),
        (Formats, FORMATS | {"day": "2023-02-29"}, "at `$.day`"),
        (Formats, FORMATS | {"took": "soon"}, "at `$.took`"),
        (Outer, {"items": [{"n": 2}, {"n": 3}]}, "Value error, n must be even - at `$.items[1].n`"),
        (OfPydantic, {"n": 3}, "Value error, n must be even - at `$.n`"),
        (WithField, {"n": 5}, "Input should be greater than 5 - at `$.n`"),
        (WithMark, {"n": 5}, "Input should be greater than 5 - at `$.n`"),
        (WithKeys, {"n": 5}, "Input should be greater than 5 - at `$.n`"),
        (Plain, {"n": 3}, "n must be even"),
        (OfAttrs, {"n": 3}, "'n' must be > 5: 3"),
        (Bounded, {"n": 3}, "Expected `int` that's a multiple of 2 - at `$.n`"),
        (Bounded, {"n": 66}, "66 is taken"),
        (Bounded, {"n": 2, "label": "c"}, "Invalid enum value 'c' - at `$.label`"),
        (Renamed, {"type": "other", "theNumber": 5}, "Invalid value 'other' - at `$.type`"),
        (Hooked, {"at": "x"}, "expected a point - at `$.at`"),
        (Inner, {"n": 1 << 70}, "Expected `int` of at most 64 bits - at `$.n`"),
    ],
)
def test_an_answer_that_its_type_refuses_is_malformed_with_the_reason(type_: Any, answer: Any, reason: str) -> None:
    made = PythonType(type_)
    with pytest.raises(Malformed) as refused:
        ResultShape(made.results).held(made.read(json.dumps(answer)))
    assert reason in str(refused.value)
    assert "http" not in str(refused.value)


class Mixed(msgspec.Struct):
    n: Annotated[int, Gt(5)]


class MixedToo(BaseModel):
    n: Annotated[int, msgspec.Meta(gt=5)]


class Unknown(msgspec.Struct):
    at: Point


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        (Mixed, "Mixed mixes msgspec with pydantic or annotated_types"),
        (MixedToo, "MixedToo mixes msgspec with pydantic or annotated_types"),
        (Unknown, "Unknown has no JSON schema: Generating JSON schema for custom types requires"),
        (Point, "Point has no JSON schema"),
    ],
)
def test_a_type_whose_rules_would_not_run_is_refused(type_: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as refused:
        PythonType(type_)
    assert "\n" not in str(refused.value)


def test_many_faults_are_one_short_line() -> None:
    made = PythonType(Outer)
    with pytest.raises(Malformed) as refused:
        made.read(json.dumps({"items": [{"n": 1}] * 50}))
    assert str(refused.value).count("n must be even") == 10
    assert str(refused.value).endswith("; and 40 more")


def test_a_class_that_pydantic_knows_by_a_method_may_stand_in_a_struct() -> None:
    class Known(Point):
        __get_pydantic_core_schema__: ClassVar[Any] = None

    made = PythonType(msgspec.defstruct("Holds", [("at", Known)], namespace={
        "dec_hook": staticmethod(lambda kind, value: Known(value)), "enc_hook": staticmethod(lambda value: value.x),
        "schema_hook": staticmethod(lambda kind: {"type": "integer"}),
    }))  # fmt: skip
    assert made.read('{"at":5}') == {"at": 5}
    assert made.library.startswith("msgspec ")
