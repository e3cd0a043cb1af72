"""Mapping of an interpreter's errors to the closed list of refusals."""

from __future__ import annotations

import pydantic_monty as monty

from cortex.state.sandbox import KEPT, SandboxRefusal

WHY_CHARS = 300
_NOT_THERE = frozenset(
    "__import__ __builtins__ __loader__ breakpoint compile dir exit globals help input memoryview quit vars".split()
)
_SHUT = frozenset({"ImportError", "ModuleNotFoundError", "PermissionError"})
_WHERE = " is not supported in this environment"


class PieceEnded(Exception):
    """End of a piece; without a refusal, its regular end."""

    def __init__(self, refusal: SandboxRefusal | None = None, why: str = "", line: int = 0) -> None:
        self.refusal, self.why, self.line = refusal, " ".join(why.split())[:WHY_CHARS], line
        super().__init__(self.why)

    @property
    def spoilt(self) -> bool:
        """True if later pieces must not build on this one."""
        return self.refusal is not None and self.refusal not in KEPT


def judged(error: monty.MontyError) -> PieceEnded:
    """Return the end of a piece for an error."""
    if isinstance(error, monty.MontyCrashedError):
        if error.timed_out or "time limit" in str(error) or "timeout" in str(error):
            return PieceEnded(SandboxRefusal.TIME, "it was stopped: it computed for too long in one step")
        return PieceEnded(SandboxRefusal.CRASHED, "its process died")
    if isinstance(error, monty.MontySyntaxError):
        return PieceEnded(SandboxRefusal.SYNTAX, error.display("msg"), _line(error))
    if not isinstance(error, monty.MontyRuntimeError):
        return PieceEnded(SandboxRefusal.CRASHED, str(error))
    text = error.display("type-msg")[: 4 * WHY_CHARS]
    kind, _, message = text.partition(": ")
    return PieceEnded(_kind(kind, message, not error.traceback()), text, _line(error))


def _kind(kind: str, message: str, nowhere: bool) -> SandboxRefusal:
    """Return the refusal for an exception. ``nowhere``: raised by a limit and not by a line of the piece."""
    if kind == "TimeoutError" and nowhere:
        return SandboxRefusal.TIME
    if kind == "MemoryError":
        return SandboxRefusal.MEMORY
    if kind == "RecursionError":
        return SandboxRefusal.RECURSION
    if kind == "RuntimeError" and message.startswith("suspension limit"):
        return SandboxRefusal.CALLS
    if kind == "NotImplementedError" and "monty" in message:
        return SandboxRefusal.SYNTAX
    if "backtracking" in message and kind.endswith("PatternError"):
        return SandboxRefusal.TIME
    named = message.rpartition(" attribute ")[2].strip("'") if kind == "AttributeError" else ""
    name = message.partition("name '")[2].partition("'")[0] if kind == "NameError" else ""
    absent = named.startswith("__") or ("module '" in message[:8] and kind == "AttributeError")
    if kind in _SHUT or absent or name in _NOT_THERE or message.endswith(_WHERE):
        return SandboxRefusal.FORBIDDEN
    return SandboxRefusal.RAISED


def _line(error: monty.MontyRuntimeError | monty.MontySyntaxError) -> int:
    frames = error.traceback()
    return frames[-1].line if frames else 0
