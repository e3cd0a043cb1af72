"""Results as other programs read them: the standard library, pandas, polars, DuckDB, pyarrow.

Each reader returns the rows by column, a text as it reads it. In CSV a missing value and an empty text are the same.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]
Read = Callable[[Path], Rows]
FIELD_MAX = 1 << 30
"""Bytes of a field of CSV: readers have smaller limits of their own, none of them that of the format."""


def _rows(records: Iterator[Any]) -> Rows:
    """Return records, of which the first one has the names, as rows."""
    names, *rest = [["" if cell is None else cell for cell in record] for record in records]
    return [dict(zip(names, record, strict=True)) for record in rest]


def _delimiter(path: Path) -> str:
    return "\t" if ".tsv" in path.name else ","


def by_csv(path: Path) -> Rows:
    """Read CSV by the standard library."""
    csv.field_size_limit(FIELD_MAX)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return _rows(iter(list(csv.reader(file, delimiter=_delimiter(path), strict=True))))


def csv_by_pandas(path: Path) -> Rows:
    """Read CSV by pandas, every cell as text."""
    import pandas

    options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "header": None, "skip_blank_lines": False}
    return _rows(iter(pandas.read_csv(path, sep=_delimiter(path), **options).values.tolist()))


def csv_by_polars(path: Path) -> Rows:
    """Read CSV by polars, every cell as text."""
    import polars

    options: dict[str, Any] = {"has_header": False, "infer_schema": False}
    return _rows(iter(polars.read_csv(path, separator=_delimiter(path), **options).rows()))


def csv_by_duckdb(path: Path) -> Rows:
    """Read CSV by DuckDB, every cell as text."""
    import duckdb

    options = f"header=false, all_varchar=true, delim='{_delimiter(path)}', quote='\"', escape='\"', auto_detect=false"
    names = list(range(len(by_csv_names(path))))
    columns = "{" + ", ".join(f"'c{each}': 'VARCHAR'" for each in names) + "}"
    query = f"FROM read_csv($1, {options}, columns={columns}, max_line_size={1 << 24})"
    with duckdb.connect() as database:
        return _rows(iter(database.execute(query, [str(path)]).fetchall()))


def by_csv_names(path: Path) -> list[str]:
    """Return the names of the columns."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return next(csv.reader(file, delimiter=_delimiter(path)))


def by_json(path: Path) -> Rows:
    """Read JSON Lines by the standard library; a line ends in LF alone."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in raw.split(b"\n") if line]


def json_by_polars(path: Path) -> Rows:
    """Read JSON Lines by polars."""
    import polars

    return list(polars.read_ndjson(path, infer_schema_length=None).to_dicts())


def json_by_pandas(path: Path) -> Rows:
    """Read JSON Lines by pandas."""
    import pandas

    frame = pandas.read_json(path, lines=True, dtype=False)
    return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))


def json_by_duckdb(path: Path) -> Rows:
    """Read the texts in JSON Lines by DuckDB."""
    import duckdb

    query = "SELECT json::VARCHAR FROM read_ndjson_objects($1, maximum_object_size=100000000)"
    with duckdb.connect() as database:
        return [json.loads(text) for (text,) in database.execute(query, [str(path)]).fetchall()]


def by_pyarrow(path: Path) -> Rows:
    """Read Parquet by pyarrow."""
    import pyarrow.parquet as pq

    return list(pq.read_table(path).to_pylist())


def parquet_by_polars(path: Path) -> Rows:
    """Read Parquet by polars."""
    import polars

    return list(polars.read_parquet(path).to_dicts())


def parquet_by_pandas(path: Path) -> Rows:
    """Read Parquet by pandas, with Arrow's types."""
    import pandas

    frame = pandas.read_parquet(path, dtype_backend="pyarrow")
    return [{name: None if value is pandas.NA else value for name, value in row.items()} for row in frame.to_dict("records")]


def parquet_by_duckdb(path: Path) -> Rows:
    """Read Parquet by DuckDB."""
    import duckdb
    import pyarrow.parquet as pq

    names = pq.read_schema(path).names  # DuckDB renames one of two that differ by case alone
    with duckdb.connect() as database:
        found = database.execute("FROM read_parquet($1)", [str(path)])
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


READERS: dict[str, list[Read]] = {
    "csv": [by_csv, csv_by_pandas, csv_by_polars, csv_by_duckdb],
    "jsonl": [by_json, json_by_pandas, json_by_polars, json_by_duckdb],
    "parquet": [by_pyarrow, parquet_by_pandas, parquet_by_polars, parquet_by_duckdb],
}
"""Readers by format of the file."""
TEXTS_ALONE = (json_by_pandas, json_by_polars)
"""Readers that guess types of other values of JSON: their texts are compared."""


BEYOND_FLOATS = (json_by_polars,)
"""Readers that refuse a file of JSON with the number 1e400."""


def form_of(path: Path) -> str:
    """Return the form of a file of results."""
    name = path.name.removesuffix(".gz")
    return {"tsv": "csv"}.get(found := name.rpartition(".")[2], found)
