"""Keywords of JSON Schema 2020-12: each is checked, describes only, or is refused.

Definitions: https://json-schema.org/draft/2020-12/json-schema-core and
https://json-schema.org/draft/2020-12/json-schema-validation. The core checks answers by code of its own, since a replay
must come to the verdict of the first run whatever libraries are installed; the tests compare its verdicts with those of
``jsonschema``.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

from cortex.values.json_schema.checks import (
    KINDS,
    NAMES,
    PLAIN,
    Check,
    Checks,
    Flaw,
    Make,
    SchemaError,
    all_of,
    identity_of,
    is_integer,
    is_number,
    name_of,
)  # fmt: skip

WHOLE_MIN, WHOLE_MAX = -(1 << 63), (1 << 63) - 1
"""Bounds of an integer: a column of a table holds no larger ones."""


def check_of(schema: Any, *, formats: bool = True) -> Check:
    """Return the check that a schema describes. Raises ``SchemaError``, also for a keyword that is not known.

    ``formats``: False for the schema of a Python type, which checks by itself: formats and keywords that are not known
    are then passed over.
    """
    return Checks(schema, formats, _KEYWORDS).of(schema, "$")


# -- keywords of all values ------------------------------------------------------------------------------------------


def _type(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    kinds = given if isinstance(given, list) else [given]
    if not kinds:
        raise SchemaError(f"{at}: type is an empty list")
    for kind in kinds:
        if kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it must be one of {', '.join(KINDS)}"
            raise SchemaError(f"{at}: type {kind!r}: {hint}")
    tests = [KINDS[kind] for kind in kinds]
    names = " | ".join(NAMES.get(kind, str(kind)) for kind in kinds)
    whole = "integer" in kinds and "number" not in kinds
    plain = frozenset().union(*(PLAIN[kind] for kind in kinds)) - ({int} if whole else set())

    def check(value: Any) -> Flaw | None:
        if type(value) in plain:
            return None
        if not any(test(value) for test in tests):
            return Flaw("", f"Expected `{names}`, got `{name_of(value)}`")
        if whole and is_number(value) and not WHOLE_MIN <= value <= WHOLE_MAX:
            return Flaw("", "Expected `int` of at most 64 bits")
        return None

    return check


def _enum(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if not isinstance(given, list):
        raise SchemaError(f"{at}.enum must be a list")
    if not given:
        raise SchemaError(f"{at}.enum is empty: no answer could be valid")
    allowed = {identity_of(each) for each in given}
    return lambda value: None if identity_of(value) in allowed else Flaw("", f"Invalid enum value {value!r:.80}")


def _const(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    return _enum(checks, [given], schema, at)


def _all_of(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    return all_of(checks.each(given, f"{at}.allOf"))


def _any_of(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    each = checks.each(given, f"{at}.anyOf")

    def check(value: Any) -> Flaw | None:
        flaws = []
        for one in each:
            flaw = one(value)
            if flaw is None:
                return None
            flaws.append(flaw)
        return _nearest(flaws)

    return check


def _one_of(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    each = checks.each(given, f"{at}.oneOf")

    def check(value: Any) -> Flaw | None:
        flaws = [one(value) for one in each]
        valid = flaws.count(None)
        if valid == 1:
            return None
        if valid:
            return Flaw("", f"Expected a value that fits exactly one of {len(each)} schemas; it fits {valid}")
        return _nearest([flaw for flaw in flaws if flaw is not None])

    return check


def _nearest(flaws: list[Flaw]) -> Flaw:
    """The flaw of the alternative that the value comes nearest to: the one with the longest path; all types that were
    expected if all alternatives differ from the value itself."""
    deepest = max(flaws, key=lambda flaw: len(flaw.path))
    if deepest.path:
        return deepest
    types = [flaw.reason.split("`")[1] for flaw in flaws if re.fullmatch(r"Expected `[^`]*`, got `[^`]*`", flaw.reason)]
    if len(types) < len(flaws):
        return next(flaw for flaw in flaws if not flaw.reason.startswith("Expected `") or ", got `" not in flaw.reason)
    return Flaw("", f"Expected `{' | '.join(dict.fromkeys(types))}`, got `{flaws[0].reason.split('`')[3]}`")


def _not(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    check = checks.of(given, f"{at}.not")
    reason = "Expected a value that does not fit the schema of `not`"
    return lambda value: Flaw("", reason) if check(value) is None else None


def _if(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    condition = checks.of(given, f"{at}.if")
    then, otherwise = (checks.of(schema.get(name, True), f"{at}.{name}") for name in ("then", "else"))
    return lambda value: then(value) if condition(value) is None else otherwise(value)


def _beside_if(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> None:
    """Return None: ``then`` and ``else`` are checked with ``if``, and have no meaning without it."""
    checks.of(given, at)


# -- bounds ----------------------------------------------------------------------------------------------------------


def _bound(name: str, number: bool, of: Callable[[Any], Any], holds: Callable[[Any, Any], bool], text: str) -> Make:
    def make(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
        if not is_number(given) or (not number and not (is_integer(given) and given >= 0)):
            raise SchemaError(f"{at}.{name} must be a number{'' if number else ', whole and 0 or more'}: {given!r:.40}")
        bound = given if number else int(given)
        named = NAMES[schema["type"]] if schema.get("type") in ("integer", "number") else ""

        def check(value: Any) -> Flaw | None:
            size = value if number and type(value) in _NUMBERS else of(value)
            fits = size is None or holds(size, bound)
            return None if fits else Flaw("", f"Expected `{named or name_of(value)}` {text} {bound}")

        return check

    return make


def _multiple_of(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if not is_number(given) or given <= 0:
        raise SchemaError(f"{at}.multipleOf must be a number above 0: {given!r:.40}")
    unit = _exact(given)

    def check(value: Any) -> Flaw | None:
        fits = not is_number(value) or (_exact(value) / unit).denominator == 1
        return None if fits else Flaw("", f"Expected `{name_of(value)}` that's a multiple of {given}")

    return check


def _exact(number: float) -> Fraction:
    """The number as it is written in decimals: 0.3 is a multiple of 0.1."""
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))


_NUMBERS: Final = frozenset({int, float})


def _number(value: Any) -> Any:
    return value if is_number(value) else None


def _length_of(kind: type[str | list[Any] | dict[str, Any]]) -> Callable[[Any], int | None]:
    return lambda value: len(value) if isinstance(value, kind) else None


_NOT_LESS = int.__ge__, "of length >="
_NOT_MORE = int.__le__, "of length <="


def _pattern(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    found = _regex(given, f"{at}.pattern").search
    reason = f"Expected `str` matching regex {given!r}"
    return lambda value: Flaw("", reason) if isinstance(value, str) and found(value) is None else None


def _regex(given: Any, at: str) -> re.Pattern[str]:
    try:
        return re.compile(given)
    except (re.error, TypeError) as error:
        raise SchemaError(f"{at} {given!r:.60}: {error}") from None


# -- arrays ----------------------------------------------------------------------------------------------------------


def _of_items(checked: Iterable[tuple[Check, Any]], first: int) -> Flaw | None:
    """Return the first flaw of items, each with its check; ``first``: index of the first item in its array."""
    for place, (check, item) in enumerate(checked, first):
        flaw = check(item)
        if flaw is not None:
            return flaw.below(f"[{place}]")
    return None


def _prefix_items(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    each = checks.each(given, f"{at}.prefixItems")

    def check(value: Any) -> Flaw | None:
        return _of_items(zip(each, value, strict=False), 0) if isinstance(value, list) else None

    return check


def _items(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if isinstance(given, list):
        raise SchemaError(f"{at}.items must be a schema: a list of schemas is prefixItems")
    one, first = checks.of(given, f"{at}.items"), len(schema.get("prefixItems", ()))

    def check(value: Any) -> Flaw | None:
        return _of_items(((one, item) for item in value[first:]), first) if isinstance(value, list) else None

    return check


def _contains(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    one = checks.of(given, f"{at}.contains")
    least, most = schema.get("minContains", 1), schema.get("maxContains")

    def check(value: Any) -> Flaw | None:
        if not isinstance(value, list):
            return None
        count = sum(one(item) is None for item in value)
        if count >= least and (most is None or count <= most):
            return None
        return Flaw("", f"Expected `array` with {least} or more items that fit `contains`" if count < least
                    else f"Expected `array` with at most {most} items that fit `contains`")  # fmt: skip

    return check


def _contains_count(name: str) -> Make:
    """Check of the keyword's own value: ``contains`` counts by it."""
    made = _bound(name, False, lambda value: None, int.__ge__, "")

    def make(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> None:
        made(checks, given, schema, at)

    return make


def _unique_items(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check | None:
    if not isinstance(given, bool):
        raise SchemaError(f"{at}.uniqueItems must be true or false")

    def check(value: Any) -> Flaw | None:
        same = isinstance(value, list) and len(set(map(identity_of, value))) < len(value)
        return Flaw("", "Expected `array` of different items") if same else None

    return check if given else None


# -- objects ---------------------------------------------------------------------------------------------------------


def _properties(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if not isinstance(given, dict):
        raise SchemaError(f"{at}.properties must be an object of schemas")
    each = {name: checks.of(one, f"{at}.{name}") for name, one in given.items()}

    def check(value: Any) -> Flaw | None:
        if not isinstance(value, dict):
            return None
        for name, one in each.items():
            if name in value and (flaw := one(value[name])) is not None:
                return flaw.below(f".{name}")
        return None

    return check


def _required(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise SchemaError(f"{at}.required must be a list of names")
    properties: Any = schema.get("properties")
    for name in given if isinstance(properties, dict) and properties else ():
        if name not in properties:
            near = difflib.get_close_matches(name, properties, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise SchemaError(f"{at}.required names {name!r}, which is no property{hint}")

    needed = frozenset(given)

    def check(value: Any) -> Flaw | None:
        if not isinstance(value, dict) or value.keys() >= needed:
            return None
        for name in given:
            if name not in value:
                return Flaw("", f"Object missing required field `{name}`")
        return None

    return check


def _additional_properties(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    one, known = checks.of(given, f"{at}.additionalProperties"), schema.get("properties", {})
    patterns = [re.compile(each) for each in schema.get("patternProperties", {})]

    def check(value: Any) -> Flaw | None:
        if not isinstance(value, dict) or value.keys() <= known.keys():
            return None
        for name, each in value.items():
            if name in known or any(pattern.search(name) for pattern in patterns):
                continue
            flaw = one(each)
            if flaw is not None:
                return flaw.below("[...]") if given else Flaw("", f"Object contains unknown field `{name}`")
        return None

    return check


def _pattern_properties(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    each = [
        (_regex(name, f"{at}.patternProperties"), one)
        for name, one in checks.named(given, f"{at}.patternProperties").items()
    ]

    def check(value: Any) -> Flaw | None:
        for name, item in value.items() if isinstance(value, dict) else ():
            for pattern, one in each:
                if pattern.search(name) and (flaw := one(item)) is not None:
                    return flaw.below(f".{name}")
        return None

    return check


def _property_names(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    one = checks.of(given, f"{at}.propertyNames")

    def check(value: Any) -> Flaw | None:
        for name in value if isinstance(value, dict) else ():
            flaw = one(name)
            if flaw is not None:
                return Flaw("", f"Name of field {name!r:.60}: {flaw.reason}")
        return None

    return check


def _dependent_required(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    if not isinstance(given, dict) or not all(isinstance(names, list) for names in given.values()):
        raise SchemaError(f"{at}.dependentRequired must be an object of lists of names")

    def check(value: Any) -> Flaw | None:
        for first, names in given.items() if isinstance(value, dict) else ():
            lacking = next((name for name in names if name not in value), None) if first in value else None
            if lacking is not None:
                return Flaw("", f"Object missing required field `{lacking}`, needed beside `{first}`")
        return None

    return check


def _dependent_schemas(checks: Checks, given: Any, schema: dict[str, Any], at: str) -> Check:
    each = checks.named(given, f"{at}.dependentSchemas")

    def check(value: Any) -> Flaw | None:
        for name, one in each.items() if isinstance(value, dict) else ():
            if name in value and (flaw := one(value)) is not None:
                return flaw
        return None

    return check


_KEYWORDS: Final[dict[str, Make]] = {
    "type": _type, "enum": _enum, "const": _const, "$ref": Checks.ref, "format": Checks.format,
    "allOf": _all_of, "anyOf": _any_of, "oneOf": _one_of, "not": _not,
    "if": _if, "then": _beside_if, "else": _beside_if,
    "minimum": _bound("minimum", True, _number, operator.ge, ">="),
    "maximum": _bound("maximum", True, _number, operator.le, "<="),
    "exclusiveMinimum": _bound("exclusiveMinimum", True, _number, operator.gt, ">"),
    "exclusiveMaximum": _bound("exclusiveMaximum", True, _number, operator.lt, "<"),
    "multipleOf": _multiple_of,
    "minLength": _bound("minLength", False, _length_of(str), *_NOT_LESS),
    "maxLength": _bound("maxLength", False, _length_of(str), *_NOT_MORE),
    "pattern": _pattern,
    "prefixItems": _prefix_items, "items": _items, "contains": _contains,
    "minContains": _contains_count("minContains"), "maxContains": _contains_count("maxContains"),
    "minItems": _bound("minItems", False, _length_of(list), *_NOT_LESS),
    "maxItems": _bound("maxItems", False, _length_of(list), *_NOT_MORE), "uniqueItems": _unique_items,
    "properties": _properties, "required": _required, "additionalProperties": _additional_properties,
    "patternProperties": _pattern_properties, "propertyNames": _property_names,
    "minProperties": _bound("minProperties", False, _length_of(dict), *_NOT_LESS),
    "maxProperties": _bound("maxProperties", False, _length_of(dict), *_NOT_MORE),
    "dependentRequired": _dependent_required, "dependentSchemas": _dependent_schemas,
}  # fmt: skip
CHECKED: Final = frozenset(_KEYWORDS)
"""Keywords that answers are checked by."""
