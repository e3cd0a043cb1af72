"""``batch``: independent requests, one result line each, in the format of the Message Batches API or in that of
OpenAI's batch files.

A row is a goal; it is asked unchanged; its answer or its failure is emitted, and the row leaves memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from cortex.programs.batch_replay import BatchReplay, counted_ending, goal_of
from cortex.programs.parts import openai_results
from cortex.state.changes import Ask, Change, Emit, Fail, Resolve
from cortex.state.events import Row
from cortex.state.program import FastReplay, Program
from cortex.state.state import Goal, State
from cortex.values.endings import WHOLE_REASONS
from cortex.values.reply import Reply, decode_message
from policies.failures.failure import RULES, Failure, FailureKind

_encode = msgspec.json.Encoder().encode


class _Canceled(msgspec.Struct, tag="canceled", gc=False):
    pass


class _Expired(msgspec.Struct, tag="expired", gc=False):
    pass


class _Errored(msgspec.Struct, tag="errored", gc=False):
    error: dict[str, Any]


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Errored | _Canceled | _Expired


def succeeded_line(custom_id: str, message: bytes) -> bytes:
    """Return the result line of a row with a message from the provider: it was billed, whatever its stop reason."""
    return b'{"custom_id":%b,"result":{"type":"succeeded","message":%b}}' % (_encode(custom_id), message)


def failed_line(custom_id: str, failure: Failure) -> bytes:
    """Return the result line of a row that failed for good, or was cancelled by the user."""
    if failure.kind == FailureKind.CANCELLED:
        return _encode(_Line(custom_id, _Canceled()))
    if failure.kind == FailureKind.EXPIRED:
        return _encode(_Line(custom_id, _Expired()))
    error = {"type": RULES[failure.kind].batch_error or "api_error", "message": failure.message}
    return _encode(_Line(custom_id, _Errored({"type": "error", "error": error})))


class Batch(Program, frozen=True):
    """Make one call per row. ``ordered``: results come in the order of the input, otherwise as they finish. ``api``:
    ``chat`` for requests and results of OpenAI's batch files; left out for those of the Message Batches API."""

    name: ClassVar[str] = "batch"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False
    reads_refusals: ClassVar[bool] = True  # a billed message is delivered, whatever its content
    asks_again: ClassVar[bool] = True
    asks_once: ClassVar[bool] = True  # the custom_id is the sample, and is unique

    ordered: bool = False
    api: str | msgspec.UnsetType = msgspec.UNSET

    def rows_are_requests(self) -> bool:
        """Return True: each row is a complete request."""
        return True

    def fast_replay(self) -> FastReplay | None:
        """Return a replay of turns whose outcome is known without ``step``; None for a subclass, or for ordered
        results.
        """
        return BatchReplay() if type(self) is Batch and not self.ordered else None

    def read(self, k: State, row: Row) -> Iterable[Change]:
        """Yield the goal of a row, or the result line of a row that the input check refused."""
        place = k.tally.rows_read - 1 if row.place < 0 else row.place
        if row.refusal:
            failure = Failure(FailureKind.REJECTED, row.refusal, sent=False)
            yield Emit(self._failed(k, row.key, failure), place if self.ordered else None, failed=True)
        else:
            yield goal_of(row, place)

    def select(self, k: State) -> Iterable[Ask]:
        """Yield a call for every open row, oldest first."""
        for goal in k.open("row"):
            key, body, output_tokens_max, _ = goal.value
            yield Ask(goal, body=body, output_tokens_max=output_tokens_max, sample=key)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Emit the message unchanged. One that is no whole answer is counted by its ending."""
        key, _, _, place = goal.value
        if self.api:
            line = openai_results.succeeded_line(k.terms.job, key, reply.body, k.at_s + k.ahead_s)
        else:
            line = succeeded_line(key, reply.body)
        order = place if self.ordered else None
        ending: str | None = None
        if reply.stop_reason in WHOLE_REASONS:  # nearly all replies; inline, since this is the path of every row
            try:
                blocks = decode_message(reply.body).content
                ending = "" if len(blocks) == 1 and blocks[0].text.strip() else None
            except msgspec.DecodeError:
                ending = None
        yield Emit(line, order, ending=counted_ending(reply) if ending is None else ending)
        yield Resolve(goal)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Emit the result line of a row that failed for good."""
        key, _, _, place = goal.value
        order = place if self.ordered else None
        yield Emit(self._failed(k, key, failure), order, failed=True, row=key, kind=failure.kind)
        yield Fail(goal, failure.message)

    def _failed(self, k: State, key: str, failure: Failure) -> bytes:
        return openai_results.failed_line(k.terms.job, key, failure) if self.api else failed_line(key, failure)

    def answer(self, k: State) -> None:
        """Return None: the answer of a batch is its result file."""
