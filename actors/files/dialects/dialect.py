"""Dialect of an input file as the user gives it: encoding, delimiter, quoting, lines to skip, header."""

from __future__ import annotations

import codecs
from typing import Final

import msgspec

MINIMAL, NONE, BACKSLASH = "minimal", "none", "backslash"
QUOTINGS: Final = (MINIMAL, NONE, BACKSLASH)
"""Forms of quoting: a cell in double quotes, with a quote in it doubled (RFC 4180, section 2); quotes are text, as in
PostgreSQL's ``COPY`` and IMDb's files; a quote in a quoted cell follows a backslash, as Spark and MySQL write them."""
_DELIMITER_NAMES: Final = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
_NO_CHARACTER_SETS: Final = frozenset(
    {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7", "undefined"}
)
"""Python codecs of text that are no encodings of files."""


class DialectError(ValueError):
    """Option of a dialect that is invalid. The message is one line that begins with the option's flag."""


class Dialect(msgspec.Struct, frozen=True, omit_defaults=True):
    """Dialect of an input file. A default means that the property is detected."""

    encoding: str = ""
    """Python's name of the encoding."""
    delimiter: str = ""
    """Character between two cells of a CSV record."""
    quoting: str = ""
    """One of ``QUOTINGS``. Empty: ``minimal``, and a file whose quotes seem to be text is refused."""
    skip_lines: int = 0
    """Lines above the header (or above the first row, without a header) that are not read."""
    no_header: bool = False
    """True if the first record is a row; the columns are then named ``column_1`` and so on."""

    @property
    def of_csv(self) -> list[str]:
        """Flags of the properties given that only CSV has."""
        given = {
            "--delimiter": self.delimiter, "--quoting": self.quoting, "--skip-lines": self.skip_lines,
            "--no-header": self.no_header,
        }  # fmt: skip
        return [flag for flag, value in given.items() if value]

    def encoded(self) -> str:
        """Return the dialect as JSON; empty if nothing is given."""
        return "" if self == DETECTED else msgspec.json.encode(self).decode()


DETECTED: Final = Dialect()
"""Dialect of which nothing is given."""


def decoded(text: str) -> Dialect:
    """Return the dialect that ``Dialect.encoded`` wrote."""
    return msgspec.json.decode(text, type=Dialect) if text else DETECTED


def dialect_of(
    encoding: str = "", delimiter: str = "", quoting: str = "", skip_lines: int = 0, no_header: bool = False
) -> Dialect:
    """Return the dialect that the options describe. Raises ``DialectError``."""
    if quoting and quoting not in QUOTINGS:
        raise DialectError(f"--quoting {quoting!r}: give {', '.join(QUOTINGS[:-1])} or {QUOTINGS[-1]}")
    if skip_lines < 0:
        raise DialectError(f"--skip-lines {skip_lines}: give 0 or more")
    return Dialect(_encoding(encoding), _delimiter(delimiter), quoting, skip_lines, no_header)


def _encoding(name: str) -> str:
    if not name:
        return ""
    what = "is unknown"
    try:
        found = codecs.lookup(name).name
        what = "is no encoding of text files"
        "".encode(found)  # a codec from bytes to bytes has no such use
        codecs.getincrementaldecoder(found)
    except (LookupError, ValueError):
        found = ""
    if not found or found in _NO_CHARACTER_SETS:
        ways = "leave it out to have the encoding found, or give a name like cp1252, utf-16, cp932 or gb18030"
        raise DialectError(f"--encoding {name!r} {what}: {ways}")
    return found


def _delimiter(text: str) -> str:
    found = _DELIMITER_NAMES.get(text.lower(), text)
    if found and (len(found) != 1 or found in '"\r\n\ufeff'):
        raise DialectError(f"--delimiter {text!r}: give one character, or tab")
    return found
