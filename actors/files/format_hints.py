"""Recognition of inputs in a wrong format that users commonly have, with a hint how to convert them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.files.batch_request import FORM

HEAD_BYTES: Final = 65_536
"""Bytes of a line that are examined to recognize its format."""

_MAGIC: Final = (
    (b"\x1f\x8b", "compressed with gzip: name it .gz, or pass it through gunzip -c"),
    (b"PK\x03\x04", "a zip archive or a spreadsheet: unpack it, or export it as JSON Lines"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: pass it through zstd -dc"),
    (b"\xfd7zXZ\x00", "compressed with xz: pass it through xz -dc"),
    (b"BZh", "compressed with bzip2: pass it through bzip2 -dc"),
    (b"PAR1", "a Parquet file: name it .parquet, and give --prompt"),
    (b"SQLite format 3\x00", "an SQLite database: export it as JSON Lines"),
    (b"%PDF-", "a PDF"),
)
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff", b'{\x00"\x00', b'\x00{\x00"', b"\x00\x00\xfe\xff")


def wrong_file(head: bytes) -> str:
    """Return a description of a file with this beginning if it is not text in UTF-8; otherwise empty."""
    if head.startswith(_UTF16):
        return "line 1 begins as UTF-16 or UTF-32 does: save the file as UTF-8, e.g. with iconv -f UTF-16 -t UTF-8"
    return next((f"is {text}" for magic, text in _MAGIC if head.startswith(magic)), "")


def wrong_form(line: bytes) -> str:
    """Return a description of an input with this first bad line, if its format is recognized; otherwise empty."""
    line = line[:HEAD_BYTES].strip()
    try:
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return _wrong_text(line)
    if type(found) is dict:
        return _wrong_object(found)
    return _ARRAY if type(found) is list else ""


_ARRAY: Final = f"is a JSON array; write one object a line, e.g. with jq -c '.[]': {FORM}"


def _wrong_object(found: dict[str, Any]) -> str:
    names = found.keys()
    if "params" in names:
        return ""
    if "body" in names and names & {"custom_id", "method", "url"}:
        return f"is in the OpenAI batch format; cortex wants {FORM} on each line"
    if "result" in names and "custom_id" in names:
        return "is a file of results, not of requests: give the input that it was made from"
    if type(found.get("requests")) is list:
        return "is the body of one Message Batches request; write its requests one a line, with jq -c '.requests[]'"
    if "recordId" in names or "modelInput" in names:
        return f"is in the Bedrock batch format; cortex wants {FORM} on each line"
    if "messages" in names:
        return f"holds bare requests; give each a name and put it under params: {FORM}"
    return ""


def _wrong_text(line: bytes) -> str:
    if line.startswith(b"["):
        return _ARRAY
    if line == b"{":
        return f"has its objects laid out over several lines; write one a line, e.g. with jq -c . : {FORM}"
    if line.startswith(b"{"):
        return ""
    for mark, name in ((b"<", "XML or HTML"), (b"---", "YAML")):
        if line.startswith(mark):
            return f"looks like {name}; cortex wants JSON Lines: {FORM}"
    if any(mark in line for mark in (b",", b"\t", b";")):
        return f"looks like CSV: give --prompt 'Label: {{{{column}}}}' to ask each row; requests are JSON Lines: {FORM}"
    return ""
