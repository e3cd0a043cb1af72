"""Interface between programs and the sandbox: requests, outcomes, and the closed list of refusals.

A model-written *piece* of program runs until it has ended, is refused, or waits for calls. Then it is returned with the
calls that it wants, and run again, from its first line, with their results. The sandbox keeps nothing in between: a
piece is a function of its text, its names and these results, so the caller's copy of them is the whole state of the
run. A worker runs it (``actors/sandbox/interpreter.py``): ``await ctx.run(sandbox, pieces, names, bounds)``.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from cortex.state.program import offered

ASK, ASK_MANY, RECURSE, SUBMIT = "llm", "llm_map", "rlm", "submit"
SYNONYMS = {
    ASK: ASK, "llm_query": ASK, ASK_MANY: ASK_MANY, "llm_query_batched": ASK_MANY,
    RECURSE: RECURSE, "rlm_query": RECURSE, SUBMIT: SUBMIT,
}  # fmt: skip
"""Names under which a piece can call models, sub-programs and `submit`, with their meaning."""


class SandboxRefusal(enum.StrEnum):
    """Reason why a piece did not reach its end. This list is closed."""

    SYNTAX = "syntax"
    """The piece is no valid program."""
    RAISED = "raised"
    """The piece raised an exception."""
    FORBIDDEN = "forbidden"
    """The piece used something that the sandbox does not allow."""
    TIME = "time"
    """The piece exceeded ``time_s``."""
    MEMORY = "memory"
    """The piece exceeded ``memory_mb``."""
    OUTPUT = "output"
    """The piece exceeded ``output_chars``."""
    RECURSION = "recursion"
    """The piece exceeded ``recursion``."""
    CALLS = "calls"
    """The piece exceeded ``calls``."""
    ANSWER = "answer"
    """The submitted answer is too large or no plain data."""
    CRASHED = "crashed"
    """The interpreter crashed."""
    DIFFERS = "differs"
    """The piece, run again, did not make the same calls."""


KEPT = frozenset({SandboxRefusal.RAISED, SandboxRefusal.FORBIDDEN})
"""Refusals after which the variables of the piece are kept for the next piece. After all others nothing is kept."""


class SandboxBounds(msgspec.Struct, frozen=True):
    """Limits of a run. Raises ValueError for a limit that is not above 0."""

    time_s: float = 5.0
    """Seconds of computing for each piece."""
    memory_mb: int = 256
    """Memory in MB."""
    output_chars: int = 200_000
    """Characters that each piece may print."""
    recursion: int = 200
    """Depth of frames."""
    calls: int = 1_000
    """Calls of models and sub-programs."""
    code_chars: int = 20_000
    """Characters of a piece's text."""
    answer_bytes: int = 1_000_000
    """Bytes of the answer."""
    shown_chars: int = 2_000
    """Characters of a piece's output that are returned: its beginning and its end."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


class PieceCallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a call: its value, or the text of its failure."""

    value: Any = None
    failed: str = ""


class SandboxPiece(msgspec.Struct, frozen=True, omit_defaults=True):
    """Piece of program, and the results of its calls so far, in the order of the calls."""

    code: str
    said: tuple[PieceCallResult, ...] = ()
    seal: str = ""
    """Hash of the calls that these results answer: run again, the piece must make the same calls."""


class PieceCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """Call that a piece waits for."""

    prompt: str
    context: Any = None
    recurse: bool = False


class DefinedName(msgspec.Struct, frozen=True, array_like=True):
    """Variable that a piece left behind: its name, its type and its length (if it has one), never its value."""

    name: str
    type: str
    size: int


class PieceOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """Outcome of the last piece: waiting for ``calls``, or ``submitted``, or refused, or ended."""

    calls: tuple[PieceCall, ...] = ()
    """Calls that the piece waits for."""
    seal: str = ""
    """Hash of all calls so far."""
    submitted: bool = False
    """True if the piece submitted ``answer``."""
    answer: Any = None
    refusal: SandboxRefusal | None = None
    """Reason why the piece did not reach its end; None: it did."""
    why: str = ""
    """Text of the refusal."""
    line: int = 0
    """Line of the refusal; 0: not known."""
    output: str = ""
    """Printed text, shortened to ``shown_chars``."""
    printed_chars: int = 0
    """Number of characters printed."""
    names: tuple[DefinedName, ...] = ()
    """Variables that the pieces left behind."""


@offered(repeatable=True)
def sandbox(
    pieces: list[SandboxPiece], names: dict[str, Any], bounds: SandboxBounds, recurses: bool = False
) -> PieceOutcome:
    """Run these pieces one after the other and return the outcome of the last; ``names`` are defined from the first
    line.

    ``recurses``: whether the piece may call ``rlm``.
    """
    raise NotImplementedError("the sandbox runs on workers: call it with ctx.run or RunTool")
