"""The sizes of all rows, taken while they are checked: what a plan is made of, a few bytes a row."""

from __future__ import annotations

from array import array
from typing import Final

from cortex.asking import question_hash
from cortex.events import Row
from cortex.plan import Rows
from cortex.programs.batch import Batch
from cortex.programs.table import Table
from policies.tokens import body_size, body_tokens_bound

_MOST: Final = (1 << 32) - 1


class Sizes:
    """Told of each row that can be sent (``actors.files.source.Notice``)."""

    def __init__(self, program: Batch | Table, model: str, output_tokens_max: int, endpoint: str = "") -> None:
        """``output_tokens_max``: of rows that state none. ``endpoint``: given, the questions are kept, too."""
        self._program = program
        self._model = model
        self._output_tokens_max = output_tokens_max
        self._endpoint = endpoint
        self.begin()

    def begin(self) -> None:
        """From the first row on."""
        self._sizes, self._bounds, self._outputs = array("I"), array("I"), array("I")
        self._text_bytes = 0
        self.questions: list[bytes] = []
        """Their hashes (``cortex.asking.question_hash``), where an endpoint was given."""

    def row(self, row: Row) -> None:
        """One more."""
        output = row.output_tokens_max or self._output_tokens_max
        body = row.body
        if isinstance(self._program, Table):
            body = self._program.request(body, self._model, output)
        self._sizes.append(min(body_size(body), _MOST))
        self._bounds.append(min(body_tokens_bound(body), _MOST))
        self._outputs.append(output)
        self._text_bytes += len(row.body)
        if self._endpoint:
            self.questions.append(question_hash(self._endpoint, body, row.key))

    def rows(self, known: frozenset[int] = frozenset()) -> Rows:
        """All of them. ``known``: places of those that nobody need pay for."""
        return Rows(
            sizes=self._sizes, bounds=self._bounds, outputs=self._outputs, text_bytes=self._text_bytes, known=known
        )
