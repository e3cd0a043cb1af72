"""Forms of JSON that are not an object a line: read where a line is an element of an array, otherwise described."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

ARRAY_FORM: Final = "is a JSON array; write one object a line, e.g. with jq -c '.[]'"
_OPEN_LINE: Final = re.compile(rb'\{\s*(?:"((?:[^"\\]|\\.)*)"\s*:\s*(\[?\s*\{?|\{?))?')
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_array_of_lines(sample: bytes) -> bool:
    """Return True if each line is an element of an array: ``[``, then an object and a comma on each line, then ``]``.

    Written so by ``mongoexport --jsonArray`` and in the dumps of Wikidata
    (https://www.wikidata.org/wiki/Wikidata:Database_download#JSON_dumps_(recommended)).
    """
    lines = [line for line in re.split(rb"[\r\n]+", sample.removeprefix(b"\xef\xbb\xbf")) if line.strip()][:3]
    if len(lines) < 2 or not lines[0].lstrip().startswith(b"["):
        return False
    first = element_of(lines[0]) or element_of(lines[1])
    return type(_value(first)) is dict


def element_of(line: bytes) -> bytes:
    """Return a line of an array without the brackets and commas around its object; empty if nothing is left."""
    line = line.strip()
    if not line.startswith(b"{"):
        line = line.lstrip(b"[,").lstrip()
    if not line.endswith(b"}"):
        line = line.rstrip(b"],").rstrip()
    return line


def closes_array(line: bytes) -> bool:
    """Return whether an array may end with this line."""
    return line.rstrip().endswith(b"]")


def wrong_json(sample: bytes, cut: bool) -> str:
    """Return a description of JSON that is not an object a line, with a way out; empty if there is nothing to say.

    ``cut``: the file goes on after the sample.
    """
    lines = [line.strip() for line in sample.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].startswith(b"["):
        return "is empty: its JSON array has no row" if not cut and _value(b"".join(lines)) == [] else ARRAY_FORM
    if len(lines) > 1 or cut:
        opened = _OPEN_LINE.fullmatch(lines[0])
        if opened is None or type(_value(lines[0])) is dict:
            return ""
        inner = f".{_key(opened[1].decode(errors='replace'))}[]" if opened[2] and b"[" in opened[2] else "."
        return f"is JSON laid out over several lines; write one object a line, e.g. with jq -c '{inner}'"
    found = _value(lines[0])
    if type(found) is dict and _are_columns(list(found.values())):
        return f"holds columns, not rows; write one object a line, e.g. with {_rows_of_columns(found)}"
    return ""


def way_to_lines(sample: bytes) -> str:
    """Return how to write the rows of a file, whose one line holds them in a list, an object a line; otherwise empty.
    """
    lines = sample.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    found = _value(lines[0]) if not any(line.strip() for line in lines[1:]) else None
    if type(found) is not dict:
        return ""
    name = next((name for name, value in found.items() if type(value) is list and value and type(value[0]) is dict), "")
    return f"write one object a line, e.g. with jq -c '.{_key(name)}[]'" if name else ""


def _are_columns(values: list[Any]) -> bool:
    """Return True if there are several values, all lists of one length over 1, or all objects of the same keys over 1.
    """
    first = values[0] if len(values) > 1 else None
    if type(first) is list:
        return len(first) > 1 and all(type(each) is list and len(each) == len(first) for each in values)
    return type(first) is dict and len(first) > 1 and all(
        type(each) is dict and each.keys() == first.keys() for each in values
    )  # fmt: skip


def _rows_of_columns(found: dict[str, Any]) -> str:
    return f"jq -c '(.{_key(next(iter(found)))} | keys[]) as $i | map_values(.[$i])'"


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else f"[{msgspec.json.encode(name).decode()}]"


def _value(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
