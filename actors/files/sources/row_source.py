"""Rows of a job: the whole input is checked before the first paid call, then read a window at a time.

A source is a file that yields pieces in order (a line, a record of a table) and a function that makes a row of a piece.
The check reads the input once, or twice if names may be duplicates. It holds no rows, only eight bytes a name and the
first ten bad lines.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import msgspec

from actors.files.bad_records import BOM, BadRecordObserver, ListedRecord, RawRecord, id_in_line, listed
from actors.files.batch_request import InvalidRow, RowRules
from actors.files.chat_lines.line import LOOKED_AT, ChatLineRules, OpenAILineRules, is_chat_line, url_of
from actors.files.chat_lines.other_lines import EmbeddingsLineRules, ResponsesLineRules
from actors.files.dialects.dialect import DETECTED, Dialect
from actors.files.duplicates import SUSPECTS_MAX, FirstOccurrences, HashBuckets, TooManyDuplicates
from actors.files.errors import SourceError
from actors.files.format_hints import ARRAY, HEAD_BYTES, wrong_file, wrong_form
from actors.files.line_reader import InputFile, LineReader
from cortex.state.events import Row
from cortex.values.chat_form.request import CHAT, EMBEDDINGS, RESPONSES
from cortex.values.display import printable

__all__ = ["BatchSource", "InputCheck", "InputProblem", "RowSource", "SourceError", "SourceWindow"]

PROBLEMS_MAX: Final = 10
"""Bad lines that are reported in full, unless a source says otherwise."""
UNREADABLE_MAX: Final = 3
"""Bad lines that are reported where an input is not accepted for them."""
MODELS_MAX: Final = 100
"""Different models that are reported."""
WINDOW_BYTES_MAX: Final = 8_000_000
"""Bytes of rows after which a window ends, so that it takes bounded memory and a bounded part of the journal."""


class SourceWindow(msgspec.Struct, frozen=True):
    """Consecutive rows of a source."""

    rows: tuple[Row, ...]
    position: int
    """Position to continue reading at: bytes of the source after decompression, or rows if the source is not text."""
    ended: bool


class InputProblem(msgspec.Struct, frozen=True):
    """Bad line of the input: its number, from 1, and a line of text with the error and its correction."""

    line: int
    message: str


class InputCheck(msgspec.Struct, frozen=True):
    """Result of the check of a whole input."""

    rows: int
    """Rows that `read` will return. Each gets a result line."""
    refused: int
    """Rows among them that are not sent: their result line says why."""
    problems: tuple[InputProblem, ...]
    """First bad lines, refused and unreadable: ``RowSource.problems_max`` of them."""
    problems_more: int
    """Number of further bad lines."""
    unreadable: int
    """Lines besides the rows, which can have no result line: no JSON, no custom_id, or a custom_id of an earlier
    line."""
    size_bytes: int
    """Bytes after decompression."""
    digest: str
    """Digest of the whole content after decompression. A different digest means that the source has changed."""
    models: tuple[str, ...] = ()
    """Models that the rows name, in order of first appearance; at most a hundred."""
    noun: str = "line"
    """Unit that ``InputProblem.line`` counts."""
    unreadable_first: tuple[InputProblem, ...] = ()
    """First three lines of those that `unreadable` counts."""


class InputReader(Protocol):
    """Reader of an input, one piece at a time."""

    position: int
    """Position of the next piece."""
    number: int
    """Number of the latest piece, as users count them (lines or rows, from 1)."""

    def next(self) -> Any:
        """Return the next piece; None after the last."""

    def at_end(self) -> bool:
        """Return True if no piece is left."""

    def raw(self, piece: Any) -> RawRecord:
        """Return place and bytes of the latest piece."""

    def close(self) -> None:
        """Release all that the reader holds."""


class RereadableInput(Protocol):
    """Input that can be read from any of its positions, any number of times."""

    name: str

    def open(self) -> None:
        """Open the input unless it is open."""

    def stamp(self) -> tuple[int, ...]:
        """Return a value that changes whenever the input is written to."""

    def reading(self, position: int = 0, digest: Any = None) -> InputReader:
        """Return a reader from a position on. ``digest`` is updated with everything read, from the start of the
        input.
        """

    def digest(self) -> str:
        """Return the digest of the whole content."""

    def refuse_encoding(self) -> None:
        """Raise ``SourceError`` if the input is surely text of another encoding than UTF-8."""

    def refuse_given(self, *, failed: bool, bad: bool) -> None:
        """Raise ``SourceError`` if the given encoding is surely wrong. ``failed``: the text is not what was expected;
        ``bad``: some of its lines are bad.
        """

    def close(self) -> None:
        """Close the input."""


class RowObserver(Protocol):
    """Observer of the rows that the check accepts."""

    def begin(self) -> None:
        """Discard all earlier rows: the input is read from its start."""

    def row(self, row: Row) -> None:
        """Receive the next accepted row, in the order of the input."""


class RowSource(ABC):
    """Source of the rows of an input. ``judge`` makes a row of a piece, or raises ``InvalidRow``."""

    noun = "line"
    wants = "request"
    named = "custom_id"
    """Name of the key that must differ between rows."""

    def __init__(self, file: RereadableInput) -> None:
        self._file = file
        self._checked: InputCheck | None = None
        self._doubled: array[int] = array("Q")
        self._stamp: tuple[int, ...] = ()
        self._reading: InputReader | None = None
        self.notice: RowObserver | None = None
        """Observer of the rows during the check; None: none."""
        self.problems_max = PROBLEMS_MAX
        """Bad lines that are reported in full."""
        self.bad: BadRecordObserver | None = None
        """Observer of the records that are no rows during the check; None: none."""

    # -- differences between sources -----------------------------------------------------------------------------------

    @abstractmethod
    def judge(self, piece: Any, number: int) -> Row | None:
        """Return the row in this piece; None if it is blank. Raises `InvalidRow`."""

    def begin(self, reading: InputReader) -> None:  # noqa: B027 - most sources check nothing
        """Check the start of a whole reading. Raises `SourceError` if the input is surely of another format."""

    def id_of(self, piece: Any) -> str | None:
        """Return the id in a piece that is no row; None if it cannot be read."""
        return None

    def asks(self, row: Row) -> str | None:
        """Return the model that a row names; None if all rows have the same."""
        return None

    def empty(self, position: int) -> str:
        """Return the error text for an input without rows; ``position`` is its size in bytes."""
        text = "holds nothing but blank lines" if position else "is empty"
        return f"{text}: give it one {self.wants} a {self.noun}"

    def unusable(self, survey: InputSurvey) -> str:
        """Return the reason why no row of the input can be sent; empty if there is nothing more to say."""
        return ""

    def models(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return the models that the rows use, given those ``found`` in the rows."""
        return found

    # -- reading -----------------------------------------------------------------------------------------------------

    def check(self) -> InputCheck:
        """Read and check the whole input; later calls return the same result.

        Raises `SourceError` if the input is missing, unreadable, empty, of another format, or without a single row.
        """
        if self._checked is None:
            try:
                self._checked, self._doubled = self._survey()
            except SourceError:
                if self.bad is not None:
                    self.bad.discard()
                self._file.refuse_given(failed=True, bad=True)
                raise
        return self._checked

    def _survey(self) -> tuple[InputCheck, array[int]]:
        """Read the whole input. Return its figures, and the positions of rows whose id an earlier row has."""
        self._file.open()
        self._stamp = self._file.stamp()
        survey = InputSurvey(self, self._file, None)
        if suspects := survey.suspects():
            survey = InputSurvey(self, self._file, FirstOccurrences(suspects))
        if survey.first_bad:
            self._file.refuse_encoding()
        checked = survey.result()
        self._file.refuse_given(failed=False, bad=checked.unreadable > 0)
        return checked, survey.doubled

    def seek(self, position: int) -> None:
        """Continue at a position that a window returned. In gzip everything before is read again and skipped.

        Checks the input first unless it was checked. Raises `SourceError` if the input is shorter.
        """
        self.check()
        self._let_go()
        self._reading = self._file.reading(position)

    def read(self, rows_max: int) -> SourceWindow:
        """Return the next rows, at most ``rows_max``, fewer if they are long. Pieces that are not rows are skipped.

        Raises as `check` and `seek` do, and if the input has changed since the check.
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
        """Return the reader in use; raise ``SourceError`` if the file's content has changed since the check."""
        if self._file.stamp() != self._stamp:
            stamp = self._file.stamp()
            if self._file.digest() != self.check().digest:
                raise SourceError(
                    f"{self._file.name} has changed since it was checked: stop writing to it, then start again"
                )
            self._stamp = stamp
            self.seek(self._reading.position if self._reading else 0)
        if self._reading is None:
            self.seek(0)
        assert self._reading is not None
        return self._reading

    def _let_go(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading = None

    def close(self) -> None:
        """Close the file. Bad records that were not put in place are discarded."""
        self._let_go()
        if self.bad is not None:
            self.bad.discard()
        self._file.close()


class BatchSource(RowSource):
    """Source of JSON Lines of requests, in the form of the Message Batches API or of OpenAI's batch files, from a file,
    standard input (`-`) or a pipe. The first line that is of one of them decides for the file.

    `model`, when given, replaces the rows' models; `output_tokens_max`, when given, bounds their `max_tokens` and is
    the default of rows without it. Input that can be read only once is first copied to the file `spool`; if an earlier
    run left a spool, an empty or closed standard input means that spool. `also_known` and `capped`: see `RowRules`.
    `dialect`: the encoding, if the user gives one. `canonical`: requests of chat completions become canonical ones,
    since the model is not asked over chat completions. `apis`: names of OpenAI's APIs besides chat completions over
    which lines may be asked; the first line of one of these, or of chat completions, decides for the file.
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
        dialect: Dialect = DETECTED,
        canonical: bool = True,
        apis: Collection[str] = (),
    ) -> None:
        self._lines = InputFile(path, spool, stdin, dialect)
        super().__init__(self._lines)
        given: dict[str, Any] = {"model": model, "output_tokens_max": output_tokens_max, "capped": capped}
        self._rules = RowRules(also_known=also_known, **given)
        self._openai_rules: dict[str, OpenAILineRules] = {
            CHAT: ChatLineRules(also_known=also_known, translated=canonical, **given),
            RESPONSES: ResponsesLineRules(**given), EMBEDDINGS: EmbeddingsLineRules(**given),
        }  # fmt: skip
        self._apis = {api for api in self._openai_rules if api == CHAT or api in apis}
        self._api: str | None = None

    def api(self) -> str:
        """Return the name of OpenAI's API in whose form the lines are; empty: they are in that of Message Batches.

        Raises `SourceError` if the file cannot be read.
        """
        if self._api is None:
            self._lines.open()
            reading, form, found = self._lines.lines(), cast(bool | None, None), ""
            while not found and form is not False and reading.number < LOOKED_AT:
                if (line := reading.next()) is None:
                    break
                form = is_chat_line(line.removeprefix(BOM)) if form is None else form
                url = url_of(line.removeprefix(BOM)) if form else ""
                found = next((api for api in self._apis if url in self._openai_rules[api].urls), "")
            self._api = found or (CHAT if form else "")
            if self._api:
                self._rules = self._openai_rules[self._api]
        return self._api

    def _survey(self) -> tuple[InputCheck, array[int]]:
        self.api()
        return super()._survey()

    def judge(self, piece: Any, number: int) -> Row | None:
        """Return the row in this line; None if it is blank. Raises `InvalidRow`."""
        line: bytes = piece.removeprefix(BOM)  # at the start, and wherever one file was appended to another
        if line.isspace() or not line:
            return None
        return self._rules.read(line)

    def id_of(self, piece: Any) -> str | None:
        """Return the ``custom_id`` in a line that is no row, if it can be read."""
        return id_in_line(piece.removeprefix(BOM), self.named)

    def begin(self, reading: InputReader) -> None:
        """Raise `SourceError` if the input is not text in UTF-8."""
        assert isinstance(reading, LineReader)
        if text := wrong_file(reading.head()):
            raise SourceError(f"{self._file.name} {text}")
        if reading.head().removeprefix(BOM).lstrip().startswith(b"["):
            raise SourceError(f"{self._file.name} {ARRAY}")

    def asks(self, row: Row) -> str | None:
        """Return the model that the request names; None if one was given for all rows."""
        return _model_of(row.body) if self._rules.model is None else None

    def models(self, found: tuple[str, ...]) -> tuple[str, ...]:
        """Return the model given for all rows, or else those of the rows."""
        return (self._rules.model,) if self._rules.model is not None else found

    def unusable(self, survey: InputSurvey) -> str:
        """Return a description of the input's format, if it is recognized."""
        line = survey.first_bad.removeprefix(BOM)
        rules = self._rules
        return rules.unusable(line) if isinstance(rules, OpenAILineRules) else wrong_form(line[:HEAD_BYTES])


def new_digest() -> hashlib.blake2b:
    """Return a new hash object for the digest of an input."""
    return hashlib.blake2b(digest_size=16)


class InputSurvey:
    """Check of a whole input in one reading. A first survey collects hashes of names; a second one knows the
    suspects.
    """

    def __init__(self, source: RowSource, file: RereadableInput, firsts: FirstOccurrences | None) -> None:
        self._source = source
        self._file = file
        self._firsts = firsts
        self._hashes = HashBuckets()
        self._problems: list[InputProblem] = []
        self._unreadable_first: list[InputProblem] = []
        self.first_bad: Any = b""
        self._models: dict[str, None] = {}
        self._rows = self._refused = self._unreadable = 0
        self.doubled: array[int] = array("Q")
        digest = new_digest()
        self._reading = file.reading(digest=digest)
        try:
            source.begin(self._reading)
            self._read()
        finally:
            self._reading.close()
        self._digest = digest.hexdigest()

    def _read(self) -> None:
        """Judge every piece; a row's model is collected if rows may have different models."""
        reading, source, firsts, add = self._reading, self._source, self._firsts, self._hashes.add
        judge, asks = source.judge, source.asks
        notice = source.notice
        if notice is not None:
            notice.begin()
        if source.bad is not None:
            source.bad.begin()
        row: Row | None
        while True:
            start = reading.position
            piece = reading.next()
            if piece is None:
                return
            row = None
            try:
                row = judge(piece, reading.number)
                if row is None:
                    continue
                if firsts is None:
                    add(row.key)
                elif first := firsts.line_of_first(row.key, reading.number):
                    self.doubled.append(start)
                    text = f"{source.named} {_named(row.key)} stands on {source.noun} {first} already: give another"
                    raise InvalidRow(text)
            except InvalidRow as bad:
                self._unreadable += 1
                self._report(piece, str(bad))
                if len(self._unreadable_first) < UNREADABLE_MAX:
                    self._unreadable_first.append(InputProblem(self._reading.number, printable(str(bad))))
                if source.bad is not None:
                    source.bad.add(self._listed(piece, str(bad), row))
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

    def _report(self, piece: Any, text: str) -> None:
        self.first_bad = self.first_bad or piece
        if len(self._problems) < self._source.problems_max:
            self._problems.append(InputProblem(self._reading.number, printable(text)))

    def _listed(self, piece: Any, text: str, row: Row | None) -> ListedRecord:
        """Return a bad record with all that is known of it. ``row``: the row of a piece that repeats an id."""
        reading, source = self._reading, self._source
        key = row.key if row is not None else source.id_of(piece)
        return listed(source.noun, reading.number, printable(text), key, reading.raw(piece))

    @property
    def first_problem(self) -> InputProblem:
        """First bad piece of an input that has any."""
        return self._problems[0]

    def suspects(self) -> frozenset[int]:
        """Return hashes of the names that may be duplicates. Raises `SourceError` if there are too many."""
        try:
            return self._hashes.repeated()
        except TooManyDuplicates:
            more = f"more than {SUSPECTS_MAX:,} {self._source.named}s"
            raise SourceError(f"{self._file.name}: {more} stand twice: give each row one of its own") from None

    def result(self) -> InputCheck:
        """Return the result of the check. Raises `SourceError` if no row can be used."""
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
        if (twice := len(self.doubled)) > 3 * self._rows:  # too many for a slip: this key does not identify rows
            text = f"{self._source.noun}s have the {self._source.named} of one before"
            raise SourceError(f"{name}: {twice:,} {text}: it must tell rows apart")
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
            unreadable_first=tuple(self._unreadable_first),
        )


class _Body(msgspec.Struct):
    model: str


_model_decoder: Final = msgspec.json.Decoder(_Body)


def _model_of(body: bytes) -> str:
    return _model_decoder.decode(body).model


def _named(key: str) -> str:
    return repr(key if len(key) <= 40 else key[:37] + "...")
