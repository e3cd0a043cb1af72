"""The rows of a batch: checked whole before the first paid call, then read a window at a time.

The check reads the input once, or twice where names seem to stand twice; it holds no row, eight bytes a name, and the
first ten bad lines.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from actors.files.batch_input import BadLine, RowRules
from actors.files.doubled import SUSPECTS_MAX, Firsts, Hashes, TooManyDoubled
from actors.files.forms import HEAD_BYTES, wrong_file, wrong_form
from actors.files.lines import InputFile, Lines, SourceError
from cortex.events import Row

__all__ = ["BatchSource", "Check", "Problem", "SourceError", "Window"]

PROBLEMS_MAX: Final = 10
MODELS_MAX: Final = 100
WINDOW_BYTES_MAX: Final = 8_000_000
"""A window of long rows ends early, so that it stays a bounded piece of memory and of the journal."""

_BOM: Final = b"\xef\xbb\xbf"


class Window(msgspec.Struct, frozen=True):
    """Some rows of a source, in its order."""

    rows: tuple[Row, ...]
    position: int
    """Where reading goes on: bytes of the source, after decompression."""
    ended: bool


class Problem(msgspec.Struct, frozen=True):
    """A bad line of the input: its number, from 1 on, and one clear line that says what is wrong and the way out."""

    line: int
    said: str


class Check(msgspec.Struct, frozen=True):
    """What the whole input holds."""

    rows: int
    """Rows that `read` will give: every one of them gets a result line."""
    refused: int
    """Of these, rows that are not sent: their result line says why."""
    problems: tuple[Problem, ...]
    """The first ten bad lines, refused and unreadable."""
    problems_more: int
    unreadable: int
    """Lines beside the rows, that can have no result line: no JSON, no custom_id, a custom_id that stood before."""
    size_bytes: int
    """After decompression."""
    digest: str
    """Of the whole content after decompression: another one means that the source has changed."""
    models: tuple[str, ...] = ()
    """The models that its rows ask, as they first appear; at most a hundred."""


class BatchSource:
    """JSON Lines in the Message Batches request format, from a file, standard input (`-`) or a pipe.

    `model`, when given, replaces the rows' own; `output_tokens_max`, when given, bounds their `max_tokens` and stands
    in where there is none. What can be read only once is kept in the file `spool` first; where an earlier run kept it
    there already, an empty or closed standard input means that one. `also_known` names parameters beyond the SDK's.
    """

    def __init__(
        self,
        path: str,
        *,
        model: str | None,
        output_tokens_max: int | None,
        spool: Path,
        also_known: Collection[str] = (),
        stdin: BinaryIO | None = None,
    ) -> None:
        self._rules = RowRules(model=model, output_tokens_max=output_tokens_max, also_known=also_known)
        self._file = InputFile(path, spool, stdin)
        self._checked: Check | None = None
        self._doubled: array[int] = array("Q")
        self._stamp = (0, 0)
        self._lines: Lines | None = None

    def check(self) -> Check:
        """Read all of it. Raises `SourceError` where there is no sense in going on: not there, not readable, empty,
        of another form, without a single row."""
        if self._checked is None:
            self._file.open()
            self._stamp = self._file.stamp()
            survey = _Survey(self._file, self._rules, None)
            if suspects := survey.suspects():
                survey = _Survey(self._file, self._rules, Firsts(suspects))
            self._checked, self._doubled = survey.result(), survey.doubled
        return self._checked

    def seek(self, position: int) -> None:
        """Read on from here: a position that a window gave. In gzip all before is read again, and passed over.

        Checks the input first, where that was not done. Raises `SourceError` where the input is shorter.
        """
        self.check()
        self._lines = self._file.lines(position)

    def read(self, rows_max: int) -> Window:
        """The next rows, at most so many, fewer where they are long. Lines that can be no row are passed over.

        Raises as `check` and `seek` do, and where the input has changed since it was checked.
        """
        self.check()
        lines = self._current()
        doubled, next_doubled = self._doubled, bisect_left(self._doubled, lines.position)
        rows: list[Row] = []
        size = 0
        while len(rows) < rows_max and size < WINDOW_BYTES_MAX:
            start = lines.position
            line = lines.next()
            if line is None:
                break
            if next_doubled < len(doubled) and doubled[next_doubled] == start:
                next_doubled += 1
                continue
            size += len(line)
            try:
                row = _row(self._rules, line)
            except BadLine:
                continue
            if row is not None:
                rows.append(row)
        return Window(tuple(rows), lines.position, lines.at_end())

    def _current(self) -> Lines:
        """The reading that is under way, of a file that is still as it was when it was checked."""
        if self._file.stamp() != self._stamp:
            stamp = self._file.stamp()
            if _digest(self._file) != self.check().digest:
                raise SourceError(f"{self._file.name} has changed since it was checked: let it rest, then start again")
            self._stamp = stamp
            self.seek(self._lines.position if self._lines else 0)
        if self._lines is None:
            self.seek(0)
        assert self._lines is not None
        return self._lines

    def close(self) -> None:
        """Let go of the file."""
        self._lines = None
        self._file.close()


def _row(rules: RowRules, line: bytes) -> Row | None:
    """The row in this line; None where it is blank. Raises `BadLine`."""
    line = line.removeprefix(_BOM)  # at the beginning, and wherever one file was appended to another
    if line.isspace() or not line:
        return None
    return rules.read(line)


def _digest(file: InputFile) -> str:
    digest = _new_digest()
    lines = file.lines(digest=digest)
    while lines.next() is not None:
        pass
    return digest.hexdigest()


def _new_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class _Survey:
    """One reading of the whole input: the first looks for names that may stand twice, a second knows which do."""

    def __init__(self, file: InputFile, rules: RowRules, firsts: Firsts | None) -> None:
        self._file = file
        self._rules = rules
        self._firsts = firsts
        self._hashes = Hashes()
        self._problems: list[Problem] = []
        self._first_bad = b""
        self._models: dict[str, None] = {}
        self._rows = self._refused = self._unreadable = 0
        self.doubled: array[int] = array("Q")
        digest = _new_digest()
        self._lines = file.lines(digest=digest)
        self._refuse_other_files()
        self._read()
        self._digest = digest.hexdigest()

    def _refuse_other_files(self) -> None:
        if said := wrong_file(self._lines.head()):
            raise SourceError(f"{self._file.name} {said}")

    def _read(self) -> None:
        lines, rules, firsts, add = self._lines, self._rules, self._firsts, self._hashes.add
        while True:
            start = lines.position
            line = lines.next()
            if line is None:
                return
            try:
                row = _row(rules, line)
                if row is None:
                    continue
                if firsts is None:
                    add(row.key)
                elif first := firsts.line_of_first(row.key, lines.number):
                    self.doubled.append(start)
                    raise BadLine(f"custom_id {_named(row.key)} stands on line {first} already: give another")
            except BadLine as bad:
                self._unreadable += 1
                self._tell(line, str(bad))
                continue
            self._rows += 1
            if row.refusal:
                self._refused += 1
                self._tell(line, row.refusal)
            elif rules.model is None and len(self._models) < MODELS_MAX:
                self._models[_model_of(row.body)] = None

    def _tell(self, line: bytes, said: str) -> None:
        self._first_bad = self._first_bad or line.removeprefix(_BOM)[:HEAD_BYTES]
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(Problem(self._lines.number, said))

    def suspects(self) -> frozenset[int]:
        """Hashes of the names that may stand twice."""
        try:
            return self._hashes.repeated()
        except TooManyDoubled:
            raise SourceError(
                f"{self._file.name}: more than {SUSPECTS_MAX:,} custom_ids stand twice: give each row one of its own"
            ) from None

    def result(self) -> Check:
        """What was found. Raises `SourceError` where none of it can be used."""
        name = self._file.name
        if not self._rows + self._unreadable:
            empty = "holds nothing but blank lines" if self._lines.position else "is empty"
            raise SourceError(f"{name} {empty}: give it one request a line")
        if self._rows == self._refused:
            first = self._problems[0]
            if form := wrong_form(self._first_bad):
                raise SourceError(f"{name} {form}")
            if not self._rows:
                raise SourceError(f"{name}: no line of it is a row; line {first.line}: {first.said}")
        return Check(
            rows=self._rows,
            refused=self._refused,
            problems=tuple(self._problems),
            problems_more=self._refused + self._unreadable - len(self._problems),
            unreadable=self._unreadable,
            size_bytes=self._lines.position,
            digest=self._digest,
            models=(self._rules.model,) if self._rules.model is not None else tuple(self._models),
        )


class _Body(msgspec.Struct):
    model: str


_model_decoder: Final = msgspec.json.Decoder(_Body)


def _model_of(body: bytes) -> str:
    return _model_decoder.decode(body).model


def _named(key: str) -> str:
    return repr(key if len(key) <= 40 else key[:37] + "...")
