"""Tables of answers in the types of pandas, polars and Arrow.

Columns of the input are taken from the table that was given, row by row: their types, categories, objects and the index
of pandas are those of the input. All other columns are made of the results: whole numbers and booleans that have nulls
are the nullable types of pandas (``Int64``, ``boolean``), and not floats or objects.
"""

from __future__ import annotations

from typing import Any, Final

from actors.api.stored_rows import arrow
from actors.files.arrow_values import JsonForm, bytes_are_text, to_json_values
from actors.files.columns import ARROW, ARROW_TEXT, JSON, VECTOR, Columns, arrow_columns, arrow_schema
from actors.files.row_values import json_value

_NULLABLE: Final = {
    **{f"{sign}int{bits}": f"{sign.upper()}Int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "boolean",
}
"""Arrow type: nullable type of pandas (https://pandas.pydata.org/docs/user_guide/integer_na.html)."""


class AnswerFrames:
    """Answers and the table that was given, if it is one in memory. ``id``: name of the id column; ``numbered``: it
    counts the rows from 1.
    """

    def __init__(self, rows: list[Any], columns: Columns, given: Any, *, id: str, numbered: bool) -> None:  # noqa: A002
        self._rows = rows
        self._columns = columns
        self._id = id
        self._numbered = numbered
        self._repeated = frozenset(name for name, kind in columns.names if kind in (ARROW, ARROW_TEXT, JSON))
        """Columns of the given table; one that the table and the results both have is the results' own."""
        self._kind = _kind(given)
        self._given: Any = given.copy(deep=False) if self._kind == "pandas" else given if self._kind else None
        self._found: list[int] | None = None

    def to_arrow(self) -> Any:
        """Return a pyarrow Table."""
        table = self._made()
        if self._kind != "pyarrow" or (places := self._places()) is None:
            return table
        pa, schema = arrow(), self._given.schema
        fields, columns = [], []
        for field, column in zip(table.schema, table.columns, strict=True):
            own = schema.get_field_index(field.name)
            if own >= 0 and field.name in self._repeated:
                try:
                    column = self._given.column(own).take(pa.array(places, pa.int64()))
                    field = schema.field(own)
                except pa.ArrowException:  # a type that Arrow does not take rows of
                    pass
            fields.append(field)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=pa.schema(fields, table.schema.metadata))

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame."""
        if self._kind != "pandas" or (places := self._places()) is None:
            return _pandas_of(self.to_arrow())
        labels = {str(label): label for label in self._given.columns}
        given, found = self._given.iloc[places], _pandas_of(self._made())
        found.index = given.index
        for name in list(found.columns):
            if name in self._repeated:
                found[name] = given[labels[name]]
        if self._given.columns.nlevels > 1:
            return found
        found.columns = [labels[name] if name in self._repeated else name for name in found.columns]
        return found

    def to_polars(self) -> Any:
        """Return a polars DataFrame."""
        import polars

        found = polars.from_arrow(self.to_arrow())
        assert isinstance(found, polars.DataFrame)
        if self._kind != "polars" or (places := self._places()) is None:
            return found
        given = self._given[places]
        return found.with_columns(given[name] for name in found.columns if name in self._repeated)

    def _made(self) -> Any:
        """Return the results as a pyarrow Table. A column of the input allows nulls only if it did, or has some."""
        pa = arrow()
        vectors = [name for name, kind in self._columns.names if kind == VECTOR]
        size = max((len(row[name]) for name in vectors for row in self._rows if row.get(name)), default=0)
        wide = arrow_schema(self._columns, nullable=True, vector_size=size)
        narrow = arrow_schema(self._columns, vector_size=size)
        values = {name: [row.get(name) for row in self._rows] for name in wide.names}
        columns = arrow_columns(self._columns, wide, values)
        fields = [
            before if column.null_count == 0 else after
            for before, after, column in zip(narrow, wide, columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields, wide.metadata))

    def _places(self) -> list[int] | None:
        """Return the place in the given table of each row of the results; None if one is unknown."""
        if self._found is None:
            ids = [row.get(self._id) for row in self._rows]
            if self._numbered:
                self._found = [each - 1 for each in ids]
            else:
                where: dict[Any, int] = {}
                for place, each in enumerate(self._ids()):
                    where.setdefault(_key(each), place)
                self._found = [where.get(_key(each), -1) for each in ids]
        return None if any(place < 0 for place in self._found) else self._found

    def _ids(self) -> list[Any]:
        """Return the ids of the given table as JSON values; None for one that has no JSON form."""
        pa, given = arrow(), self._given
        if self._kind == "pandas":
            given = given[next(label for label in given.columns if str(label) == self._id)]
        elif self._kind == "polars":
            given = given[self._id]
        else:
            given = given.column(self._id)
        try:
            column = given if self._kind == "pyarrow" else pa.array(given, from_pandas=True)
            chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
            form = JsonForm(text=all(map(bytes_are_text, chunks)))
            return [each for chunk in chunks for each in to_json_values(chunk, form)]
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return [_json_or_none(each) for each in given]


def _kind(given: Any) -> str:
    """Return the library of a table in memory that rows can be taken of by place; empty for other rows."""
    kind = type(given).__module__.partition(".")[0]
    names = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "Table"}
    return kind if names.get(kind) == type(given).__name__ else ""


def _key(value: Any) -> Any:
    return value if type(value) is str else repr(value)


def _json_or_none(value: Any) -> Any:
    try:
        return json_value(value)
    except ValueError:
        return None


def _pandas_of(table: Any) -> Any:
    """Return an Arrow table as a DataFrame, with nullable types where whole numbers or booleans have nulls."""
    found = table.to_pandas()
    for name, column in zip(table.column_names, table.columns, strict=True):
        nullable = _NULLABLE.get(str(column.type))
        if nullable and column.null_count and found[name].dtype.kind in "fO":
            found[name] = column.to_pandas(integer_object_nulls=True).astype(nullable)
    return found


__all__ = ["AnswerFrames"]
