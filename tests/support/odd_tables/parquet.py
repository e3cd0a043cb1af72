"""Odd Parquet files: values of many types, ids that are null or stand twice, small row groups."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from tests.support.odd_tables.table import ID, TEXT, Fate, OddTable, Record, asked_texts, cells, ids

_NAN = float("nan")
_COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "count": (pa.int64(), st.sampled_from([0, -1, 2**53 + 1, 2**63 - 1])),
    "large": (pa.uint64(), st.sampled_from([0, 2**64 - 1])),
    "share": (pa.float64(), st.sampled_from([0.5, -0.0, _NAN, float("inf"), float("-inf"), 5e-324])),
    "at": (
        pa.timestamp("us", "UTC"),
        st.sampled_from([dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, dt.UTC)]),
    ),
    "größe": (pa.string(), cells()),
    "raw": (pa.binary(), st.sampled_from([b"", b"\xff\x00", b"text"])),
    "tags": (pa.list_(pa.string()), st.sampled_from([[], ["a,b", None, "\r"]])),
    "doc": (pa.struct([("a", pa.int64())]), st.sampled_from([{"a": 1}, {"a": None}])),
}


@st.composite
def parquet_tables(draw: Any) -> OddTable:
    """Return Parquet files."""
    names = draw(st.lists(st.sampled_from(list(_COLUMNS)), max_size=4, unique=True))
    columns = draw(st.permutations([ID, TEXT, *names]))
    whole_ids = draw(st.booleans())
    rows: list[dict[str, Any]] = []
    records: list[Record] = []
    for place in range(draw(st.integers(1, 9))):
        row = {name: draw(st.none() | _COLUMNS[name][1]) if name in names else None for name in columns}
        row[ID] = 70 + place if whole_ids else draw(ids(place))
        row[TEXT] = draw(asked_texts())
        odd = "plain" if not place or len(records) > 7 else draw(st.sampled_from(["plain"] * 6 + ["text", "id", "again"]))
        if odd == "text":
            row[TEXT] = draw(st.sampled_from([None, "", "\r\n"]))
        elif odd == "id":
            row[ID] = None
        elif odd == "again":
            row[ID] = rows[0][ID]
        rows.append(row)
        fate = Fate.ASKED if odd == "plain" else Fate.TOLD
        records.append(Record(fate, odd, row if odd == "plain" else {}, place + 1))
    kinds = {ID: pa.int64() if whole_ids else pa.string(), TEXT: pa.string()} | {n: _COLUMNS[n][0] for n in names}
    schema = pa.schema([(name, kinds[name]) for name in columns])
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), file, row_group_size=draw(st.sampled_from([1, 3, 1_000])))
    return OddTable("odd.parquet", file.getvalue(), columns, records)
