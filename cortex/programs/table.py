"""``table``: a prompt for every row of a table, and a table of answers: one flat object per line.

A row of the source holds the needed columns as a JSON object; or, without a ``prompt``, it is a whole request, as in
``batch``. With a ``schema`` the answers' fields are columns; an answer that does not fit is asked once more, with the
reason, and then its row has failed and still holds the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import msgspec

from cortex.calls.request import AS_GIVEN
from cortex.programs.parts.answer_forms import answer_form, joined, noted
from cortex.programs.parts.choice_columns import probabilities, probability_columns
from cortex.programs.parts.row_votes import RowVotes, cast_vote, votes_in
from cortex.programs.parts.typed_answers import ResultShape, TypeOfAnswers, registered
from cortex.state.changes import Ask, Change, Checkpoint, Emit, Fail, Reopen, Resolve
from cortex.state.events import Row
from cortex.state.program import Program
from cortex.state.state import Goal, State
from cortex.values.canonical import MAX_TOKENS
from cortex.values.display import simulated
from cortex.values.endings import WHOLE_REASONS, Ending, ending_of, is_refusal, may_grow
from cortex.values.ledger import ReplyTimings
from cortex.values.reply import (
    UNKNOWN_USAGE,
    Malformed,
    Reply,
    Usage,
    as_said,
    ending_message,
    text_and_tool,
)
from cortex.values.schema import AnswerShape, json_text
from cortex.values.template import Template, as_written, holds_minus_zero, values_as_written
from policies.decisions.pooled_votes import COUNT
from policies.estimates.reply_bounds import raised
from policies.estimates.tokens import text_within_tokens_bound, tokens_besides
from policies.failures.failure import Failure, FailureKind

ANSWER, ERROR = "answer", "error"
META = (
    "kind", "stop_reason", "model", "attempts", "latency_s", "input_tokens", "output_tokens", "cost_usd", "reused",
)  # fmt: skip
"""Columns of ``meta``: outcome of the row (``succeeded``, or a failure's kind), stop reason, model, number of attempts,
latency of the last request in seconds, tokens and USD over all of its answers, and whether the reply was stored, so
that nothing was paid for it now."""
ROW = "row"
"""Name of the column of row numbers, if no column is the id."""
REQUEST_ID = "custom_id"
FORMS = ("format", "tool", "prompt")
FAIL, KEEP, LONGER = ON_CUT = ("fail", "keep", "longer")
"""Values of ``Table.on_cut`` that users give."""


def twice_named(program: Table) -> tuple[str, str]:
    """Return a name that two columns of a table's results would have, and the option that gives one of them another
    name; two empty texts if all names differ."""
    names = [program.id, *program.columns()]
    twice = next((name for name in names if names.count(name) > 1), "")
    own = zip((ANSWER, ERROR, *META), program.own_columns(), strict=False)
    return twice, next((option_for(column) for column, name in own if name == twice), "")


def option_for(column: str) -> str:
    """Return the option that gives the results' own column of this name another one; empty if there is none."""
    return "--answer-as NAME" if column == ANSWER else "--columns-prefix TEXT" if column in (ERROR, *META) else ""


def renamed(answer_as: str, prefix: str) -> tuple[tuple[str, str], ...] | msgspec.UnsetType:
    """Return the names of a table's own columns: ``prefix`` before each, or ``answer_as`` for ``ANSWER``; unset if both
    are empty."""
    names = {name: prefix + name for name in (ANSWER, ERROR, *META) if prefix}
    names |= {ANSWER: answer_as} if answer_as else {}
    return tuple(names.items()) if names else msgspec.UNSET


_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


FastLine = Callable[[str, bytes, str], bytes | None]
"""Result of a whole answer, from the row's key, the row and the answer's text."""


class Table(Program, frozen=True, dict=True):
    """Make one call per row. ``ordered``: results come in the order of the input, otherwise as they finish."""

    name: ClassVar[str] = "table"
    keeps: ClassVar[bool] = False
    rows_are_goals: ClassVar[bool] = False
    reads_refusals: ClassVar[bool] = True  # a billed message is delivered, whatever its content
    asks_again: ClassVar[bool] = True
    asks_once: ClassVar[bool] = True  # a row's id is the sample, and is unique
    vectors: ClassVar[bool] = False
    """True if answers are vectors (``cortex.programs.parts.embedding``)."""

    prompt: str = ""
    """Template (``cortex.values.template``); empty if each row is a whole request."""
    system: str = ""
    """System prompt of all rows."""
    id: str = ROW
    """Column that identifies the results."""
    schema: str = ""
    """JSON schema of the answers, as JSON; empty: answers are text."""
    schema_as: str = "format"
    """Form of the schema in the request: ``format``, the provider's structured outputs; ``tool``, the input of a forced
    tool; ``prompt``, in words, for a model that supports neither."""
    with_input: bool = False
    """True if results hold the row's other columns too."""
    meta: bool = False
    """True if results hold the columns ``META`` too."""
    ordered: bool = False
    on_cut: str = ""
    """Outcome of a row whose reply was cut. ``fail``: the row fails, and its result holds the fragment; ``keep``: the
    fragment is the answer, counted as cut; ``longer``: the row is asked again with twice the bound, within the limits
    of ``policies.estimates.reply_bounds``. With any of these, a reply that is paused, empty or asks for a tool fails
    its row. Empty: every message but a refusal is an answer, as in journals of release 0.1.0, which have no such
    field."""
    renamed: tuple[tuple[str, str], ...] | msgspec.UnsetType = msgspec.UNSET
    """Names in the results of the columns ``ANSWER``, ``ERROR`` and ``META``, where they differ from these (function
    ``renamed``). Unset in journals of release 0.1.0, whose parameters are thus unchanged."""

    answer_type: TypeOfAnswers | msgspec.UnsetType = msgspec.UNSET
    """Python type whose JSON schema is ``schema``: it checks the answers by itself, and results hold its values. Unset:
    answers are checked by ``schema``."""

    top_logprobs: int | msgspec.UnsetType = msgspec.UNSET
    """Alternatives that are requested for each token, with their log probabilities; results then hold the probability
    of each choice. Unset: no log probabilities, as in journals of release 0.1.0."""

    votes: int | msgspec.UnsetType = msgspec.UNSET
    """Times that a row is asked at most (``cortex.programs.parts.row_votes``); unset: once, as in journals of release
    0.1.0."""
    votes_by: str | msgspec.UnsetType = msgspec.UNSET
    """Rule by which votes decide (``policies.decisions.pooled_votes.VOTES_BY``); unset without votes."""

    def answer_types(self) -> tuple[str, ...]:
        """Return the place of ``answer_type``."""
        return () if self.answer_type is msgspec.UNSET else (self.answer_type.place,)

    def results_schema(self) -> str:
        """Return the JSON schema of the fields of results, as JSON; empty: answers are text."""
        return self.schema if self.answer_type is msgspec.UNSET else self.answer_type.results or self.schema

    def columns(self) -> list[str]:
        """Return the columns of a result in addition to its id and the input's columns."""
        return [*self._fields(), *self.probability_columns(), *self.own_columns()]

    def _fields(self) -> dict[str, Any]:
        """Columns of the schema, with their schemas."""
        if not self.schema:
            return {}
        typed = self.answer_type is not msgspec.UNSET
        return (_result_shape(self.results_schema()) if typed else _shape(self.schema)).properties

    def probability_columns(self) -> list[str]:
        """Return the columns of a result that hold the probability of a choice."""
        asked = self.top_logprobs is not msgspec.UNSET
        return probability_columns(self.schema, self.own_columns()[0]) if asked else []

    def own_columns(self) -> list[str]:
        """Return the columns of a result that hold neither input nor fields of the schema, nor a probability."""
        names = {} if self.renamed is msgspec.UNSET else dict(self.renamed)
        return [names.get(name, name) for name in (ANSWER, ERROR, *(META if self.meta else ()))]

    def rows_are_requests(self) -> bool:
        """Return True if there is no prompt."""
        return not self.prompt

    def read(self, k: State, row: Row) -> Iterable[Change]:
        """Yield the goal of a row, or the result of a row that the input check refused."""
        place = k.tally.rows_read - 1 if row.place < 0 else row.place
        if row.refusal:
            failure = Failure(FailureKind.REJECTED, row.refusal, sent=False)
            yield Emit(self._line(row.key, row.body, failure, None), place if self.ordered else None, failed=True)
        else:
            edition = 0 if row.place < 0 else k.edition
            yield Goal("row", [row.key, row.body, row.output_tokens_max, place, edition])

    def select(self, k: State) -> Iterable[Ask]:
        """Yield a call for every open row, oldest first.

        A row whose answer did not fit takes another sample, and so does a failed row that is asked again: the answers
        that did not fit are stored too.
        """
        model, usual = k.terms.route.model, k.terms.limits.output_tokens_max
        alike = self.prompt and len(k.terms.routes) == 1 + k.terms.peers and k.on_decision is None
        template = _template(self.prompt) if alike else None
        fast_render = template.fast_render if template is not None else None
        fitting = framed = -1  # ``max_tokens`` that leaves room for a prompt
        refused, before, after, besides = "", b"", b"", None
        voting = self.votes is not msgspec.UNSET
        for goal in k.open("row"):
            key, row, output_tokens_max, _, edition = goal.value
            tokens, sample = output_tokens_max or usual, key
            if goal.kept and (more := _raised(goal)) > tokens:  # the job's own bound may have grown since
                tokens = more
            misfit = goal.refused
            if voting and (cast := votes_in(goal.kept, _VOTES)).asked:
                sample = f"{key}\x1fv{cast.asked}"
                misfit = misfit if goal.resamples > cast.misfits else ""
            if goal.resamples:
                sample = f"{sample}\x1f{goal.resamples}"
            if edition:
                sample = f"{sample}\x1e{edition}"
            if tokens != fitting and template is not None and k.prompt_tokens_max(tokens) > 0:
                fitting = tokens
            if tokens != fitting or template is None:
                body = self.request(row, model, tokens, misfit)
                yield Ask(goal, body=body, output_tokens_max=tokens, sample=sample)
                continue
            if tokens != framed or refused != misfit:
                framed, refused = tokens, misfit
                before, after, besides = _around(self, model, tokens, refused)
            asked = None if fast_render is None else fast_render(row)
            if asked is None:
                fast_render = None  # rows of a table are alike: the next one has no texts either
                asked = template.render(values_as_written(row))
            text = _encode(asked)[1:-1]
            body = before + text + after
            made = body, AS_GIVEN, 0, text_within_tokens_bound(body, text, besides)
            yield Ask(goal, body=body, output_tokens_max=tokens, sample=sample, made=made)

    def absorb(self, k: State, goal: Goal, reply: Reply) -> Iterable[Change]:
        """Emit the answer, checked against the schema if there is one.

        A reply that is no whole answer fails its row, as ``on_cut`` says; the result holds its text.
        """
        key, row, _, place, _ = goal.value
        text, asks_for_tool = text_and_tool(reply.body)
        if reply.stop_reason in WHOLE_REASONS and not asks_for_tool and text.strip():
            ending = Ending.WHOLE  # nearly all replies
            fast_line = self._fast_line
            line = None if fast_line is None else fast_line(key, row, text)
            if line is not None:
                yield Emit(line, place if self.ordered else None)
                yield Resolve(goal)
                return
        else:
            ending = self._ending(reply, text, asks_for_tool)
        failure = None if ending in _ANSWERS else _failure(ending, reply, text)
        fields: dict[str, Any] | None = None
        if self.schema and (failure is None or (ending is Ending.CUT and text)):
            try:
                if self.schema_as == "tool":
                    text = self._answer_text(reply, text)
                fields = self._read(text)
                ending, failure = Ending.WHOLE, None  # nothing of it is missing
            except _TypeFault as error:
                failure = failure or Failure(FailureKind.FAULTY, str(error))
            except Malformed as error:
                if failure is None:
                    message = self._misfit(reply, error)
                    if goal.resamples == (votes_in(goal.kept, _VOTES).misfits if goal.kept else 0):
                        yield Checkpoint(goal, [*_added(goal.kept, reply, k.took), *(goal.kept or ())[_SPENT:]])
                        yield Reopen(goal, refused=message)
                        return
                    failure = Failure(FailureKind.MALFORMED, message)
        if failure is not None and ending is Ending.CUT:
            if self.on_cut == LONGER and (tokens := self._longer(k, goal, reply)):
                yield Checkpoint(goal, [*_added(goal.kept, reply, k.took), tokens, text, *(goal.kept or ())[_VOTES:]])
                yield Reopen(goal)
                return
            if self.on_cut == KEEP and text.strip() and not self.schema:
                failure = None
        if self.votes is not msgspec.UNSET and (changes := self._voted(k, goal, reply, text, failure)):
            yield from changes
            return
        about = None
        if self.meta:
            about = self._about(k, goal, failure, reply, _added(goal.kept, reply, k.took))
        line = self._line(key, row, failure, about, text, fields, self._probabilities(reply, text, failure))
        order = place if self.ordered else None
        if failure is None:
            yield Emit(line, order, ending="" if ending is Ending.WHOLE else ending.value)
            yield Resolve(goal)
        else:
            yield Emit(line, order, failed=True, row=key, kind=failure.kind)
            yield Fail(goal, failure.message, failure.kind)

    def failed(self, k: State, goal: Goal, failure: Failure) -> Iterable[Change]:
        """Emit the result of a row that failed for good, with the text of its last reply that was cut, if any.

        A row whose raised bound the provider refuses stays what it was: cut.
        """
        if goal.kept and (cast := votes_in(goal.kept, _VOTES)).cast:
            yield from self._decided(k, goal, cast, goal.kept[:_SPENT])
            return
        key, row, _, place, _ = goal.value
        if failure.kind in _TOO_MUCH and _raised(goal):
            refused = f"a larger max_tokens ({_bound(k, goal)}) was refused: {failure.message}"
            failure = Failure(FailureKind.CUT, refused)
        kept = goal.kept or ()
        about = self._about(k, goal, failure, None, kept[:_SPENT]) if self.meta else None
        order = place if self.ordered else None
        line = self._line(key, row, failure, about, kept[_SPENT + 1] if _raised(goal) else None)
        yield Emit(line, order, failed=True, row=key, kind=failure.kind)
        yield Fail(goal, failure.message, failure.kind)

    def _voted(self, k: State, goal: Goal, reply: Reply, text: str, failure: Failure | None) -> list[Change]:
        """Count a reply as a vote: ask for the next one, or decide. Nothing where all votes have ended without an
        answer."""
        vote = None if failure is not None else cast_vote(self.schema, reply, text, self.schema_as == "prompt")
        cast = votes_in(goal.kept, _VOTES).after(goal.resamples, vote)
        spent = _added(goal.kept, reply, k.took)
        assert isinstance(self.votes, int)
        if cast.asked < self.votes and cast.won(self._by, self.votes) is None:
            raised_to = list((goal.kept or ())[_SPENT:_VOTES]) or [0, None]
            return [Checkpoint(goal, [*spent, *raised_to, cast.plain()]), Reopen(goal)]
        return self._decided(k, goal, cast, spent, reply.usage) if cast.cast else []

    def _decided(self, k: State, goal: Goal, cast: RowVotes, spent: Any, usage: Usage = UNKNOWN_USAGE) -> list[Change]:
        """Emit the answer that wins of the votes that a row has."""
        key, row, _, place, _ = goal.value
        won = cast.won(self._by, 0)
        assert won is not None, "one of several answers has the highest score"
        about = None
        if self.meta:
            about = self._about(k, goal, None, Reply(b"", won.stop_reason, won.model, usage), spent)
        chances = None if self.top_logprobs is msgspec.UNSET else cast.chances(won)
        line = self._line(key, row, None, about, won.text, self._read(won.text), chances)
        return [Emit(line, place if self.ordered else None), Resolve(goal)]

    @property
    def _by(self) -> str:
        return COUNT if self.votes_by is msgspec.UNSET else self.votes_by

    def answer(self, k: State) -> None:
        """Return None: the answer of a table is its result file."""

    # -- requests --------------------------------------------------------------------------------------------------

    def request(self, row: bytes, model: str, tokens: int, refused: str = "") -> bytes:
        """Return the request of a row with its fields in alphabetical order, so that equal requests have equal bytes.

        ``refused``: the reason why an earlier answer was refused.
        """
        if not self.prompt:
            return self.completed(_raw(row), tokens, refused)
        before, after, _ = _around(self, model, tokens, refused)
        return b"%b%b%b" % (before, _encode(self.asked(row))[1:-1], after)

    def asked(self, row: bytes) -> str:
        """Return the prompt of a row."""
        return _template(self.prompt).render(values_as_written(row))

    def completed(self, request: dict[str, msgspec.Raw], tokens: int, refused: str) -> bytes:
        """Return a request with the fields that all rows' requests have in common."""
        request["max_tokens"] = msgspec.Raw(_encode(tokens))
        if self.top_logprobs is not msgspec.UNSET:
            request["logprobs"], request["top_logprobs"] = _TRUE, msgspec.Raw(_encode(self.top_logprobs))
        note = f"An earlier answer to this was refused: {refused}" if refused else ""
        if self.schema:
            for name, value in answer_form(self.schema, self.schema_as).items():
                request[name] = joined(request.get(name), value)
            if self.schema_as == "prompt":
                asked = f"Answer with JSON alone that fits this JSON schema:\n{self.schema}"
                note = f"{note}\n\n{asked}" if note else asked
        if note:
            request["messages"] = noted(request["messages"], note)
        return _encode({name: request[name] for name in sorted(request)})

    def _ending(self, reply: Reply, text: str, asks_for_tool: bool) -> Ending:
        """Ending of a reply to this table: the answer tool's use is an answer."""
        if not self.on_cut:
            return Ending.REFUSED if is_refusal(reply.stop_reason) else Ending.WHOLE
        ending = ending_of(reply.stop_reason, text, asks_for_tool)
        return Ending.WHOLE if ending is Ending.TOOL_USE and self.schema and self.schema_as == "tool" else ending

    def _misfit(self, reply: Reply, error: Malformed) -> str:
        """Reason why an answer does not fit the schema."""
        if self.on_cut or reply.stop_reason != MAX_TOKENS:
            return str(error)
        return f"it was cut at max_tokens ({reply.usage.output_tokens}); {error}"

    def _read(self, text: str) -> dict[str, Any]:
        """Fields of an answer. Raises ``Malformed``, and ``_TypeFault`` for an exception of the type's own code."""
        in_words = self.schema_as == "prompt"
        if self.answer_type is msgspec.UNSET:
            return _shape(self.schema).read(text, in_words=in_words)
        place = self.answer_type.place
        type_ = registered(place)
        if type_ is None:
            raise RuntimeError(f"the type {place} is not loaded")
        message = json_text(text, in_words=in_words)
        try:
            return _result_shape(self.results_schema()).held(type_.read(message))
        except Malformed:
            raise
        except Exception as error:  # validators of an author may raise anything
            detail = " ".join(str(error).split())
            raise _TypeFault(f"{place.rpartition(':')[2]} raised {type(error).__name__}: {detail}") from error

    def _longer(self, k: State, goal: Goal, reply: Reply) -> int:
        """Bound on reply tokens with which a row that was cut is asked again; 0: it is not."""
        own = goal.value[2] or k.terms.limits.output_tokens_max
        tokens = raised(own, _bound(k, goal), k.terms.reply_tokens_max())
        return tokens if tokens and k.prompt_tokens_max(tokens) > 0 and may_grow(reply.stop_reason) else 0

    def _answer_text(self, reply: Reply, text: str) -> str:
        """The input of the answer tool, if it was used. Raises ``Malformed``."""
        uses = as_said(reply).uses
        return _encode(uses[0].input).decode() if uses else text

    # -- results ---------------------------------------------------------------------------------------------------

    @cached_property
    def _fast_line(self) -> FastLine | None:
        return _fast_line(self)

    def _line(
        self, key: str, row: bytes, failure: Failure | None, about: dict[str, Any] | None, text: str | None = None,
        fields: dict[str, Any] | None = None, chances: list[float | None] | None = None,
    ) -> bytes:  # fmt: skip
        """A result: its id, the input's columns, the answer with its probabilities, or the error."""
        line: dict[str, Any] = {self.id: key}
        if self.prompt and row:
            line[self.id] = _id_of(row, self.id, key)
            if self.with_input:
                line |= _raw(row)
        if self.schema:
            line |= fields if fields is not None else dict.fromkeys(self._fields())
        if self.top_logprobs is not msgspec.UNSET:
            names = self.probability_columns()
            line |= zip(names, chances or [None] * len(names), strict=True)
        answer = text if fields is None else None
        error = None if failure is None else f"{failure.kind}: {failure.message}"
        meta = (about if about is not None else _nothing(failure)) if self.meta else {}
        if self.renamed is msgspec.UNSET:
            line[ANSWER], line[ERROR] = answer, error
            line |= meta
        else:
            line |= zip(self.own_columns(), (answer, error, *meta.values()), strict=True)
        return _encode(line)

    def _probabilities(self, reply: Reply, text: str, failure: Failure | None) -> list[float | None] | None:
        if failure is not None or self.top_logprobs is msgspec.UNSET:
            return None
        return probabilities(self.schema, reply, text, self.schema_as == "prompt")

    def _about(self, k: State, goal: Goal, failure: Failure | None, reply: Reply | None, spent: Any) -> dict[str, Any]:
        nusd, input_tokens, output_tokens, elapsed_s, reused = spent or (0, 0, 0, None, False)
        if nusd is None and simulated(k.terms.route):
            nusd = 0
        return {
            "kind": "succeeded" if failure is None else str(failure.kind),
            "stop_reason": reply.stop_reason if reply is not None else None,
            "model": reply.model if reply is not None else None, "attempts": goal.tries - goal.unsent - reused,
            "latency_s": elapsed_s, "input_tokens": input_tokens, "output_tokens": output_tokens,
            "cost_usd": None if nusd is None else nusd / 1_000_000_000, "reused": reused,
        }  # fmt: skip


_SPENT = 5
"""Number of totals at the begin of ``goal.kept`` (``_added``). A raised bound on reply tokens and the text of the reply
that was cut may follow."""
_VOTES = _SPENT + 2
"""Place of a row's votes in ``goal.kept``, behind these two."""
_ANSWERS = frozenset({Ending.WHOLE, Ending.UNKNOWN})
"""Endings of replies that are answers; those without a known stop reason are counted apart."""

_TOO_MUCH = frozenset({FailureKind.REJECTED, FailureKind.TOO_LARGE})
"""Kinds of failure of a call whose ``max_tokens`` is above what the model may be asked for, or leaves no room for the
prompt."""


class _TypeFault(Exception):
    """Exception of a type's own code, other than its word that an answer does not fit."""


def _raised(goal: Goal) -> int:
    """Bound on reply tokens that was raised because a reply was cut; 0: it was not."""
    kept = goal.kept
    return kept[_SPENT] if kept and len(kept) > _SPENT else 0


def _bound(k: State, goal: Goal) -> int:
    """Bound on reply tokens with which a row is asked."""
    return max(_raised(goal), goal.value[2] or k.terms.limits.output_tokens_max)


def _failure(ending: Ending, reply: Reply, text: str) -> Failure:
    """Failure of a row whose reply is no answer."""
    if ending is Ending.REFUSED:
        return Failure(FailureKind.REFUSED, "the model declined")
    return Failure(FailureKind(ending.value), ending_message(ending, reply, text))


def _nothing(failure: Failure | None) -> dict[str, Any]:
    """``META`` of a row that was never asked."""
    kind = "" if failure is None else str(failure.kind)
    return dict.fromkeys(META) | {"kind": kind, "attempts": 0, "cost_usd": 0.0, "reused": False}


def _added(before: Any, reply: Reply, took: ReplyTimings | None) -> list[Any]:
    """Totals of a row's answers so far: nano-USD, input and output tokens (None: unknown), seconds of the last,
    reused.
    """
    took = took or ReplyTimings()
    nusd, input_tokens, output_tokens, _, _ = before[:_SPENT] if before else (0, 0, 0, None, False)
    usage = reply.usage
    counted = input_tokens is not None and not usage.unknown
    return [
        nusd + took.nusd if nusd is not None and took.nusd is not None else None,
        input_tokens + usage.input_tokens_billed if counted else None,
        output_tokens + usage.output_tokens if counted else None,
        None if took.reused else round(took.elapsed_s, 4), took.reused,
    ]  # fmt: skip


_MARK = "\0"
_TRUE = msgspec.Raw(b"true")


@lru_cache(maxsize=64)
def _around(program: Table, model: str, tokens: int, refused: str) -> tuple[bytes, bytes, int | None]:
    """Bytes before and after a row's own text in its request, equal for nearly all rows, and the tokens they add to its
    bound.
    """
    messages = [{"role": "user", "content": _MARK}]
    request = {"messages": msgspec.Raw(_encode(messages)), "model": msgspec.Raw(_encode(model))}
    if program.system:
        request["system"] = msgspec.Raw(_encode(program.system))
    before, _, after = program.completed(request, tokens, refused).partition(_encode(_MARK)[1:-1])
    return before, after, tokens_besides(before + after)


def _id_of(row: bytes, column: str, key: str) -> Any:
    """Value of a row's id column, unchanged; its key if there is none. The other columns are not decoded."""
    decode = None if holds_minus_zero(row) else _ids(column)
    found = values_as_written(row).get(column, msgspec.UNSET) if decode is None else decode(row).id
    return key if found is msgspec.UNSET else found


@lru_cache(maxsize=64)
def _ids(column: str) -> Callable[[bytes], Any] | None:
    """Decoder of the id column alone; None for a name with a quote, a backslash or a control character, which msgspec
    does not allow."""
    try:
        form = msgspec.defstruct("Row", [("id", Any, msgspec.UNSET)], rename={"id": column})
    except ValueError:
        return None
    return msgspec.json.Decoder(form, float_hook=as_written).decode


@lru_cache(maxsize=64)
def _template(source: str) -> Template:
    return Template(source)


@lru_cache(maxsize=64)
def _shape(schema: str) -> AnswerShape:
    return AnswerShape(msgspec.json.decode(schema))


def _fast_line(program: Table) -> FastLine | None:
    """Return a function of key, row and text of a whole answer: it returns what ``Table._line`` returns, or None for an
    answer that is not surely valid (fast path). None for a table with other columns than the usual ones. Equal by
    ``tests/properties/test_fast_tables.py``.
    """
    if (
        program.meta or program.with_input or not program.prompt or program.schema_as == "tool"
        or program.renamed is not msgspec.UNSET or program.answer_type is not msgspec.UNSET
        or program.top_logprobs is not msgspec.UNSET or program.votes is not msgspec.UNSET
    ):  # fmt: skip
        return None
    shape, column = _shape(program.schema) if program.schema else None, program.id
    names = [column, ANSWER, ERROR, *(shape.properties if shape is not None else ())]
    if len(set(names)) < len(names):
        return None
    head, fast_read = b"{%b:" % _encode(column), None if shape is None else shape.fast_read

    def line(key: str, row: bytes, text: str) -> bytes | None:
        begin = head + _encode(key)
        if not row.startswith(begin):  # the id is another column than the first, or no text
            begin = head + _encode(_id_of(row, column, key) if row else key)
        if fast_read is None:
            return begin + b',"answer":' + _encode(text) + b',"error":null}'
        answer = fast_read(text)
        return None if answer is None else begin + b"," + _encode(answer)[1:-1] + b',"answer":null,"error":null}'

    return line


@lru_cache(maxsize=64)
def _result_shape(schema: str) -> ResultShape:
    return ResultShape(msgspec.json.decode(schema))
