"""The rows of a job: checked whole before the first paid call, then read a window at a time.

A source is a file that gives pieces one after the other (a line, a record of a table) and a judgement of a piece. The
check reads the input once, or twice where names seem to stand twice; it holds no row, eight bytes a name, and the
first ten bad lines.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import msgspec

from actors.files.batch_request import InvalidRow, RowRules
from actors.files.duplicates import SUSPECTS_MAX, FirstOccurrences, HashBuckets, TooManyDuplicates
from actors.files.errors import SourceError
from actors.files.format_hints import HEAD_BYTES, wrong_file, wrong_form
from actors.files.line_reader import InputFile, LineReader
from cortex.state.events import Row

__all__ = ["BatchSource", "InputCheck", "InputProblem", "RowSource", "SourceError", "SourceWindow"]

PROBLEMS_MAX: Final = 10
MODELS_MAX: Final = 100
WINDOW_BYTES_MAX: Final = 8_000_000
"""A window of long rows ends early, so that it stays a bounded piece of memory and of the journal."""

BOM: Final = b"\xef\xbb\xbf"


class SourceWindow(msgspec.Struct, frozen=True):
    """Some rows of a source, in its order."""

    rows: tuple[Row, ...]
    position: int
    """Where reading goes on: bytes of the source after decompression, or rows where it is no text."""
    ended: bool


class InputProblem(msgspec.Struct, frozen=True):
    """A bad line of the input: its number, from 1 on, and one clear line that says what is wrong and the way out."""

    line: int
    message: str


class InputCheck(msgspec.Struct, frozen=True):
    """What the whole input holds."""

    rows: int
    """Rows that `read` will give: every one of them gets a result line."""
    refused: int
    """Of these, rows that are not sent: their result line says why."""
    problems: tuple[InputProblem, ...]
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
    noun: str = "line"
    """What ``InputProblem.line`` counts."""


class InputReader(Protocol):
    """One reading of an input, a piece at a time."""

    position: int
    """Where the next piece begins."""
    number: int
    """Which one the latest piece was, as people count them."""

    def next(self) -> Any:
        """The next piece; None after the last."""

    def at_end(self) -> bool:
        """Whether none is left."""


class RereadableInput(Protocol):
    """An input that can be read from any of its positions, as often as need be."""

    name: str

    def open(self) -> None:
        """Open it, once."""

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever somebody writes into it."""

    def reading(self, position: int = 0, digest: Any = None) -> InputReader:
        """Read it from a position on; ``digest`` is fed all that is read, from the beginning on."""

    def digest(self) -> str:
        """Of its whole content."""

    def close(self) -> None:
        """Let go of it."""


class RowObserver(Protocol):
    """Who is told of each row that the check finds fit to be sent."""

    def begin(self) -> None:
        """The input is read from its beginning: what was told before counts no more."""

    def row(self, row: Row) -> None:
        """One more, in the order of the input."""


class RowSource(ABC):
    """Rows of an input: ``judge`` makes a row of a piece, or raises ``InvalidRow``."""

    noun = "line"
    wants = "request"
    named = "custom_id"
    """What two rows may not share."""

    def __init__(self, file: RereadableInput) -> None:
        self._file = file
        self._checked: InputCheck | None = None
        self._doubled: array[int] = array("Q")
        self._stamp: tuple[int, ...] = ()
        self._reading: InputReader | None = None
        self.notice: RowObserver | None = None
        """Told of the rows while they are checked."""

    # -- what a kind of source says ----------------------------------------------------------------------------------

    @abstractmethod
    def judge(self, piece: Any, number: int) -> Row | None:
        """The row in this piece; None where it is blank. Raises `InvalidRow`."""

    def begin(self, reading: InputReader) -> None:  # noqa: B027 - most look at nothing
        """A whole reading begins: raises `SourceError` where what comes is surely something else."""

    def asks(self, row: Row) -> str | None:
        """The model that a row asks, where rows may ask several."""
        return None

    def empty(self, position: int) -> str:
        """What is said of an input without any row, of so many bytes."""
        said = "holds nothing but blank lines" if position else "is empty"
        return f"{said}: give it one {self.wants} a {self.noun}"

    def unusable(self, survey: InputSurvey) -> str:
        """Why none of it can be used, where no row of it can be sent; empty where that is all that can be said."""
        return ""

    def models(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """The models that are asked."""
        return found

    # -- reading -----------------------------------------------------------------------------------------------------

    def check(self) -> InputCheck:
        """Read all of it. Raises `SourceError` where there is no sense in going on: not there, not readable, empty,
        of another form, without a single row."""
        if self._checked is None:
            self._file.open()
            self._stamp = self._file.stamp()
            survey = InputSurvey(self, self._file, None)
            if suspects := survey.suspects():
                survey = InputSurvey(self, self._file, FirstOccurrences(suspects))
            self._checked, self._doubled = survey.result(), survey.doubled
        return self._checked

    def seek(self, position: int) -> None:
        """Read on from here: a position that a window gave. In gzip all before is read again, and passed over.

        Checks the input first, where that was not done. Raises `SourceError` where the input is shorter.
        """
        self.check()
        self._reading = self._file.reading(position)

    def read(self, rows_max: int) -> SourceWindow:
        """The next rows, at most so many, fewer where they are long. Pieces that can be no row are passed over.

        Raises as `check` and `seek` do, and where the input has changed since it was checked.
        """
        self.check()
        reading = self._current()
        doubled, next_doubled = self._doubled, bisect_left(self._doubled, reading.position)
        rows: list[Row] = []
        size = 0
        while len(rows) < rows_max and size < WINDOW_BYTES_MAX:
            start = reading.position
            piece = reading.next()
            if piece is None:
                break
            if next_doubled < len(doubled) and doubled[next_doubled] == start:
                next_doubled += 1
                continue
            if type(piece) is bytes:
                size += len(piece)
            try:
                row = self.judge(piece, reading.number)
            except InvalidRow:
                continue
            if row is not None:
                rows.append(row)
                if type(piece) is not bytes:
                    size += len(row.body)
        return SourceWindow(tuple(rows), reading.position, reading.at_end())

    def _current(self) -> InputReader:
        """The reading that is under way, of a file that is still as it was when it was checked."""
        if self._file.stamp() != self._stamp:
            stamp = self._file.stamp()
            if self._file.digest() != self.check().digest:
                raise SourceError(f"{self._file.name} has changed since it was checked: let it rest, then start again")
            self._stamp = stamp
            self.seek(self._reading.position if self._reading else 0)
        if self._reading is None:
            self.seek(0)
        assert self._reading is not None
        return self._reading

    def close(self) -> None:
        """Let go of the file."""
        self._reading = None
        self._file.close()


class BatchSource(RowSource):
    """JSON Lines in the Message Batches request format, from a file, standard input (`-`) or a pipe.

    `model`, when given, replaces the rows' own; `output_tokens_max`, when given, bounds their `max_tokens` and stands
    in where there is none. What can be read only once is kept in the file `spool` first; where an earlier run kept it
    there already, an empty or closed standard input means that one. `also_known` and `capped` as `RowRules` has them.
    """

    def __init__(
        self,
        path: str,
        *,
        model: str | None,
        output_tokens_max: int | None,
        spool: Path,
        also_known: Collection[str] = (),
        capped: bool = False,
        stdin: BinaryIO | None = None,
    ) -> None:
        super().__init__(InputFile(path, spool, stdin))
        self._rules = RowRules(model=model, output_tokens_max=output_tokens_max, also_known=also_known, capped=capped)

    def judge(self, piece: Any, number: int) -> Row | None:
        """The row in this line; None where it is blank. Raises `InvalidRow`."""
        line: bytes = piece.removeprefix(BOM)  # at the beginning, and wherever one file was appended to another
        if line.isspace() or not line:
            return None
        return self._rules.read(line)

    def begin(self, reading: InputReader) -> None:
        """Refuse what is no text in UTF-8."""
        assert isinstance(reading, LineReader)
        if said := wrong_file(reading.head()):
            raise SourceError(f"{self._file.name} {said}")

    def asks(self, row: Row) -> str | None:
        """The model that the request names, where none was given for all."""
        return _model_of(row.body) if self._rules.model is None else None

    def models(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """The one that was given, else those of the rows."""
        return (self._rules.model,) if self._rules.model is not None else found

    def unusable(self, survey: InputSurvey) -> str:
        """What its form is, where that can be told."""
        return wrong_form(survey.first_bad.removeprefix(BOM)[:HEAD_BYTES])


def new_digest() -> hashlib.blake2b:
    """The hash by which inputs are known."""
    return hashlib.blake2b(digest_size=16)


class InputSurvey:
    """One reading of the whole input: the first looks for names that may stand twice, a second knows which do."""

    def __init__(self, source: RowSource, file: RereadableInput, firsts: FirstOccurrences | None) -> None:
        self._source = source
        self._file = file
        self._firsts = firsts
        self._hashes = HashBuckets()
        self._problems: list[InputProblem] = []
        self.first_bad: Any = b""
        self._models: dict[str, None] = {}
        self._rows = self._refused = self._unreadable = 0
        self.doubled: array[int] = array("Q")
        digest = new_digest()
        self._reading = file.reading(digest=digest)
        source.begin(self._reading)
        self._read()
        self._digest = digest.hexdigest()

    def _read(self) -> None:
        """Judge every piece; a row's model is asked for where rows may have several."""
        reading, source, firsts, add = self._reading, self._source, self._firsts, self._hashes.add
        judge, asks = source.judge, source.asks
        notice = source.notice
        if notice is not None:
            notice.begin()
        while True:
            start = reading.position
            piece = reading.next()
            if piece is None:
                return
            try:
                row = judge(piece, reading.number)
                if row is None:
                    continue
                if firsts is None:
                    add(row.key)
                elif first := firsts.line_of_first(row.key, reading.number):
                    self.doubled.append(start)
                    said = f"{source.named} {_named(row.key)} stands on {source.noun} {first} already: give another"
                    raise InvalidRow(said)
            except InvalidRow as bad:
                self._unreadable += 1
                self._report(piece, str(bad))
                continue
            self._rows += 1
            if row.refusal:
                self._refused += 1
                self._report(piece, row.refusal)
                continue
            if notice is not None:
                notice.row(row)
            if len(self._models) < MODELS_MAX and (model := asks(row)) is not None:
                self._models[model] = None

    def _report(self, piece: Any, said: str) -> None:
        self.first_bad = self.first_bad or piece
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(InputProblem(self._reading.number, said))

    @property
    def first_problem(self) -> InputProblem:
        """The first bad piece, of an input that has any."""
        return self._problems[0]

    def suspects(self) -> frozenset[int]:
        """Hashes of the names that may stand twice."""
        try:
            return self._hashes.repeated()
        except TooManyDuplicates:
            more = f"more than {SUSPECTS_MAX:,} {self._source.named}s"
            raise SourceError(f"{self._file.name}: {more} stand twice: give each row one of its own") from None

    def result(self) -> InputCheck:
        """What was found. Raises `SourceError` where none of it can be used."""
        name = self._file.name
        if not self._rows + self._unreadable:
            raise SourceError(f"{name} {self._source.empty(self._reading.position)}")
        if self._rows == self._refused:
            first = self._problems[0]
            if form := self._source.unusable(self):
                raise SourceError(f"{name} {form}")
            if not self._rows:
                noun = self._source.noun
                raise SourceError(f"{name}: no {noun} of it is a row; {noun} {first.line}: {first.message}")
        if (twice := len(self.doubled)) > 3 * self._rows:  # no slip of a few: it does not name them
            said = f"{self._source.noun}s have the {self._source.named} of one before"
            raise SourceError(f"{name}: {twice:,} {said}: it must tell rows apart")
        return InputCheck(
            rows=self._rows,
            refused=self._refused,
            problems=tuple(self._problems),
            problems_more=self._refused + self._unreadable - len(self._problems),
            unreadable=self._unreadable,
            size_bytes=self._reading.position,
            digest=self._digest,
            models=self._source.models(tuple(self._models)),
            noun=self._source.noun,
        )


class _Body(msgspec.Struct):
    model: str


_model_decoder: Final = msgspec.json.Decoder(_Body)


def _model_of(body: bytes) -> str:
    return _model_decoder.decode(body).model


def _named(key: str) -> str:
    return repr(key if len(key) <= 40 else key[:37] + "...")
