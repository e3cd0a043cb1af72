"""Types of answers: described to the model as a schema, and checked when an answer arrives."""

from __future__ import annotations

import contextlib
from functools import lru_cache
from inspect import signature
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from cortex.calls.reply_tokens import named_chances
from cortex.values.bounds.json_depth import deep_words, too_deep
from cortex.values.json_schema.structured import structured_form
from cortex.values.plain_values import deep, to_plain
from cortex.values.reply import Malformed, Reply, Said, as_choice, as_said
from cortex.values.schema import reasons

_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


class AnswerType:
    """Type of an answer: a model or a dataclass of pydantic, a ``Literal``, or any type that msgspec checks.

    K keeps answers as plain data; ``value`` converts them to the type, live and in a replay alike. Raises ``TypeError``
    for a type without a schema.
    """

    __slots__ = ("_choices", "_dataclass", "_pydantic", "instruction", "structured", "type_")

    def __init__(self, type_: Any) -> None:
        self.type_ = type_
        self._pydantic = hasattr(type_, "model_validate_json") and hasattr(type_, "model_json_schema")
        self._dataclass = not self._pydantic and "__pydantic_validator__" in getattr(type_, "__dict__", ())
        self._choices: dict[str, Any] = {}
        self.structured: dict[str, Any] | None = None
        """Schema for structured outputs; None for a type that they do not express."""
        self.instruction = self._instruction()

    @property
    def is_text(self) -> bool:
        """True if the answer is the reply's text, unchanged."""
        return self.type_ in (str, None, NoneType, Any)

    def _instruction(self) -> str:
        type_ = self.type_
        if self.is_text:
            return ""
        if get_origin(type_) is Literal:
            self._choices = {str(choice): choice for choice in get_args(type_)}
            return f"Answer with one of: {', '.join(self._choices)}."
        if type_ in _WORDS:
            return f"Answer with {_WORDS[type_]} alone."
        try:
            schema = type_.model_json_schema() if self._pydantic else msgspec.json.schema(type_)
        except Exception as error:  # msgspec and pydantic raise various errors
            raise TypeError(f"returns={getattr(type_, '__name__', type_)}: {_line(error)}") from None
        self.structured = structured_form(schema)
        text = msgspec.json.encode(schema, order="sorted").decode()
        return f"Answer with JSON alone that fits this JSON schema:\n{text}"

    def read(self, reply: Reply, *, brief: bool = False) -> Any:
        """Return the answer in a reply, as plain data. Raises ``Malformed`` for a reply that does not fit the type.

        ``brief``: the reasons of pydantic without its links, as tables give them; journals of release 0.1.0 have them.
        """
        if self._choices:
            return to_plain(self._choices[as_choice(reply, tuple(self._choices))])
        text = reply.text.strip()
        if self.is_text:
            return text
        if text.startswith("```"):
            text = text.split("\n", 1)[-1].rsplit("```", 1)[0].strip()
        if self.type_ is bool:
            text = text.rstrip(".").lower()
        if too_deep(text):
            raise Malformed(f"the answer is {deep_words()}")
        try:
            if self._pydantic:
                return to_plain(self.type_.model_validate_json(text).model_dump(mode="json"))
            if self._dataclass:
                made = self.type_.__pydantic_validator__.validate_json(text)
                return to_plain(self.type_.__pydantic_serializer__.to_python(made, mode="json"))
            return to_plain(msgspec.to_builtins(msgspec.json.decode(text, type=self.type_)))
        except ValueError as error:  # errors of msgspec and pydantic are ValueErrors
            raise Malformed(reasons(error) if brief else _line(error)) from None

    def from_plain(self, value: Any) -> Any:
        """Return the answer of a person or a tool, as plain data. Raises ``Malformed`` if it does not fit the type."""
        if self.type_ is bool and isinstance(value, str):
            value = {"yes": True, "no": False}.get(value.lower(), value)
        elif self.type_ is str and not isinstance(value, str):
            raise Malformed(f"expected a text; got {value!r:.60}")
        if self._choices:
            if value not in self._choices.values():
                raise Malformed(f"expected one of {', '.join(self._choices)}; got {value!r:.60}")
            return to_plain(value)
        try:
            self.value(value)
        except (TypeError, ValueError) as error:
            raise Malformed(_line(error)) from None
        return value

    def held(self, value: Any) -> None:
        """Check the return value of an author's function, as plain data. Raises ``Malformed`` if it is of another
        type.
        """
        if self.type_ is bool and not isinstance(value, bool):
            raise Malformed(f"expected true or false; got {value!r:.60}")
        self.from_plain(value)

    def value(self, kept: Any) -> Any:
        """Return the typed answer for the plain data in K."""
        if self._choices or self.is_text:
            return kept
        if self._pydantic:
            return self._model(kept)
        if self._dataclass:
            with contextlib.suppress(ValueError):  # an answer in a journal of release 0.1.0, which did not validate it
                return self.type_.__pydantic_validator__.validate_python(kept)
        return msgspec.convert(kept, self.type_)


    def _model(self, kept: Any) -> Any:
        """Return the pydantic model of plain data that K keeps by the names of fields, as an answer or by aliases."""
        try:
            return self.type_.model_validate(kept)
        except ValueError:
            names = {"by_alias": True, "by_name": True}
            known = signature(self.type_.model_validate_json).parameters.keys() >= names.keys()
            try:  # as JSON: a strict model takes a date that is a text there only
                return self.type_.model_validate_json(msgspec.json.encode(kept), **(names if known else {}))
            except ValueError:
                pass
            raise


class _TurnAnswer(AnswerType):
    """Type of a reply that is a turn of a conversation, with its tool uses."""

    def read(self, reply: Reply, *, brief: bool = False) -> Any:
        return to_plain(msgspec.to_builtins(as_said(reply)))

    def value(self, kept: Any) -> Any:
        return msgspec.convert(kept, Said)


class VoteType(AnswerType):
    """Type of a vote: the answer, and the probability of each choice where the model gave it
    (``policies.decisions.pooled_votes``)."""

    __slots__ = ()

    @property
    def choices(self) -> dict[str, Any]:
        """Values by the words that name them; empty for a type that lists none."""
        return {"true": True, "false": False} if self.type_ is bool else self._choices

    def read(self, reply: Reply, *, brief: bool = False) -> Any:
        answer, choices = super().read(reply, brief=brief), self.choices
        place = next((at for at, each in enumerate(choices.values()) if to_plain(each) == answer), -1)
        chances = named_chances(reply.body, reply.text.strip(), [*choices], place) if place >= 0 else []
        return [answer, place, chances]

    def value(self, kept: Any) -> Any:
        return kept


TEXT = AnswerType(None)
TURN_ANSWER = _TurnAnswer(None)


def returns_of(type_: Any) -> AnswerType:
    """Return the answer type of a Python type; cached, so that a schema is built once."""
    if type_ in (None, str):
        return TEXT
    try:
        return _cached(type_)
    except TypeError:
        return AnswerType(type_)  # an unhashable type


@lru_cache(maxsize=512)
def _cached(type_: Any) -> AnswerType:
    return AnswerType(type_)


def value_to_plain(value: Any) -> Any:
    """Return an author's value as plain data; models and failures become dicts. Raises ``TypeError`` or
    ``ValueError``.
    """
    try:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=False, enc_hook=_taken, order="sorted")
    except RecursionError:
        raise deep() from None
    return to_plain(plain)


def _taken(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "kind") and hasattr(value, "story"):
        return {"failed": str(value.kind), "story": value.story}
    if hasattr(value, "__await__"):
        raise TypeError(f"{type(value).__name__} is not awaited: write await before it")
    raise TypeError(f"{type(value).__name__} cannot be kept: give text, numbers, lists, dicts, structs or models")


def declared(type_: Any) -> AnswerType | None:
    """Return the answer type of a function's return annotation; None if there is none, or none that can be checked."""
    if type_ in (Any, None, NoneType):
        return None
    try:
        return AnswerType(type_)
    except TypeError:
        return None


def holds_failure(value: Any) -> bool:
    """Return True if this value contains failures that the author kept in place of answers."""
    if isinstance(value, dict):
        return value.keys() == {"failed", "story"} or any(map(holds_failure, value.values()))
    return isinstance(value, list) and any(map(holds_failure, value))


_PLAIN_TYPES = (str, int, float, bool, bytes, list, dict, NoneType)


def kind_of(value: Any) -> AnswerType:
    """Return the answer type that converts plain data back to the type of this value."""
    return _AS_IT_IS if type(value) in _PLAIN_TYPES else returns_of(type(value))


_AS_IT_IS = AnswerType(Any)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
