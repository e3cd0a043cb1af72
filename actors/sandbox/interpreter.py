"""Session of an interpreter: feeds pieces, answers calls, turns errors into refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pydantic_monty as monty

from actors.sandbox.await_analysis import awaited
from actors.sandbox.refusals import PieceEnded, judged
from actors.sandbox.value_size import size_up_to
from cortex.state.sandbox import (
    ASK,
    ASK_MANY,
    RECURSE,
    SUBMIT,
    SYNONYMS,
    DefinedName,
    PieceCall,
    PieceCallResult,
    PieceOutcome,
    SandboxBounds,
    SandboxPiece,
    SandboxRefusal,
)
from cortex.values.plain_values import size_bytes, to_plain

HANDED_OUT_MB = 250
"""Most MB that the calls of a piece hand out, also where the piece may have more memory: a quarter of ``HEADROOM_MB``
of ``actors.sandbox.child``, which must hold the values, copies and their encoding, whose buffer grows by half."""
NAMES_MAX = 40
NAME_CHARS = 60
_LEFT = (
    "[(k, type(v).__name__, len(v) if isinstance(v, (str, bytes, list, dict, tuple, set)) else -1)"
    " for k, v in locals().items()]"
)
_PARAMETERS = {ASK: ("prompt", "model"), ASK_MANY: ("prompts", "model"), RECURSE: ("question", "context"),
               SUBMIT: ("answer",)}  # fmt: skip
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class _Pause(Exception):
    """The piece waits for answers to its calls."""


class _PrintedText:
    """Printed text of a piece: its beginning and end are kept, the rest is counted."""

    def __init__(self, shown: int) -> None:
        self._head_max, self._tail_max = shown * 2 // 3, shown - shown * 2 // 3
        self._head = self._tail = ""
        self.chars = 0

    def take(self, stream: str, text: str) -> None:
        """Add a text; called by the interpreter."""
        self.chars += len(text)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        self._tail = (self._tail + text[-self._tail_max :])[-self._tail_max :]

    def text(self) -> str:
        """Return the kept text."""
        left = self.chars - len(self._head) - len(self._tail)
        return f"{self._head}\n[… {left:,} characters left out …]\n{self._tail}" if left else self._head + self._tail


class InterpreterSession:
    """Run of a program's pieces in one session."""

    def __init__(self, session: monty.MontySession, bounds: SandboxBounds, recurses: bool) -> None:
        self._session, self._bounds, self._recurses = session, bounds, recurses
        self._earlier = self._asked_chars = 0
        """Calls of earlier pieces, and characters of all prompts."""
        self._handed_out_max = min(bounds.memory_mb, HANDED_OUT_MB) * 1_000_000
        self._handed_out = 0
        """Bytes of all arguments of the present piece's calls."""
        self._awaited: dict[str, set[tuple[int, int]]] = {}
        self._results: tuple[PieceCallResult, ...] = ()
        self._calls: list[PieceCall] = []
        self._pending: dict[int, tuple[int, int]] = {}

    def feed(self, piece: SandboxPiece, names: dict[str, Any], last: bool = False) -> PieceOutcome:
        """Run a piece to its end or its next unanswered call. ``last``: return the names that it defines too."""
        self._results, self._calls, self._pending, self._handed_out = piece.said, [], {}, 0
        self._awaited[f"<python-input-{len(self._awaited)}>"] = awaited(piece.code)
        printed = _PrintedText(self._bounds.shown_chars)
        over, paused = PieceEnded(), False
        given: list[Any] = []
        try:
            snapshot: Any = self._session.feed_start(piece.code, inputs=names, print_callback=printed.take)
            while not isinstance(snapshot, monty.MontyComplete) and not given:
                if printed.chars > self._bounds.output_chars:
                    break
                snapshot = self._gone_on(snapshot, given)
        except _Pause:
            paused = True
        except PieceEnded as refused:
            over = refused
        except monty.MontyError as error:
            over = judged(error)
        if printed.chars > self._bounds.output_chars:
            over = PieceEnded(SandboxRefusal.OUTPUT, f"it printed more than {self._bounds.output_chars:,} characters")
        elif over.refusal not in (
            SandboxRefusal.TIME,
            SandboxRefusal.MEMORY,
            SandboxRefusal.CRASHED,
        ) and not self._as_before(piece):
            over = PieceEnded(SandboxRefusal.DIFFERS, "run again, it made other calls than before")
        self._earlier += len(self._calls)
        good = over.refusal is None
        return PieceOutcome(
            calls=tuple(self._calls[len(piece.said) :]) if good and paused else (),
            seal=_seal(self._calls) if good and paused else "", submitted=good and bool(given),
            answer=given[0] if good and given else None, refusal=over.refusal, why=over.why, line=over.line,
            output=printed.text(), printed_chars=printed.chars,
            names=self._left() if last and not (paused or given or over.spoilt) else (),
        )  # fmt: skip

    def _as_before(self, piece: SandboxPiece) -> bool:
        """Return True if the piece made the same calls that were answered before."""
        answered = self._calls[: len(piece.said)]
        return not piece.said or (len(answered) == len(piece.said) and _seal(answered) == piece.seal)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _gone_on(self, snapshot: Any, given: list[Any]) -> Any:
        """Answer the interpreter's present request. Raises ``_Pause`` and ``PieceEnded``."""
        if isinstance(snapshot, monty.NameLookupSnapshot):
            known = snapshot.object_id is None and self._meant(snapshot.variable_name)
            return snapshot.resume(value=_function(snapshot.variable_name)) if known else snapshot.resume()
        if isinstance(snapshot, monty.FutureSnapshot):
            pending = {number: self._pending[number] for number in snapshot.pending_call_ids}
            if any(begin + abs(count) > len(self._results) for begin, count in pending.values()):
                raise _Pause
            return snapshot.resume({number: self._result(*place) for number, place in pending.items()})
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        meant = self._meant(str(snapshot.function_name))
        if not meant:
            return snapshot.resume({"exception": NameError(f"name '{snapshot.function_name}' is not defined")})
        self._measure(snapshot, meant)
        try:
            arguments = _bound(snapshot, meant)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return snapshot.resume({"exception": TypeError(str(error)[:200])})
        if meant == SUBMIT:
            given.append(self._submitted(arguments[0]))
            return snapshot
        return self._asked(snapshot, meant, arguments)

    def _measure(self, snapshot: Any, meant: str) -> None:
        """Count a call's arguments before they are copied or encoded. Raises ``PieceEnded`` if they are too large."""
        given = [*snapshot.args, *snapshot.kwargs.values()]
        if meant == SUBMIT:  # JSON has a byte or more for each value, text has none more, and the arguments are a list
            most = self._bounds.answer_bytes
            if size_up_to(given, most + 2, each=1, container=0) > most + 2:
                raise PieceEnded(SandboxRefusal.ANSWER, f"what it submits has more than {most:,} bytes")
            return
        self._handed_out += size_up_to(given, self._handed_out_max - self._handed_out)
        if self._handed_out > self._handed_out_max:
            raise PieceEnded(SandboxRefusal.MEMORY, "what it hands out is larger than the memory it may have")

    def _meant(self, name: str) -> str:
        """Return the outside function that a name means; empty for other names."""
        meant = SYNONYMS.get(name, "")
        return "" if meant == RECURSE and not self._recurses else meant

    def _asked(self, snapshot: Any, meant: str, arguments: list[Any]) -> Any:
        prompts: Sequence[str] = arguments[0] if meant == ASK_MANY else arguments[:1]
        begin, count = len(self._calls), len(prompts) if meant == ASK_MANY else -1
        if self._earlier + begin + len(prompts) > self._bounds.calls:
            raise PieceEnded(SandboxRefusal.CALLS, f"more than {self._bounds.calls:,} calls")
        self._asked_chars += sum(map(len, prompts))
        if self._asked_chars > self._bounds.memory_mb * 1_000_000:
            raise PieceEnded(SandboxRefusal.MEMORY, "its prompts together are larger than the memory it may have")
        context = arguments[1] if meant == RECURSE else None
        self._calls += [PieceCall(prompt, context, meant == RECURSE) for prompt in prompts]
        where = snapshot.position
        if snapshot.allow_eager_await or (where.start, where.end) in self._awaited.get(where.filename, ()):
            self._pending[snapshot.call_id] = (begin, count)
            return snapshot.resume({"future": ...})
        if begin + abs(count) > len(self._results):
            raise _Pause
        return snapshot.resume(self._result(begin, count))

    def _result(self, begin: int, count: int) -> Any:
        """Return the answer of a call: its value, or an error if it failed. ``count`` -1: a single call."""
        parts = self._results[begin : begin + abs(count)]
        failed = [each.failed for each in parts if each.failed]
        if failed:
            of = f"{len(failed)} of {count} calls failed, the first: " if count > 0 else "the call failed: "
            return {"exception": RuntimeError(of + failed[0])}
        return {"return_value": [each.value for each in parts] if count >= 0 else parts[0].value}

    def _submitted(self, value: Any) -> Any:
        try:
            kept = to_plain(value)
            if not _finite(kept):
                raise ValueError("a number that is not finite cannot be kept as one: make it text")
            size = size_bytes(kept)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PieceEnded(SandboxRefusal.ANSWER, f"what it submits cannot be kept: {error}") from None
        if size > self._bounds.answer_bytes:
            raise PieceEnded(
                SandboxRefusal.ANSWER, f"what it submits has {size:,} bytes, {self._bounds.answer_bytes:,} at most"
            )
        return kept

    def _left(self) -> tuple[DefinedName, ...]:
        """Return the names defined by the pieces, with types and lengths; empty if the piece has hidden the needed
        builtins."""
        try:
            ended = self._session.feed_start(_LEFT, print_callback=_PrintedText(1).take)
            found = ended.output if isinstance(ended, monty.MontyComplete) else []
            if size_up_to(found, self._handed_out_max) > self._handed_out_max:
                return ()
            names = [DefinedName(str(name), str(kind), int(size)) for name, kind, size in found if kind != "module"]
        except (monty.MontyError, TypeError, ValueError):
            return ()
        return tuple(each for each in names if len(each.name) + len(each.type) <= NAME_CHARS)[-NAMES_MAX:]


def _finite(value: Any) -> bool:
    """Return True if all numbers in a value are finite; JSON cannot hold others."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value)) and all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def _seal(calls: Sequence[PieceCall]) -> str:
    return blake2b(_encoder.encode(calls), digest_size=12).hexdigest()


def _function(name: str) -> Any:
    """Return a callable with this name, which is all that the interpreter needs."""

    def outside() -> None:
        raise NotImplementedError

    outside.__name__ = name
    return outside


def _bound(snapshot: Any, meant: str) -> list[Any]:
    """Return a call's arguments by place, checked. Raises ``TypeError``; ``ValueError`` for values that are no text."""
    parameters, name = _PARAMETERS[meant], snapshot.function_name
    given = dict(zip(parameters, snapshot.args, strict=False))
    named = snapshot.kwargs
    if len(snapshot.args) > len(parameters) or not named.keys() <= set(parameters) - given.keys():
        raise TypeError(f"{name} takes {', '.join(parameters)}")
    given |= named
    first = given.get(parameters[0], given)
    if first is given:
        raise TypeError(f"{name} needs {parameters[0]}")
    if meant == SUBMIT:
        return [first]
    texts = first if meant == ASK_MANY else [first]
    if not isinstance(texts, (list, tuple)) or not all(type(each) is str for each in texts):
        wanted = "a list of str" if meant == ASK_MANY else "a str"
        raise TypeError(f"{name}: {parameters[0]} must be {wanted}, not {type(first).__name__}")
    to_plain(list(texts))
    return [list(texts) if meant == ASK_MANY else first, to_plain(given.get("context", ""))]
