"""Odd JSON Lines: values of all kinds, lines that are no objects, numbers and texts that JSON has not."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

from hypothesis import strategies as st

from tests.support.odd_tables.table import ID, TEXT, Fate, OddTable, Record, asked_texts, cells, ids

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "count": st.sampled_from([0, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "share": st.sampled_from([0.5, -0.0, 1e-7, 1e300, 0.1, 5e-324, 12.0]),
    "is open": st.booleans(),
    "doc": st.sampled_from([{"a": [1, {"b": None}]}, {}, {"x": "ü\n\r\"'"}, {"": "\u2028"}]),
    "tags": st.sampled_from([[], ["a,b", ""], ["\r"]]),
    "größe": cells(),
}
"""Values of one kind by column, so that Parquet can hold them."""

_BROKEN = {
    "cut": '{"id": "c", "text": "a',
    "a list": '["x", 1]',
    "a number": "17",
    "two objects": '{"id": "x", "text": "a"} {"id": "y", "text": "b"}',
    "no id": '{"text": "a"}',
    "null id": '{"id": null, "text": "a"}',
    "an id with a part": '{"id": 1.5, "text": "a"}',
    "a true id": '{"id": true, "text": "a"}',
    "no text": '{"id": %s, "text": null}',
    "blank text": '{"id": %s, "text": " \\r\\n"}',
    "half a surrogate pair": '{"id": %s, "text": "a \\ud83d"}',
    "a column twice": '{"id": %s, "text": "a", "text": "b"}',
    "an id twice": '{"id": %s, "text": "a", "id": %s}',
    "half a pair elsewhere": '{"id": %s, "text": "a", "größe": "\\ude00 b"}',
}
"""Lines that are told. ``%s``: an id of the kind that the table has, since the row has a result line."""
NUMBER = "as written"
NUMBERS: dict[str, Any] = {
    "NaN": math.nan, "-Infinity": -math.inf, "1e400": math.inf, "0.10": 0.1, "12345678901234567.89": 12345678901234567.89,
}  # fmt: skip
"""Numbers as they are written, and their values as floats. Python's ``json`` writes the first two."""


@st.composite
def json_lines_tables(draw: Any) -> OddTable:
    """Return files of JSON Lines."""
    suffix = draw(st.sampled_from([".jsonl", ".ndjson", ".jsonl.gz"]))
    names = draw(st.lists(st.sampled_from(list(_VALUES)), max_size=3, unique=True))
    columns = draw(st.permutations([ID, TEXT, *names]))
    escaped, whole_ids, end = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(["\n", "\r\n"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-16"]))
    content, line = draw(st.sampled_from(["", "", "\ufeff"])) if encoding == "utf-8" else "", 1
    records: list[Record] = []
    again = 0  # lines that repeat an id: a column that most of them repeat is refused as no id
    broken = draw(st.lists(st.sampled_from(list(_BROKEN)), max_size=6, unique=True))
    for place in range(draw(st.integers(1, 6)) + len(broken)):
        if draw(st.integers(0, 5)) == 0:
            content, line = content + draw(st.sampled_from([end, "  " + end])), line + 1
        if place and broken and draw(st.booleans()):
            odd = broken.pop()
            named = 7_000 + place
            content += _BROKEN[odd].replace("%s", str(named) if whole_ids else f'"{named}"')
            records.append(Record(Fate.TOLD, odd, line=line))
        elif place and len(records) > 2 * again and draw(st.integers(0, 7)) == 0:
            again += 1
            content += json.dumps({ID: records[0].cells[ID], TEXT: "again"})
            records.append(Record(Fate.TOLD, "id again", line=line))
        else:
            row = {name: draw(_VALUES[name]) for name in columns if name in names and draw(st.integers(0, 4))}
            row |= {ID: 70 + place if whole_ids else draw(ids(place)), TEXT: draw(asked_texts())}
            row = {name: row[name] for name in columns if name in row}
            odd, written = "plain", json.dumps(row, ensure_ascii=escaped)
            if draw(st.integers(0, 5)) == 0:
                number = draw(st.sampled_from(list(NUMBERS)))
                odd = number
                written, row[NUMBER] = f'{written[:-1]}, "{NUMBER}": {number}}}', NUMBERS[number]
            content += written
            records.append(Record(Fate.ASKED, odd, row, line))
        content, line = content + end, line + 1
    if draw(st.booleans()):
        content = content.removesuffix(end)
    if all(TEXT not in each.cells for each in records):
        raise AssertionError("the first record is asked")
    raw = content.encode(encoding)
    columns = [*dict.fromkeys([*columns, NUMBER, "größe"])]  # those of a line that is told are columns as well
    return OddTable(f"odd{suffix}", gzip.compress(raw, mtime=0) if suffix.endswith(".gz") else raw, columns, records)
