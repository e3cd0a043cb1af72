"""Odd rows in memory: dicts, frames of pandas and polars, Arrow tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pandas
import polars
import pyarrow as pa
from hypothesis import strategies as st

from tests.support.odd_tables.table import ID, TEXT, Fate, OddTable, Record, asked_texts, cells, ids

_COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "count": (pa.int64(), st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1])),
    "share": (pa.float64(), st.sampled_from([0.5, -0.0, 1e300, 5e-324])),
    "größe": (pa.string(), cells()),
    "is open": (pa.bool_(), st.booleans()),
}
_EVERYWHERE = ("no text", "blank text", "no id", "id again")
_IN_DICTS = (*_EVERYWHERE, "half a pair", "an object", "no row")


def _frame(rows: list[Any], schema: Any) -> Any:
    return pandas.DataFrame(
        {field.name: pandas.array([row[field.name] for row in rows], pandas.ArrowDtype(field.type)) for field in schema}
    )


KINDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "dicts": lambda rows, schema: rows,
    "generator": lambda rows, schema: (row for row in rows),
    "pandas": _frame,
    "polars": lambda rows, schema: polars.from_arrow(pa.Table.from_pylist(rows, schema)),
    "arrow": lambda rows, schema: pa.Table.from_pylist(rows, schema),
}


class OddRows(msgspec.Struct, frozen=True):
    """Rows in memory, and the table of their records."""

    kind: str
    rows: Any
    table: OddTable


@st.composite
def odd_rows(draw: Any) -> OddRows:
    """Return rows of any kind."""
    kind = draw(st.sampled_from(list(KINDS)))
    names = draw(st.lists(st.sampled_from(list(_COLUMNS)), max_size=3, unique=True))
    columns = draw(st.permutations([ID, TEXT, *names]))
    whole_ids = draw(st.booleans())
    rows: list[Any] = []
    records: list[Record] = []
    for place in range(draw(st.integers(1, 8))):
        row: Any = {name: draw(st.none() | _COLUMNS[name][1]) if name in names else None for name in columns}
        row |= {ID: 70 + place if whole_ids else draw(ids(place)), TEXT: draw(asked_texts())}
        odd = "plain"
        if place and draw(st.booleans()):
            odd = draw(st.sampled_from(_IN_DICTS if kind in ("dicts", "generator") else _EVERYWHERE))
        if odd == "id again" and sum(each.odd == odd for each in records) * 2 >= len(records):
            odd = "plain"  # a column that most rows repeat is refused as no id
        made = _made(odd, row, rows[0][ID] if rows else None)
        rows.append(made)
        fate = Fate.ASKED if odd == "plain" else Fate.TOLD
        records.append(Record(fate, odd, row if fate is Fate.ASKED else {}, place + 1))
    schema = pa.schema([(ID, pa.int64() if whole_ids else pa.string()), (TEXT, pa.string()), *((n, _COLUMNS[n][0]) for n in names)])
    schema = pa.schema([schema.field(name) for name in columns])
    return OddRows(kind, KINDS[kind](rows, schema), OddTable(kind, b"", columns, records))


def _made(odd: str, row: dict[str, Any], first: Any) -> Any:
    """Return a row that is odd in one way."""
    changed = {
        "no text": {TEXT: None}, "blank text": {TEXT: " \r"}, "no id": {ID: None}, "id again": {ID: first},
        "half a pair": {TEXT: "half \ud83d"}, "an object": {TEXT: object()},
    }  # fmt: skip
    return None if odd == "no row" else row | changed.get(odd, {})
