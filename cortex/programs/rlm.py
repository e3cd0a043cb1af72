"""``rlm``: the model writes the scheduler.

After Zhang, Kraska and Khattab, Recursive Language Models, 2025 (arXiv 2512.24601). The context is in K, however long
it is. The model sees its type, its size and a bounded preview, and writes a piece of program; a worker runs the piece
in a sandbox. Calls of ``llm`` become ordinary bounded calls, in parallel if the piece maps or gathers them; calls of
``rlm`` become child jobs. Their answers go to the program, not to the model: the model is shown only what the piece
printed, and writes the next one, until one calls ``submit(answer)``.

Each pause of a piece is an await of this function. The calls that a piece waits for, and their results, are in the
journal; the piece itself is run again from its first line, possibly in a new process, and continues where it waited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from cortex.flows import CallFailed, Context, flow
from cortex.programs.parts.rlm_prompts import ShownTurn, code_of, unquoted, writing
from cortex.state.sandbox import (
    KEPT,
    PieceCall,
    PieceCallResult,
    PieceOutcome,
    SandboxBounds,
    SandboxPiece,
    SandboxRefusal,
    sandbox,
)
from policies.failures.failure import FailureKind

Kind = Literal["text", "number", "json", "list"]
"""Type of the answer."""

CALL_CHARS_SHOWN = 200
"""Characters of a failed call's text that the piece receives."""
_KINDS: dict[str, tuple[type, ...]] = {"text": (str,), "number": (int, float), "list": (list,), "json": (object,)}


@flow
async def rlm(
    ctx: Context, question: str, context: Any = "", returns: Kind = "text", turns: int = 8, preview: int = 1_000,
    errors: int = 3, depth: int = 0, calls: int = 1_000, reply_tokens: int = 2_000,
) -> Any:  # fmt: skip
    """Answer a question about a context of any length by programs that the model writes.

    At most ``turns`` pieces are written, and ``errors`` more in place of pieces that failed. ``preview``: characters of
    the context that the writing model is shown (0: none). ``depth``: levels of ``rlm`` calls. ``calls``: limit over all
    pieces together. ``reply_tokens``: ``max_tokens`` of a reply with a piece.
    """
    if turns < 1 or preview < 0 or errors < 0 or depth < 0:
        raise ValueError("turns must be 1 or more, preview, errors and depth 0 or more")
    bounds, recurses, names = SandboxBounds(calls=calls), depth > 0, {"context": context, "question": question}
    asked: set[tuple[str, int]] = set()
    kept: list[SandboxPiece] = []
    entries: list[ShownTurn] = []
    failed = ""
    while len(entries) < turns + errors:
        turn = 1 + sum(not each.fault for each in entries)
        prompt = writing(question, context, returns, preview, entries, turn, turns, recurses)
        reply = await ctx.ask(prompt, max_tokens=reply_tokens, on_failure="keep")
        if isinstance(reply, CallFailed) and reply.kind not in (FailureKind.CUT, FailureKind.EMPTY):
            raise reply
        code = "" if isinstance(reply, CallFailed) else code_of(reply)
        if code:
            deeper = {"turns": turns, "preview": preview, "errors": errors, "depth": depth - 1, "calls": calls}
            piece, outcome = await ran(ctx, kept, code, names, bounds, asked, recurses, deeper)
        else:
            none = "the reply holds no fenced code"
            if isinstance(reply, CallFailed):
                cut = reply.kind == FailureKind.CUT
                none = f"the reply was cut at {reply_tokens:,} tokens: write less" if cut else "the reply is empty"
            piece, outcome = SandboxPiece(""), PieceOutcome(refusal=SandboxRefusal.SYNTAX, why=none)
        failed = fault(outcome, returns)
        if outcome.submitted and not failed:
            return outcome.answer
        if outcome.refusal is None or outcome.refusal in KEPT:
            kept.append(piece)
        why = unquoted(failed, [str(result.value) for each in (*kept, piece) for result in each.said], code)
        entries.append(ShownTurn(code, outcome.output, outcome.names, why))
        ctx.log(f"turn {turn}: {len(piece.said)} calls; {why or f'printed {outcome.printed_chars} characters'}")
        if sum(bool(each.fault) for each in entries) > errors or (not failed and turn == turns):
            break
    last = f"; the last: {failed}" if failed else ""
    raise CallFailed(FailureKind.MALFORMED, f"no answer after {len(entries)} pieces of program{last}")


rlm.files = "context"
rlm.tools = {sandbox.__name__: sandbox}


async def ran(
    ctx: Context, kept: Sequence[SandboxPiece], code: str, names: dict[str, Any], bounds: SandboxBounds,
    asked: set[tuple[str, int]], recurses: bool = False, deeper: dict[str, Any] | None = None,
) -> tuple[SandboxPiece, PieceOutcome]:  # fmt: skip
    """Run a piece to its end, after the kept pieces; whenever it waits for calls, make them.

    ``asked`` collects all calls, also of pieces that were not kept: repeated calls are answered from stored replies.
    """
    piece, seen = SandboxPiece(code), Counter[str]()
    while True:
        outcome: PieceOutcome = await ctx.run(sandbox, [*kept, piece], names, bounds, recurses)
        if not outcome.calls:
            return piece, outcome
        numbered: list[tuple[PieceCall, int]] = []
        for wanted in outcome.calls:  # equal prompts are separate samples
            numbered.append((wanted, seen[wanted.prompt]))
            seen[wanted.prompt] += 1
        new = {(wanted.prompt, sample) for wanted, sample in numbered} - asked
        if len(asked) + len(new) > bounds.calls:
            return piece, PieceOutcome(
                refusal=SandboxRefusal.CALLS, why=f"more than {bounds.calls:,} calls, with those before"
            )
        asked |= new
        answer = await ctx.map(lambda each: _call(ctx, each[0], each[1], deeper or {}), numbered, at_once=bounds.calls)
        piece = msgspec.structs.replace(piece, said=(*piece.said, *answer), seal=outcome.seal)


async def _call(ctx: Context, wanted: PieceCall, sample: int, deeper: dict[str, Any]) -> PieceCallResult:
    """Make one call: an ordinary question to the role ``sub``, or this program again as a child job."""
    if wanted.recurse:
        child = rlm(question=wanted.prompt, context=wanted.context, **deeper)
        got = await ctx.run(child, on_failure="keep")
    else:
        got = await ctx.ask(wanted.prompt, model="sub", sample=sample, on_failure="keep")
    if isinstance(got, CallFailed):
        return PieceCallResult(failed=f"{got.kind}: {got.story}"[:CALL_CHARS_SHOWN])
    return PieceCallResult(got)


def fault(outcome: PieceOutcome, returns: str) -> str:
    """Return the fault in a piece's outcome; empty if there is none."""
    if outcome.refusal is not None:
        where = f" (line {outcome.line})" if outcome.line else ""
        return f"{outcome.refusal}{where}: {outcome.why}"
    answer, is_truth = outcome.answer, isinstance(outcome.answer, bool)
    if outcome.submitted and (not isinstance(answer, _KINDS[returns]) or (is_truth and returns == "number")):
        return f"answer: submit wants a {returns}, and got a {type(answer).__name__}"
    return ""
