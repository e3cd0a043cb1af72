"""Rows given from Python, stored as a file that keeps their types: Parquet for tables, else JSON Lines.

A column of pandas or polars whose cells have several types, or types that Arrow does not know, is stored as the JSON
form of each cell (``CELLS``), so that a bad cell makes one bad row.
"""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from actors.files.errors import SourceError
from actors.files.json_rows import cell_text
from actors.files.python_rows import RowWriter
from actors.files.row_values import shown
from actors.files.table_reader import CELLS, NO_PARQUET

_COMPARED: Final = (dict, list, datetime.datetime)
"""Classes of cells that Arrow may change."""


def store(rows: Any, file: Any, writer: RowWriter) -> None:
    """Write rows into a file. Raises ``SourceError`` for what is no table or cannot be read."""
    start = file.tell()
    try:
        _store(rows, file, writer)
    except (OSError, SourceError):
        raise
    except Exception as error:  # of a library, whose table computes its rows now
        raise SourceError(f"the rows cannot be read: {type(error).__name__}: {shown(error, 200)}") from error
    if file.tell() == start:
        raise SourceError("the table is empty: give one row at least")


def _store(rows: Any, file: Any, writer: RowWriter) -> None:
    kind = type(rows).__module__.partition(".")[0]
    if kind in ("pandas", "polars") and hasattr(rows, "to_frame"):
        raise SourceError("a single column is no table: give COLUMN.to_frame('text'), and {{text}} in the prompt")
    if kind == "polars":
        frame = rows.collect() if hasattr(rows, "collect") else rows
        _write_arrow(_from_polars(frame, writer), file, writer)
    elif kind == "pandas" and hasattr(rows, "columns"):
        _refuse_index(rows, writer)
        _write_arrow(_from_pandas(rows, writer), file, writer)
    elif hasattr(rows, "__arrow_c_stream__") or kind == "pyarrow":
        _write_arrow(rows, file, writer)
    elif isinstance(rows, Mapping):
        writer.write(_of_columns(rows), file)
    elif isinstance(rows, Iterable) and not isinstance(rows, (bytes, bytearray)):
        writer.write(rows, file)
    else:
        raise SourceError(f"give a table, a path or an iterable of dicts, not {shown(rows)}")


def arrow() -> Any:
    """Return pyarrow. Raises ``SourceError`` if it is not installed."""
    try:
        import pyarrow
    except ModuleNotFoundError:
        raise SourceError(NO_PARQUET.replace("or use CSV", "or give an iterable of dicts")) from None
    return pyarrow


def _from_pandas(frame: Any, writer: RowWriter) -> Any:
    pa = arrow()
    _refuse_twice(map(str, frame.columns))
    odd = [name for name in frame.columns if frame[name].dtype.kind == "O" and _is_changed(frame[name])]
    if not odd:
        with contextlib.suppress(pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return pa.Table.from_pandas(frame, preserve_index=False)
    whole = frame.copy(deep=False)
    for name in frame.columns:
        try:
            if name not in odd:
                pa.Table.from_pandas(frame[[name]], preserve_index=False)
                continue
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            odd.append(name)
        whole[name] = _cells(frame[name], str(name), writer)
    return _marked(pa.Table.from_pandas(whole, preserve_index=False), list(map(str, odd)))


def _is_changed(column: Any) -> bool:
    """Return whether Arrow would change cells of a column of objects.

    It makes a datetime a date where the first cell is a date, gives each dict the keys of all others, and one zone to
    all times.
    """
    found = column[column.notna()].tolist()
    types = set(map(type, found))
    if len(types) > 1:
        return True
    if types and issubclass(types.pop(), _COMPARED):
        pa = arrow()
        try:
            return bool(pa.array(found).to_pylist() != found)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return True
    return False


def _from_polars(frame: Any, writer: RowWriter) -> Any:
    pa = arrow()
    odd = [name for name in frame.columns if not _arrow_knows(frame[name])]
    if not odd:
        return frame.to_arrow()
    table = frame.drop(odd).to_arrow()
    for name in odd:
        table = table.append_column(name, pa.array(_cells(frame[name].to_list(), name, writer), pa.string()))
    return _marked(table.select(frame.columns), odd)


def _arrow_knows(column: Any) -> bool:
    """Return whether Arrow has the type of a column of polars: it has no objects and no whole numbers of 128 bits."""
    if str(column.dtype).startswith("Object"):
        return False
    try:
        column.head(0).to_frame().to_arrow()
    except arrow().ArrowException:
        return False
    return True


def _cells(column: Any, name: str, writer: RowWriter) -> list[str]:
    return [cell_text(each, partial(writer.value, name)) for each in column]


def _marked(table: Any, odd: list[str]) -> Any:
    fields = [field.with_metadata({CELLS: b"json"}) if field.name in odd else field for field in table.schema]
    return table.cast(arrow().schema(fields, table.schema.metadata))


def _refuse_index(frame: Any, writer: RowWriter) -> None:
    """Raise ``SourceError`` if the index of a DataFrame is named as a column that the prompt or the id needs."""
    columns = set(map(str, frame.columns))
    name = next((each for each in frame.index.names if each in writer.shown and each not in columns), None)
    if name is not None:
        raise SourceError(f"the table has no column {name!r}, but an index of that name: give frame.reset_index()")


def _refuse_twice(names: Iterable[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise SourceError(f"the table has two columns named {twice!r}: rename one")


def _write_arrow(table: Any, file: Any, writer: RowWriter) -> None:
    pa = arrow()
    import pyarrow.parquet as pq

    if hasattr(table, "to_reader"):
        table = table.to_reader()
    elif hasattr(table, "scanner"):
        table = table.scanner().to_reader()
    elif not isinstance(table, pa.RecordBatchReader):
        table = pa.RecordBatchReader.from_stream(table)
    _refuse_twice(table.schema.names)
    kept = _held(table.schema, writer)
    with pq.ParquetWriter(file, kept) as target:
        for some in _batches(table):
            target.write_batch(some if kept.names == some.schema.names else some.select(kept.names))


def _held(schema: Any, writer: RowWriter) -> Any:
    """Return the schema without columns that Parquet cannot hold. Raises ``SourceError`` if one is needed."""
    pa = arrow()
    import pyarrow.parquet as pq

    fields = []
    for field in schema:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
            fields.append(field)
        except (pa.ArrowException, TypeError, ValueError):
            if writer.needs(field.name):
                wrong = f"the table: column {field.name!r} is of type {field.type}, which Parquet cannot hold"
                raise SourceError(f"{wrong}: cast it, or leave the column out") from None
    return pa.schema(fields, schema.metadata)


def _batches(reader: Any) -> Iterator[Any]:
    """Yield the batches of a table. Raises ``SourceError`` if the reader raises an exception."""
    rows = 0
    try:
        for some in reader:
            yield some
            rows += some.num_rows
    except GeneratorExit:
        raise
    except Exception as error:
        text = f"the rows ended after row {rows} with {type(error).__name__}: {shown(error)}"
        raise SourceError(f"{text}: nothing of this call was asked") from error


def _of_columns(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name, values in columns.items():
        if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
            way_out = "give a list of values for each column, or a list of rows"
            raise SourceError(f"the rows are a dict with {shown(name)}: {shown(values)}: {way_out}")
    lists = {name: list(values) for name, values in columns.items()}
    if len({len(values) for values in lists.values()}) > 1:
        raise SourceError("the columns have different lengths: give all columns the same length")
    for values in zip(*lists.values(), strict=True):
        yield dict(zip(lists, values, strict=True))


__all__ = ["arrow", "store"]
