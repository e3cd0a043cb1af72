"""Sizes of all rows, collected while the rows are checked; a few bytes a row."""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from cortex.calls.request import question_hash
from cortex.planning import InputRows
from cortex.programs.batch import Batch
from cortex.programs.embed import BYTES_MAX, Embed
from cortex.programs.table import Table
from cortex.state.events import Row
from policies.estimates.tokens import body_size, body_tokens_bound, tokens_bound

_encode = msgspec.json.Encoder().encode
_MOST: Final = (1 << 32) - 1
SPECIAL_TOKENS: Final = 2
"""Tokens that an embedding model adds to a text: those of its begin and its end, of models that follow BERT
(https://huggingface.co/docs/tokenizers/pipeline, "Post-Processing")."""


class RowSizes:
    """Collector of row sizes (a ``actors.files.sources.row_source.RowObserver``)."""

    def __init__(self, program: Batch | Table, model: str, output_tokens_max: int, endpoint: str = "") -> None:
        """``output_tokens_max``: default of rows that state none. ``endpoint``: if given, hashes of the questions are
        kept too."""
        self._program = program
        self._model = model
        self._output_tokens_max = output_tokens_max
        self._endpoint = endpoint
        self.begin()

    def begin(self) -> None:
        """Start from the first row."""
        self._sizes, self._bounds, self._outputs = array("I"), array("I"), array("I")
        self._bodies = array("I")
        """Bytes of each row, by which rows are put together, of a program that asks for vectors."""
        self._text_bytes = 0
        self._frame: tuple[int, int] | None = None
        self.questions: list[bytes] = []
        """Hashes of the questions (``cortex.calls.request.question_hash``), if an endpoint was given."""

    def row(self, row: Row) -> None:
        """Add a row."""
        output = row.output_tokens_max or self._output_tokens_max
        program = self._program
        if type(program) is Embed:
            text = program.asked(row.body).encode("utf-8", "replace")
            size, bound, output = len(text), tokens_bound(text, SPECIAL_TOKENS), 0
            self._bodies.append(len(row.body))
        elif type(program) is Table and program.prompt and not self._endpoint:
            size, bound = self._framed(program, row.body, output)
        else:
            body = row.body if type(program) is Batch else program.request(row.body, self._model, output)  # type: ignore[union-attr]
            size, bound = body_size(body), body_tokens_bound(body)
            if self._endpoint:
                self.questions.append(question_hash(self._endpoint, body, row.key))
        self._sizes.append(size if size < _MOST else _MOST)
        self._bounds.append(bound if bound < _MOST else _MOST)
        self._outputs.append(output)
        self._text_bytes += len(row.body)

    def _framed(self, program: Table, row: bytes, output: int) -> tuple[int, int]:
        """Return size and bound of a table row. Requests differ only in their text, so the rest is measured once."""
        text = _encode(program.asked(row))
        size, bound = len(text), tokens_bound(text, 0)
        if self._frame is None:
            body = program.request(row, self._model, output)
            self._frame = body_size(body) - size, body_tokens_bound(body) - bound
        return self._frame[0] + size, self._frame[1] + bound

    def rows(self, known: frozenset[int] = frozenset()) -> InputRows:
        """Return all sizes. ``known``: places of rows whose replies are reused."""
        return InputRows(
            sizes=self._sizes, bounds=self._bounds, outputs=self._outputs, text_bytes=self._text_bytes, known=known
        )

    def requests(self) -> InputRows:
        """Return the requests of a job that asks for vectors, as rows of a plan, as ``cortex.programs.embed`` puts
        them together."""
        program = self._program
        assert isinstance(program, Embed)
        sizes, bounds = array("Q"), array("Q")
        block = count = body_bytes = 0
        for place, (size, bound, body) in enumerate(zip(self._sizes, self._bounds, self._bodies, strict=True)):
            if count and place // program.rows_max == block and body_bytes + body <= BYTES_MAX:
                sizes[-1], bounds[-1] = sizes[-1] + size, bounds[-1] + bound
                body_bytes, count = body_bytes + body, count + 1
            else:
                sizes.append(size)
                bounds.append(bound)
                block, count, body_bytes = place // program.rows_max, 1, body
        none = array("I", bytes(4 * len(sizes)))
        return InputRows(sizes=sizes, bounds=bounds, outputs=none, text_bytes=self._text_bytes)
