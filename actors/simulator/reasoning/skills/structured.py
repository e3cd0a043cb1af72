"""Answers in JSON, by a schema, by a template in the prompt, or by named keys."""

import re
from typing import Any, Final

import msgspec

from actors.simulator.reasoning.length_limits import items_max, words_max
from actors.simulator.reasoning.prompt_reader import ParsedPrompt
from actors.simulator.reasoning.skills.arithmetic import count
from actors.simulator.reasoning.skills.classification import (
    AnswerOptions,
    chosen,
    judged,
    option,
    options_of,
    spoken_share,
)
from actors.simulator.reasoning.skills.extraction import claims_of, keywords_of, summary_of
from actors.simulator.reasoning.thought import Thought

_ARRAY = re.compile(r"\bjson (?:array|list)\b", re.IGNORECASE)
_PAIR = re.compile(
    r"[\"']([\w -]{1,40})[\"']\s*:\s*"
    r"(\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"(?:\s*(?:\||or)\s*\"[^\"]*\")*|[^,}\n]+)"
)
_KEYS = re.compile(
    r"\b(?:keys?|fields?|properties|attributes|members)\b(?:\s+(?:are|named|called))?\s*:?\s+([^.\n]{2,300})",
    re.IGNORECASE,
)
_KEY = re.compile(r"[\"'`]?([A-Za-z_][\w-]{0,40})[\"'`]?\s*(?:[:=]?\s*\(([^)]*)\))?")
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:-|–|to|\.\.)\s*(\d+(?:\.\d+)?)")
_TRUTHS: Final = frozenset({"relevant", "valid", "correct", "answered", "answerable", "true", "supported", "done"})
_NUMBERS: Final = frozenset({"score", "rating", "confidence", "count", "number", "probability", "total", "result"})
_CHOICES: Final = frozenset(
    {"label", "category", "class", "answer", "verdict", "choice", "decision", "kind", "type", "classification"}
)
_PARTING: Final = frozenset({"and", "or", "with", "the", "a", "as", "an"})


def structured(reading: ParsedPrompt) -> Thought | None:
    """Return an answer in JSON, with a value of the right type for each key."""
    schema = reading.schema
    if schema is None:
        if "json" not in reading.low:
            return None
        schema = _schema_of(reading)
        if schema is None:
            return None
    right = _encoded(filled(schema, reading, "", mistaken=False))
    wrong = _encoded(filled(schema, reading, "", mistaken=True))
    return Thought(right, (wrong,) if wrong != right else (), right[:-1])


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _schema_of(reading: ParsedPrompt) -> dict[str, Any] | None:
    """Return the object that the instruction describes, as a JSON schema."""
    asked = f"{reading.instruction}\n{reading.question}"
    pairs = dict(_PAIR.findall(asked))
    if pairs:
        return _object({key: _by_template(value.strip()) for key, value in pairs.items()})
    named = _KEYS.search(asked)
    if named:
        keys = [(key, hint) for key, hint in _KEY.findall(named[1]) if key.lower() not in _PARTING]
        return _object({key: _by_name(key, hint, reading) for key, hint in keys})
    if _ARRAY.search(asked):
        return {"type": "array", "items": {"type": "string"}}
    options = options_of(reading).all
    if options:
        return _object({"answer": {"enum": [each.name for each in options]}})
    return _object({"answer": {"type": "string"}})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _by_template(value: str) -> dict[str, Any]:
    """Return the schema of a value in a template: ``true|false``, ``"a|b"``, ``[...]``, ``0-10``, or text."""
    low = value.lower().strip("\"'<> ")
    if re.fullmatch(r"(?:true|false|bool(?:ean)?)(?:\W+(?:or\W+)?(?:true|false))?", low):
        return {"type": "boolean"}
    if value.startswith("["):
        return {"type": "array", "items": {"type": "string"}}
    if value.startswith("{"):
        return _object({key: _by_template(each.strip()) for key, each in _PAIR.findall(value)})
    choices = [each.strip("\"' ") for each in re.split(r"\s*\|\s*|\"\s+or\s+\"", value.strip("\"' "))]
    if len(choices) > 1:
        return {"enum": choices}
    span = _RANGE.search(low)
    if span or re.fullmatch(r"-?\d+(?:\.\d+)?|int(?:eger)?|number|float", low):
        return _number_between(span)
    return {"type": "string", "description": value}


def _number_between(span: re.Match[str] | None) -> dict[str, Any]:
    if span is None:
        return {"type": "integer"}
    kind = "number" if "." in span[0].replace("..", "") or span[2] == "1" else "integer"
    return {"type": kind, "minimum": float(span[1]), "maximum": float(span[2])}


def _by_name(key: str, hint: str, reading: ParsedPrompt) -> dict[str, Any]:
    """Return the schema of a bare key: by the hint in brackets after it, else by its English name."""
    if hint:
        if re.search(r"\b(?:list|array)\b", hint):
            return {"type": "array", "items": {"type": "string"}}
        by_hint = _by_template(hint)
        return {"type": "string", "description": hint} if by_hint.get("type") == "string" else by_hint
    low = key.lower()
    if low.startswith(("is_", "has_")) or low in _TRUTHS:
        return {"type": "boolean"}
    if low in _NUMBERS:
        return {"type": "number" if low in ("confidence", "probability") else "integer"}
    if low in _CHOICES:
        options = options_of(reading).all
        if options:
            return {"enum": [each.name for each in options]}
    if low.endswith("s") and not low.endswith(("ss", "is", "us")):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": "string"}


def filled(schema: dict[str, Any], reading: ParsedPrompt, key: str, mistaken: bool) -> Any:
    """Return a value that meets a JSON schema (objects, arrays, enums, booleans, numbers, text), derived from the text.

    ``mistaken``: return a value of the same form that a wrong reader could give.
    """
    variants = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(variants, list) and variants:
        return filled(variants[0], reading, key, mistaken)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return _one_of(schema["enum"], reading, mistaken)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: filled(each, reading, name, mistaken) for name, each in properties.items()}
    if kind == "array":
        return _several(schema, reading, key, mistaken)
    if kind == "boolean":
        return judged(reading) != mistaken
    if kind in ("integer", "number"):
        return _figure(schema, kind, reading, mistaken)
    return None if kind == "null" else _field_value(schema, reading, key, mistaken)


def _one_of(allowed: list[Any], reading: ParsedPrompt, mistaken: bool) -> Any:
    if len(allowed) < 2:
        return allowed[0]
    right = chosen(reading, AnswerOptions([option(str(each)) for each in allowed]))
    others = [each for each in allowed if str(each) != right]
    return others[0] if mistaken and others else next(each for each in allowed if str(each) == right)


def _several(schema: dict[str, Any], reading: ParsedPrompt, key: str, mistaken: bool) -> list[Any]:
    items = schema.get("items") or {"type": "string"}
    most = schema.get("maxItems") or items_max(reading.instruction)
    if items.get("type", "string") != "string" or items.get("enum"):
        return [filled(items, reading, key, mistaken)]
    if key.lower() in ("keywords", "topics", "themes", "tags"):
        found = keywords_of(reading.matter, most)
    else:
        found = claims_of(reading, most, words_max(reading.instruction, 40))
    return found[:-1] if mistaken else found


def _figure(schema: dict[str, Any], kind: str, reading: ParsedPrompt, mistaken: bool) -> float | int:
    least = float(schema.get("minimum", 0))
    most = float(schema.get("maximum", 1 if kind == "number" else 10))
    worked = count(reading)
    value = least + spoken_share(reading) * (most - least)
    if worked and "maximum" not in schema:
        value = float(worked.right)
    if mistaken:
        value = value - 1 if value - 1 >= least else value + 1
        value = min(value, most) if not worked else value
    return round(value) if kind == "integer" else round(value, 2)


def _field_value(schema: dict[str, Any], reading: ParsedPrompt, key: str, mistaken: bool) -> str:
    if key.lower() in ("question", "query", "goal"):
        return reading.question
    worked = count(reading)
    if worked:
        return worked.wrong[0] if mistaken else worked.right
    limit = words_max(str(schema.get("description", "")), words_max(reading.instruction, 40))
    if mistaken:
        last = claims_of(reading, 2, limit)
        return last[-1] if last else ""
    return summary_of(reading, limit, 1)
