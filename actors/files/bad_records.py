"""Records of an input that are no rows, and the file that lists them: number, byte offset, reason and text of each.

The list is written by the check of the whole input, from its first line to its last, and takes the place of an earlier
one in one step. It depends on the input alone, so that a resumed job has the same list.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec

from actors.files.errors import SinkError
from actors.files.local.new_files import opened_new

BOM: Final = b"\xef\xbb\xbf"
RAW_BYTES_MAX: Final = 65_536
"""Bytes of a bad record that are listed. The byte offset and the size tell where the rest is."""
HELD_BYTES_MAX: Final = 1 << 20
"""Bytes of a list that are held in memory until it is put in place."""
SUFFIX: Final = ".bad.jsonl"

_FIRST_VALUE: Final = re.compile(
    rb'\s*\{\s*("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+)(?=\s*[,}])'
)
"""First key and value of a JSON object, a text or a whole number."""
_encode: Final = msgspec.json.Encoder().encode


class BadRecord:
    """Piece that is not a row, with the reason, and its cells as far as they are known."""

    def __init__(self, text: str, cells: list[str]) -> None:
        self.message = text
        self.cells = cells


class RawRecord(msgspec.Struct, frozen=True):
    """Bytes of a record. ``offset``: its first byte, in bytes of the text after decompression, as UTF-8; None for a
    form that is no text. ``text``: at most ``RAW_BYTES_MAX`` bytes.
    """

    offset: int | None
    size: int
    text: bytes

    @classmethod
    def of(cls, offset: int | None, size: int, text: bytes) -> RawRecord:
        """Return the record, its text cut."""
        return cls(offset, size, text[:RAW_BYTES_MAX])


class ListedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of the list. The text is that of the record without its line end."""

    reason: str
    line: int = 0
    """Number of the record's first line, from 1. 0: the input has no lines."""
    row: int = 0
    """Number of the record in an input without lines, from 1."""
    id: str | None = None
    """Id of the record, where it can be read."""
    offset: int | None = None
    """First byte of the record."""
    size: int = 0
    """Bytes of the record, with its line end."""
    text: str | None = None
    base64: str | None = None
    """Bytes of a text that is not UTF-8; ``text`` then has U+FFFD in their places."""
    cut: bool = False
    """True if the text is longer than what is listed."""


def listed(noun: str, number: int, reason: str, id: str | None, raw: RawRecord) -> ListedRecord:  # noqa: A002
    """Return a bad record as a line of the list."""
    text, cut = raw.text, raw.size > len(raw.text)
    coded = None
    if not cut:
        text = text.removesuffix(b"\n").removesuffix(b"\r")
    try:
        shown = text.decode()
    except UnicodeDecodeError as error:
        shown = text.decode(errors="replace")
        if not cut or error.start < len(text) - 4:  # not a character that the cut has split
            coded = base64.b64encode(text).decode()
    place = {"row": number} if noun == "row" else {"line": number}
    return ListedRecord(
        reason=reason, id=id, offset=raw.offset, size=raw.size, text=shown, base64=coded, cut=cut, **place
    )


def id_in_line(line: bytes, name: str) -> str | None:
    """Return the id in a line that is no JSON, if it is the first value of an object; None otherwise."""
    found = _FIRST_VALUE.match(line[:RAW_BYTES_MAX])
    try:
        if found is None or msgspec.json.decode(found[1]) != name:
            return None
        value = msgspec.json.decode(found[2])
    except ValueError:
        return None
    return str(value) if type(value) in (str, int) and value != "" else None


class BadRecordObserver(Protocol):
    """Observer of the bad records that the check of an input finds."""

    def begin(self) -> None:
        """Discard all earlier records: the input is read from its start."""

    def add(self, record: ListedRecord) -> None:
        """Receive the next bad record, in the order of the input."""

    def discard(self) -> None:
        """Discard all records: the input cannot be used, or is not used."""


class BadRecordFile:
    """File of bad records, a JSON object a line. Without a bad record there is none, unless ``always``.

    The records wait in a temporary file without a name, of which a kill leaves nothing, until ``put``.

    ``text``: whether the records' text is listed. ``overwrite`` permits to replace a file that is no such list.
    ``copy``: file of a copy of the list, from which it can be restored without the input; None: no copy is made.
    ``movable``: whether the command has an option for another file.
    """

    def __init__(
        self, path: Path, *, always: bool = False, overwrite: bool = False, text: bool = True,
        copy: Path | None = None, movable: bool = True,
    ) -> None:  # fmt: skip
        self.path = path
        self._copy = copy
        self._movable = movable
        self._always = always
        self._overwrite = overwrite
        self._text = text
        self._file: IO[bytes] | None = None

    def begin(self) -> None:
        """Discard all earlier records. Raises ``SinkError`` if the file is something else than such a list."""
        self.discard()
        if not self._overwrite and self.path.exists() and not is_list(self.path):
            ways = "give --bad FILE, or --overwrite" if self._movable else "move it away, or give --overwrite"
            raise SinkError(f"{self.path} exists and is no list of bad lines: {ways}")

    def add(self, record: ListedRecord) -> None:
        """Write the next record. Raises ``SinkError``."""
        if not self._text:
            record = msgspec.structs.replace(record, text=None, base64=None, id=None)
        try:
            if self._file is None:
                self._file = tempfile.SpooledTemporaryFile(HELD_BYTES_MAX, dir=str(self.path.parent))  # noqa: SIM115
            self._file.write(_encode(record) + b"\n")
        except OSError as error:
            raise self._failed(error) from None

    def put(self, begins: bool = True) -> None:
        """Put the list in place of that of an earlier check, or remove that. Raises ``SinkError``.

        ``begins``: False for a job that does not begin, of which no copy is kept.
        """
        try:
            self._put(self.path, self._always)
            if begins and self._copy is not None:
                self._put(self._copy, self._always)
        except OSError as error:
            raise self._failed(error) from None
        finally:
            self.discard()

    def _put(self, path: Path, always: bool) -> None:
        if self._file is None and not always:
            if is_list(path):
                path.unlink(missing_ok=True)
            return
        if path == self._copy:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replaced(path) as whole:
            if self._file is not None:
                self._file.seek(0)
                shutil.copyfileobj(self._file, whole)

    def restore(self) -> bool:
        """Write the list from its copy if it is gone. Return whether it was written. Raises ``SinkError``."""
        if self._copy is None or self.path.exists() or not self._copy.is_file():
            return False
        try:
            with self._copy.open("rb") as copy, replaced(self.path) as whole:
                shutil.copyfileobj(copy, whole)
        except OSError as error:
            raise self._failed(error) from None
        return True

    def discard(self) -> None:
        """Discard all records; the list of an earlier check stays."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def _failed(self, error: OSError) -> SinkError:
        self.discard()
        way = ": give --bad FILE in another folder" if self._movable else ""
        return SinkError(f"{self.path} cannot be written: {error.strerror or error}{way}")


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a file whose content takes the place of ``path`` when the block ends. Raises ``OSError``."""
    part = path.with_name(f".{path.name}.part")
    try:
        with os.fdopen(opened_new(part), "wb") as whole:
            yield whole
            whole.flush()
            os.fsync(whole.fileno())
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


class BadRecordList:
    """Bad records in memory."""

    def __init__(self) -> None:
        self.records: list[ListedRecord] = []

    def begin(self) -> None:
        """Discard all earlier records."""
        self.records = []

    def add(self, record: ListedRecord) -> None:
        """Keep the next record."""
        self.records.append(record)

    def discard(self) -> None:
        """Do nothing."""


def is_list(path: Path) -> bool:
    """Return True if a file is empty, or its first line is that of a list of bad records."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(8 * RAW_BYTES_MAX)
    try:
        return not first or "reason" in msgspec.json.decode(first, type=dict[str, Any])
    except ValueError:
        return False


def read_list(path: Path) -> Iterator[bytes]:
    """Yield the lines of a list, without their ends."""
    with path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\n")
