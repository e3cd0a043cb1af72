"""``crystal``: run a saved program, which a model wrote earlier, on new input without asking the model again.

The program is stored in a file (``cortex program save``), read and approved by a person, and run from there. Its calls
of ``llm`` are ordinary bounded calls, as when it was written; no model writes code.
"""

from __future__ import annotations

from typing import Any

from cortex.flows import CallFailed, Context, flow
from cortex.programs.rlm import Kind, fault, ran
from cortex.state.sandbox import KEPT, SandboxBounds, SandboxPiece, sandbox
from policies.failures.failure import FailureKind


@flow
async def crystal(
    ctx: Context, pieces: tuple[str, ...], name: str = "it", version: int = 0, question: str = "", context: Any = "",
    returns: Kind = "text", calls: int = 1_000,
) -> Any:  # fmt: skip
    """Run the pieces of a saved program one after the other, until one submits an answer.

    ``context`` is the new input; ``question`` is available to the program. ``calls``: limit over all pieces together.
    """
    bounds, names = SandboxBounds(calls=calls), {"context": context, "question": question}
    kept: list[SandboxPiece] = []
    asked: set[tuple[str, int]] = set()
    text = "it ended and submitted nothing"
    for code in pieces:
        piece, outcome = await ran(ctx, kept, code, names, bounds, asked)
        kept.append(piece)
        wrong = fault(outcome, returns)
        if outcome.submitted and not wrong:
            return outcome.answer
        if wrong and (outcome.submitted or outcome.refusal not in KEPT):
            raise CallFailed(FailureKind.FAULTY, f"{name} version {version}: {wrong}")
        text = wrong or text
    raise CallFailed(FailureKind.FAULTY, f"{name} version {version}: {text}")


crystal.files = "context"
crystal.tools = {sandbox.__name__: sandbox}
