"""Recognition of inputs in a wrong format that users commonly have, with a hint how to convert them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from actors.files.batch_request import FORM
from actors.files.dialects.json_form import ARRAY_FORM

HEAD_BYTES: Final = 65_536
"""Bytes of a line that are examined to recognize its format."""

_SPREADSHEET: Final = "save it as CSV UTF-8, or give pandas.read_excel(FILE) to cortex.batch"
_ARROW: Final = "give pyarrow.feather.read_table(FILE) to cortex.batch, or write it as Parquet"
_MAGIC: Final = (
    (0, b"\x1f\x8b", "compressed with gzip: name it .gz, or pass it through gunzip -c"),
    (30, b"mimetypeapplication/vnd.oasis.opendocument", f"an OpenDocument file: {_SPREADSHEET}"),
    (30, b"[Content_Types].xml", f"an Office file: {_SPREADSHEET}"),
    (0, b"PK\x03\x04", "a zip archive or a spreadsheet: unpack it, or export it as JSON Lines"),
    (0, b"\xd0\xcf\x11\xe0", f"an old Office file: {_SPREADSHEET}"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: pass it through zstd -dc"),
    (0, b"\xfd7zXZ\x00", "compressed with xz: pass it through xz -dc"),
    (4, b"1AY&SY", "compressed with bzip2: pass it through bzip2 -dc"),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4: pass it through lz4 -dc"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (0, b"Rar!", "a RAR archive: unpack it"),
    (257, b"ustar", "a tar archive: unpack it"),
    (0, b"PAR1", "a Parquet file: name it .parquet, and give --prompt"),
    (0, b"SQLite format 3\x00", "an SQLite database: export it, e.g. with sqlite3 -csv -header FILE 'SELECT * FROM t'"),
    (8, b"DUCK", "a DuckDB database: export a table, e.g. with COPY t TO 'rows.parquet'"),
    (0, b"ARROW1", f"an Arrow or Feather file: {_ARROW}"),
    (0, b"FEA1", f"a Feather file: {_ARROW}"),
    (0, b"\xff\xff\xff\xff", f"an Arrow stream: {_ARROW.replace('feather.read_table', 'ipc.open_stream')}"),
    (0, b"ORC", "an ORC file: give pyarrow.orc.read_table(FILE) to cortex.batch, or write it as Parquet"),
    (0, b"Obj\x01", "an Avro file: give fastavro.reader(open(FILE, 'rb')) to cortex.batch, or write it as Parquet"),
    (0, b"\x89HDF\r\n", "an HDF5 file: give pandas.read_hdf(FILE) to cortex.batch, or write it as Parquet"),
    (0, b"\x93NUMPY", "a NumPy file: give a frame of its columns to cortex.batch"),
    (0, b"%PDF-", "a PDF: extract its text first, a row for each document"),
)  # fmt: skip
"""Place and bytes by which a form is known, its name, and a way out.

Sources: https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format (``ARROW1``; a stream begins with the
continuation 0xFFFFFFFF), https://duckdb.org/docs/stable/internals/storage.html (``DUCK`` after a checksum),
https://orc.apache.org/specification/ORCv1/, https://avro.apache.org/docs/1.12.0/specification/#object-container-files,
https://www.sqlite.org/fileformat.html, https://docs.oasis-open.org/office/OpenDocument/v1.3/ part 2, section 3.3 (the
mimetype is the first entry of the archive)."""
_WORDS: Final = (b"ORC", b"FEA1", b"Rar!")
"""Marks that a text may begin with as well: a file without a control character is text."""


def wrong_file(head: bytes) -> str:
    """Return a description of a file with this beginning if it is not text; otherwise empty."""
    binary = any(byte < 9 for byte in head)
    found = next((text for place, magic, text in _MAGIC if head.startswith(magic, place)), "")
    if found and not binary and head.startswith(_WORDS):
        found = ""
    return f"is {found}" if found else ""


def misnamed(head: bytes) -> str:
    """Return what the beginning of a file that is named as CSV is, with a way out; empty if it may be CSV."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if line[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it is XML or HTML, perhaps the page of a proxy: fetch it again"
    try:
        found = msgspec.json.decode(line.splitlines()[0]) if line.startswith(b"{") else None
    except (ValueError, RecursionError):
        return ""
    return "it is JSON Lines: name it .jsonl" if type(found) is dict else ""


def wrong_form(line: bytes) -> str:
    """Return a description of an input with this first bad line, if its format is recognized; otherwise empty."""
    line = line[:HEAD_BYTES].strip()
    try:
        found = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return _wrong_text(line)
    if type(found) is dict:
        return _wrong_object(found)
    return ARRAY if type(found) is list else ""


ARRAY: Final = f"{ARRAY_FORM}: {FORM}"


def _wrong_object(found: dict[str, Any]) -> str:
    names = found.keys()
    if "params" in names:
        return ""
    if "body" in names and names & {"custom_id", "method", "url"}:
        return ""
    if ("result" in names or "response" in names) and "custom_id" in names:
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
        return ARRAY
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
