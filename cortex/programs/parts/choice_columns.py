"""Columns of the probabilities of typed choices: which fields of a schema are choices, and their values in a reply."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from cortex.programs.parts.token_logprobs import field_probabilities, text_probability
from cortex.values.json_schema.checks import SchemaError, identity_of, resolved
from cortex.values.reply import Reply

SUFFIX: Final = "_probability"
"""End of the name of a column with probabilities, behind the name of its field."""
TOP_DEFAULT: Final = 20
"""Alternatives that are requested for each token: the most that OpenAI gives
(https://platform.openai.com/docs/api-reference/chat/create, ``top_logprobs``) and vLLM without ``--max-logprobs``."""


def choices_of(schema: str) -> dict[str, list[Any]]:
    """Return the listed values of each field of a JSON schema that is a choice: by ``enum`` or ``const``, ``true`` and
    ``false``, or alternatives of these, at least two."""
    return dict(_choices_of(schema))


@lru_cache(maxsize=64)
def _choices_of(schema: str) -> dict[str, list[Any]]:
    whole = msgspec.json.decode(schema)
    found = {name: _values(each, whole) for name, each in resolved(whole, whole, "$")["properties"].items()}
    return {name: values for name, values in found.items() if values is not None and len(values) > 1}


def _values(schema: Any, whole: dict[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists, each once; None if it allows others."""
    if not isinstance(schema, dict):
        return None
    try:
        schema = resolved(schema, whole, "$")
    except SchemaError:
        return None
    if "enum" in schema or "const" in schema:
        return _distinct(schema["enum"] if "enum" in schema else [schema["const"]])
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list):
        parts = [_values(each, whole) for each in alternatives]
        return None if None in parts else _distinct(value for part in parts for value in part or ())
    if kinds and set(kinds) <= {"boolean", "null"}:
        return [value for each in kinds for value in ((True, False) if each == "boolean" else (None,))]
    return None


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list({identity_of(value): value for value in values}.values())


def alternatives_of(logprobs: bool, top: int | None, schema: str, schema_as: str) -> int | msgspec.UnsetType:
    """Return ``Table.top_logprobs`` for options of the user; unset: none are asked for. Raises ``ValueError`` for
    options that cannot give a probability: one line that begins with the option."""
    if not logprobs:
        if top is not None:
            raise ValueError("--top-logprobs says how many alternatives --logprobs requests: give --logprobs too")
        return msgspec.UNSET
    if top is not None and top < 0:
        raise ValueError(f"--top-logprobs {top}: give a number of alternatives for each token, 0 to 20")
    if schema and schema_as == "tool":
        raise ValueError("--logprobs: the input of a tool has no log probabilities: give --schema-as format or prompt")
    if schema and not _choices_of(schema):
        raise ValueError(
            "--logprobs: no field of the schema is a choice of listed values (enum, Literal, boolean): leave it out"
        )
    return TOP_DEFAULT if top is None else top


def probability_columns(schema: str, answer: str) -> list[str]:
    """Return the names of the columns. ``schema``: as JSON; empty: the text is the answer, whose column is named
    ``answer``."""
    return [f"{name}{SUFFIX}" for name in (_choices_of(schema) if schema else (answer,))]


def probabilities(schema: str, reply: Reply, text: str, in_words: bool) -> list[float | None]:
    """Return the values of the columns for a reply that is an answer; None where its tokens do not tell them.

    ``text``: the reply's text. ``in_words``: the schema was asked for in words.
    """
    if not schema:
        return [rounded(text_probability(reply.body, text))]
    found = field_probabilities(reply.body, text, _choices_of(schema), in_words=in_words)
    return [*map(rounded, found.values())]


def rounded(chance: float | None) -> float | None:
    """Return a probability to six places, as precise as the logarithms of replies; 1 only where it is 1."""
    return chance if chance is None or chance >= 1.0 else min(round(chance, 6), 0.999999)
