"""Columns of a table of results: their kinds, and the encoding of values in CSV and in Parquet."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from actors.files.arrow_values import arrow_column, comes_back, vector_column, vector_type
from cortex.programs.table import ANSWER, ERROR, META, REQUEST_ID, Table
from cortex.values.json_schema.checks import resolved
from cortex.values.schema import AnswerShape

TEXT, INTEGER, NUMBER, BOOLEAN, JSON = "text", "integer", "number", "boolean", "json"
VECTOR = "vector"
"""Kind of a column of vectors (``cortex.programs.parts.embedding``)."""
ARROW, ARROW_TEXT = "arrow", "arrow_text"
"""Kinds of columns whose type is in an Arrow schema. In the second one all bytes are UTF-8 and kept as text."""

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
    """Arrow schema, in base64, of the input's columns whose kind is ``arrow`` or ``arrow_text``; empty: none. If the
    results repeat all columns, it has the metadata of the input's file."""
    entries: dict[str, list[Any]] | msgspec.UnsetType = msgspec.UNSET
    """Entries of the input's dictionary columns in their order, as JSON values. Unset: none."""

    def encoded(self) -> str:
        """Return the columns as JSON, as stored with a job."""
        return msgspec.json.encode(self).decode()


DEFAULT_COLUMNS = Columns([(REQUEST_ID, TEXT), (ANSWER, TEXT), (ERROR, TEXT)])
"""Columns of the results of a batch of requests."""

PANDAS = b"pandas"
"""Metadata key of pandas in a Parquet file
(https://pandas.pydata.org/docs/development/developer.html#storing-pandas-dataframe-objects-in-apache-parquet-format)."""


def columns_of(
    program: Table, given: list[tuple[str, str]], arrow: Any = None, entries: Mapping[str, list[Any]] | None = None
) -> Columns:
    """Return the columns of a table's results. ``given``: columns of the input that the results repeat, the id first.
    ``entries``: those of dictionary columns.
    """
    named, chances = program.columns(), len(program.probability_columns())
    fields, answer = len(named) - chances - len(program.own_columns()), VECTOR if program.vectors else TEXT
    kinds = [*["field"] * fields, *[NUMBER] * chances, answer, TEXT, *(_META_KINDS.get(name, TEXT) for name in META)]
    own = list(zip(named, kinds, strict=False))
    used = [name for name, kind in given if kind in (ARROW, ARROW_TEXT)]
    packed = ""
    if used:
        import pyarrow

        metadata = _metadata(arrow.metadata, program) if program.with_input else None
        schema = pyarrow.schema([arrow.field(name) for name in used], metadata)
        packed = base64.b64encode(schema.serialize().to_pybytes()).decode()
    kept = {name: entries[name] for name in used if entries and name in entries}
    return Columns([*given, *own], program.results_schema(), packed, kept or msgspec.UNSET)


def decoded(text: str) -> Columns:
    """Return the columns stored with a job; ``DEFAULT_COLUMNS`` for an empty text."""
    return msgspec.json.decode(text, type=Columns) if text else DEFAULT_COLUMNS


def _metadata(metadata: Any, program: Table) -> Any:
    """Return the metadata of the input's file for its results.

    pandas counts rows by a range: it is left out if rows come as they finish, since they would get labels of others.
    """
    if program.ordered or not metadata or PANDAS not in metadata:
        return metadata
    try:
        found = msgspec.json.decode(metadata[PANDAS])
        found["index_columns"] = [each for each in found["index_columns"] if not isinstance(each, dict)]
        return metadata | {PANDAS: msgspec.json.encode(found)}
    except (ValueError, TypeError, KeyError):  # not written by pandas
        return metadata


def arrow_schema(columns: Columns, nullable: bool = False, vector_size: int = 0) -> Any:
    """Return the Arrow schema of a Parquet file of results. ``nullable``: any column of the input may hold null.
    ``vector_size``: numbers of a vector; 0: there are none."""
    import pyarrow as pa

    plain = {TEXT: pa.string(), INTEGER: pa.int64(), NUMBER: pa.float64(), BOOLEAN: pa.bool_(), JSON: pa.string(),
             VECTOR: vector_type(vector_size)}  # fmt: skip
    given = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(columns.arrow))) if columns.arrow else None
    whole = msgspec.json.decode(columns.schema) if columns.schema else {}
    properties = AnswerShape(whole, formats=False).properties if columns.schema else {}
    fields = []
    for name, kind in columns.names:
        if kind in (ARROW, ARROW_TEXT):
            assert given is not None
            field = given.field(name)
            field = field.with_nullable(True) if nullable else field
            fields.append(field if comes_back(field.type) else pa.field(name, pa.string()))
        else:
            own = (_of_schema(properties[name], whole) or pa.string()) if kind == "field" else plain[kind]
            fields.append(pa.field(name, own))
    return pa.schema(fields, given.metadata if given is not None else None)


def arrow_columns(columns: Columns, schema: Any, values: Mapping[str, list[Any]]) -> list[Any]:
    """Return JSON values by column as Arrow columns of the schema. Raises as pyarrow does if a value does not fit."""
    texts = {name for name, kind in columns.names if kind == ARROW_TEXT}
    entries = {} if columns.entries is msgspec.UNSET else columns.entries
    vectors = {name for name, kind in columns.names if kind == VECTOR}
    return [
        vector_column(values[field.name], field.type) if field.name in vectors
        else arrow_column(values[field.name], field.type, field.name in texts, entries.get(field.name, ()))
        for field in schema
    ]  # fmt: skip


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


def cell(value: Any) -> Any:
    """Return a value as a cell of CSV."""
    if value is None or type(value) is str:
        return value
    return msgspec.json.encode(value).decode()


class _Error(msgspec.Struct, frozen=True):
    type: str = ""
    message: str = ""
    code: Any = None


class _Errors(msgspec.Struct, frozen=True):
    error: _Error = _Error()


class _Message(msgspec.Struct):
    content: list[dict[str, Any]] = []


class _Result(msgspec.Struct):
    type: str
    message: _Message | None = None
    error: _Errors | None = None


class _Spoken(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Spoken = msgspec.field(default_factory=_Spoken)


class _Part(msgspec.Struct):
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Part] | None = None


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    output: list[_Item] | None = None
    """Of a response of the Responses API."""
    data: list[_Vector] | None = None
    """Of a list of embeddings."""
    error: _Error | None = None


class _Response(msgspec.Struct):
    body: _Body = msgspec.field(default_factory=_Body)


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result | None = None
    response: _Response | None = None
    """Of a line of OpenAI's batch files, as the next one."""
    error: _Error | None = None


_line_decoder = msgspec.json.Decoder(_Line)


def flat(line: bytes) -> bytes:
    """Return a result line of a batch of requests as a flat row. Raises ``ValueError`` for a line that is not a result.
    """
    found = _line_decoder.decode(line)
    result = found.result
    text = error = None
    if result is None:
        text, error = _of_completion(found)
    elif result.message is not None:
        text = "".join(each.get("text", "") for each in result.message.content if each.get("type") == "text")
    else:
        error = f"{result.error.error.type}: {result.error.error.message}" if result.error else result.type
    return msgspec.json.encode({REQUEST_ID: found.custom_id, ANSWER: text, ERROR: error})


def _of_completion(found: _Line) -> tuple[str | None, str | None]:
    """Return text and error of a line of OpenAI's batch files. The text of embeddings is that of their vectors, as
    JSON."""
    body = _Body() if found.response is None else found.response.body
    if body.choices:
        return body.choices[0].message.content or "", None
    if body.output is not None and body.error is None:
        parts = [part for item in body.output if item.type == "message" for part in item.content or ()]
        return "".join(part.text or part.refusal or "" for part in parts), None
    if body.data:
        vectors = [each.embedding for each in body.data]
        return msgspec.json.encode(vectors if len(vectors) > 1 else vectors[0]).decode(), None
    error = found.error or body.error or _Error(message="no answer")
    return None, f"{error.type or error.code or 'api_error'}: {error.message}"


__all__ = [
    "DEFAULT_COLUMNS",
    "META",
    "Columns",
    "arrow_columns",
    "arrow_schema",
    "cell",
    "columns_of",
    "decoded",
    "flat",
]
