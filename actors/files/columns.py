"""Columns of a table of results: their kinds, and the encoding of values in CSV and in Parquet."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import time
from typing import Any

import msgspec

from actors.files.table_reader import is_bytes
from cortex.programs.table import ANSWER, ERROR, META, REQUEST_ID, Table
from cortex.values.json_schema.keywords import resolved
from cortex.values.schema import AnswerShape

TEXT, INTEGER, NUMBER, BOOLEAN, JSON, ARROW = "text", "integer", "number", "boolean", "json", "arrow"

_META_KINDS = {
    "attempts": INTEGER, "latency_s": NUMBER, "input_tokens": INTEGER, "output_tokens": INTEGER, "cost_usd": NUMBER,
    "reused": BOOLEAN,
}  # fmt: skip


class Columns(msgspec.Struct):
    """Names and kinds of columns, in order."""

    names: list[tuple[str, str]]
    """(name, kind). The kind ``field`` is the type of that field in ``schema``."""
    schema: str = ""
    """JSON schema of the answers, encoded; empty: none."""
    arrow: str = ""
    """Arrow schema, in base64, of the input's columns whose kind is ``arrow``; empty: none."""

    def encoded(self) -> str:
        """Return the columns as JSON, as stored with a job."""
        return msgspec.json.encode(self).decode()


DEFAULT_COLUMNS = Columns([(REQUEST_ID, TEXT), (ANSWER, TEXT), (ERROR, TEXT)])
"""Columns of the results of a batch of requests."""


def columns_of(program: Table, given: list[tuple[str, str]], arrow: Any = None) -> Columns:
    """Return the columns of a table's results. ``given``: columns of the input that the results repeat, the id first.
    """
    fields = list(AnswerShape(msgspec.json.decode(program.schema)).properties) if program.schema else []
    own = [(name, "field" if name in fields else _META_KINDS.get(name, TEXT)) for name in program.columns()]
    used = [name for name, kind in given if kind == ARROW]
    packed = ""
    if used:
        import pyarrow

        schema = pyarrow.schema([arrow.field(name) for name in used])
        packed = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return Columns([*given, *own], program.schema, packed)


def decoded(text: str) -> Columns:
    """Return the columns stored with a job; ``DEFAULT_COLUMNS`` for an empty text."""
    return msgspec.json.decode(text, type=Columns) if text else DEFAULT_COLUMNS


def arrow_schema(columns: Columns) -> Any:
    """Return the Arrow schema of a Parquet file of results."""
    import pyarrow as pa

    plain = {TEXT: pa.string(), INTEGER: pa.int64(), NUMBER: pa.float64(), BOOLEAN: pa.bool_(), JSON: pa.string()}
    given = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns.arrow))) if columns.arrow else None
    whole = msgspec.json.decode(columns.schema) if columns.schema else {}
    properties = AnswerShape(whole).properties if columns.schema else {}
    fields = []
    for name, kind in columns.names:
        if kind == ARROW:
            assert given is not None
            field = given.field(name).with_nullable(True)
            fields.append(field if _comes_back(field.type) else pa.field(name, pa.string()))
        else:
            own = (_of_schema(properties[name], whole) or pa.string()) if kind == "field" else plain[kind]
            fields.append(pa.field(name, own))
    return pa.schema(fields)


def _of_schema(schema: Any, whole: dict[str, Any]) -> Any:
    """Return the Arrow type of a JSON schema; None if it allows several types or any: the column is then JSON as text.
    """
    import pyarrow as pa

    if not isinstance(schema, dict):
        return None
    schema = resolved(schema, whole, "$")
    several = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if several:
        real = [each for each in several if isinstance(each, dict) and each.get("type") != "null"]
        return _of_schema(real[0], whole) if len(real) == 1 else None
    kind = _kind(schema)
    if kind == "array" and "prefixItems" not in schema:
        inner = _of_schema(schema.get("items"), whole)
        return None if inner is None else pa.list_(inner)
    if kind == "object" and schema.get("properties"):
        fields = {name: _of_schema(each, whole) for name, each in schema["properties"].items()}
        return None if None in fields.values() else pa.struct(list(fields.items()))
    plain = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
    return plain.get(kind)


def _kind(schema: dict[str, Any]) -> str:
    """Return the single type of a schema without alternatives; empty if it allows several types, or names none."""
    if "enum" in schema or "const" in schema:
        values = [each for each in schema.get("enum", [schema.get("const")]) if each is not None]
        kinds = {type(each) for each in values}
        return {int: "integer", bool: "boolean", str: "string"}.get(kinds.pop(), "") if len(kinds) == 1 else ""
    kind: Any = schema.get("type", "")
    if isinstance(kind, list):
        left = sorted(set(kind) - {"null"})
        return left[0] if len(left) == 1 else "number" if left == ["integer", "number"] else ""
    return str(kind)


def arrow_column(values: list[Any], kind: Any) -> Any:
    """Return JSON values as a column of this Arrow type: the inverse of ``table_reader.to_json_values``."""
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _made(values, kind, _text)
    if pa.types.is_dictionary(kind):
        return arrow_column(values, kind.value_type).dictionary_encode().cast(kind)
    if pa.types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_time(kind):
        return pa.array([None if each is None else time.fromisoformat(each) for each in values], kind)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if is_bytes(kind):
        return pa.array([None if each is None else base64.b64decode(each) for each in values], kind)
    if pa.types.is_floating(kind):
        return _made(values, kind, lambda each: None if each is None else float(each))
    return pa.array(values, kind)


def _made(values: list[Any], kind: Any, fitted: Callable[[Any], Any]) -> Any:
    """Return a column of values that nearly always fit unchanged; if a value does not fit, each is passed to
    ``fitted``.
    """
    import pyarrow as pa

    try:
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError):
        return pa.array([fitted(each) for each in values], kind)


def _comes_back(kind: Any, nested: bool = False) -> bool:
    """Return whether values of this Arrow type can be rebuilt from their JSON form; other types become text."""
    import pyarrow as pa

    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _comes_back(kind.value_type, True)
    if types.is_struct(kind):
        return all(_comes_back(field.type, True) for field in kind)
    if types.is_dictionary(kind):
        return not nested and _comes_back(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_string_view)
    plain = (types.is_boolean, types.is_integer, types.is_floating, types.is_null, *texts)
    if any(each(kind) for each in plain):
        return True
    if nested or types.is_interval(kind) or (types.is_time(kind) and kind.unit == "ns"):
        return False
    return bool(types.is_temporal(kind) or types.is_decimal(kind) or is_bytes(kind))


def _text(value: Any) -> str | None:
    return value if value is None or type(value) is str else msgspec.json.encode(value).decode()


def cell(value: Any) -> Any:
    """Return a value as a cell of CSV."""
    if value is None or type(value) is str:
        return value
    return msgspec.json.encode(value).decode()


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""


class _Errors(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class _Message(msgspec.Struct):
    content: list[dict[str, Any]] = []


class _Result(msgspec.Struct):
    type: str
    message: _Message | None = None
    error: _Errors | None = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


_line_decoder = msgspec.json.Decoder(_Line)


def flat(line: bytes) -> bytes:
    """Return a result line of a batch of requests as a flat row. Raises ``ValueError`` for a line that is not a result.
    """
    found = _line_decoder.decode(line)
    result = found.result
    text = error = None
    if result.message is not None:
        text = "".join(each.get("text", "") for each in result.message.content if each.get("type") == "text")
    else:
        error = f"{result.error.error.type}: {result.error.error.message}" if result.error else result.type
    return msgspec.json.encode({REQUEST_ID: found.custom_id, ANSWER: text, ERROR: error})


__all__ = [
    "DEFAULT_COLUMNS",
    "META",
    "Columns",
    "arrow_column",
    "arrow_schema",
    "cell",
    "columns_of",
    "decoded",
    "flat",
]
