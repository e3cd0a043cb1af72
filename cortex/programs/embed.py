"""``embed``: a vector for every row of a table, several rows in one request.

A row is a goal, as in ``table``. Rows whose places in the input are in the same block of ``rows_max`` are asked
together once the block has been read, so that a job that begins anew asks the same questions: the first one of them is
the goal of the call, and the others wait until it has its outcome. Where a request is refused, its rows are asked again
in two halves, until the row that is refused stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

import msgspec

from cortex.programs.parts.embedding import embedding_request, is_vector, vectors_in
from cortex.programs.table import Table
from cortex.state.changes import Ask, Change, Checkpoint, Emit, Fail, Reopen, Resolve, Wait
from cortex.state.events import Row
from cortex.state.state import Goal, State, Status
from cortex.values.limits import Limits
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

VECTOR: Final = "embedding"
"""Name of the column of vectors, where the user gives no other."""
ROWS_MAX: Final = 64
"""Texts of a request at most, unless the user says otherwise. OpenAI takes 2,048
(https://platform.openai.com/docs/api-reference/embeddings/create), Gemini 100, text-embeddings-inference 32
(``--max-client-batch-size``); a kill loses the requests in flight, and more texts make none much cheaper."""
ROWS_LIMIT: Final = 2_048
"""Texts of a request at most, whatever the user says: the bound of OpenAI."""
BYTES_MAX: Final = 200_000
"""Bytes of UTF-8 of a request's texts at most, unless one text alone has more. A token has a byte at least, so a
request stays below the 300,000 tokens that OpenAI takes, and that a request may have (``REQUEST_TOKENS``)."""
REQUEST_TOKENS: Final = 300_000
"""Tokens of all texts of a request at most, at OpenAI; the bound of one text (8,192 there) is left to the server, whose
refusal costs nothing."""
WINDOW_ROWS_MAX: Final = 32_768
"""Rows of the source at most that are open at once, so that each call in flight has its rows: some 1 KB each."""
_SPLITS: Final = frozenset({FailureKind.REJECTED, FailureKind.TOO_LARGE})
"""Failures of a request that may be those of one of its rows."""


class Embed(Table, frozen=True, dict=True):
    """Ask for the vector of each row's text, which is the rendered ``prompt``."""

    name: ClassVar[str] = "embed"
    vectors: ClassVar[bool] = True

    rows_max: int = ROWS_MAX
    """Rows of a request at most."""
    dimensions: int | msgspec.UnsetType = msgspec.UNSET
    """Numbers of a vector, for models that can shorten theirs; unset: the model's own."""

    def read(self, k: State, row: Row) -> Iterable[Change]:
        """Yield the goal of a row. A row without text is refused: providers refuse an empty text."""
        if not row.refusal and not self.asked(row.body).strip():
            row = msgspec.structs.replace(row, refusal="the text of the row is empty")
        return super().read(k, row)

    def select(self, k: State) -> Iterable[Change | Ask]:  # type: ignore[override]
        """Yield a call for each group of open rows whose block has been read."""
        model = k.terms.route.model
        dimensions = None if self.dimensions is msgspec.UNSET else self.dimensions
        for group in self._groups(k):
            first, *others = group
            numbers = [goal.id for goal in others]
            if first.kept != numbers and (others or type(first.kept) is list):
                yield Checkpoint(first, numbers)
            for goal in others:
                if goal.status == Status.OPEN:
                    yield Wait(goal, None)
            texts = [self.asked(goal.value[1]) for goal in group]
            key, edition = first.value[0], first.value[4]
            sample = f"{key}\x1e{edition}" if edition else key
            yield Ask(first, body=embedding_request(texts, model, dimensions), output_tokens_max=1, sample=sample)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Emit the vector of each row. Rows that have ended by themselves meanwhile have their results."""
        vectors = vectors_in(reply.body)
        numbers = [goal.id, *(goal.kept if type(goal.kept) is list else ())]
        if len(vectors) != len(numbers) or not all(map(is_vector, vectors)):
            text = f"the reply has {len(vectors)} vectors for {len(numbers)} texts, or one that is none"
            yield from self._failed(k, goal, Failure(FailureKind.MALFORMED, text))
            return
        for number, vector in zip(numbers, vectors, strict=True):
            row = goal if number == goal.id else k.goals.get(number)
            if row is None or (row is not goal and row.status != Status.WAITING):
                continue
            key, body, _, place, _ = row.value
            yield Emit(self._line(key, body, None, None, vector), place if self.ordered else None)
            yield Resolve(row)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Ask the rows of a refused request again in halves; of any other failure emit the result of each row."""
        rows = self._rows(k, goal)
        if len(rows) > 1 and failure.kind in _SPLITS:
            half = (len(rows) + 1) // 2
            for row in rows:
                yield Checkpoint(row, half)
                yield Reopen(row)
            return
        yield from self._failed(k, goal, failure)

    def _failed(self, k: State, goal: Goal, failure: Failure) -> Iterator[Change]:
        for row in self._rows(k, goal):
            key, body, _, place, _ = row.value
            line = self._line(key, body, failure, None)
            yield Emit(line, place if self.ordered else None, failed=True, row=key, kind=failure.kind)
            yield Fail(row, failure.message, failure.kind)

    def _rows(self, k: State, goal: Goal) -> list[Goal]:
        """Return the rows of a goal's request that have no outcome yet, in their order."""
        waiting = (k.goals.get(number) for number in (goal.kept if type(goal.kept) is list else ()))
        return [goal, *(row for row in waiting if row is not None and row.status == Status.WAITING)]

    def _groups(self, k: State) -> Iterator[list[Goal]]:
        """Yield the rows of each request: a group that was formed before, as it was, and new ones."""
        group: list[Goal] = []
        block, most, size = -1, 0, 0
        for goal in k.open("row"):
            if type(goal.kept) is list:
                yield self._rows(k, goal)
                continue
            its_block, its_most = goal.value[3] // self.rows_max, goal.kept or self.rows_max
            if not k.source_ended and k.tally.rows_read < (its_block + 1) * self.rows_max:
                continue  # more of its block is to come
            its_size = len(goal.value[1])
            full = (its_block, its_most) != (block, most) or len(group) >= most or size + its_size > BYTES_MAX
            if group and full:
                yield group
                group, size = [], 0
            group.append(goal)
            block, most, size = its_block, its_most, size + its_size
        if group:
            yield group


def limits_for(limits: Limits, rows_max: int) -> Limits:
    """Return the limits of a job whose calls take several rows each, and reply without text."""
    wanted = min(rows_max * (limits.concurrency + 1), WINDOW_ROWS_MAX)
    rows = max(limits.window_rows, wanted, 2 * rows_max)
    return msgspec.structs.replace(limits, output_tokens_max=1, window_rows=rows)
