"""The sandbox as programs know it: what they hand to it, what comes back, and the closed list of its refusals.

A model-written *piece* of program runs until it has ended, is refused, or waits for calls. Then it is given back, with
the calls that it wants; and run again, from its first line, with what they came to. Nothing of it is kept in between:
a piece is a function of its text, its names and these answers, so whoever holds those holds the run. It is run by a
worker (``actors/sandbox/interpreter.py``): ``await ctx.run(sandbox, pieces, names, bounds)``.
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
"""Names under which a piece finds what is outside, and what they mean."""


class Refusal(enum.StrEnum):
    """Why a piece did not come to its end. This list is closed."""

    SYNTAX = "syntax"
    RAISED = "raised"
    FORBIDDEN = "forbidden"
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"
    RECURSION = "recursion"
    CALLS = "calls"
    ANSWER = "answer"
    CRASHED = "crashed"
    DIFFERS = "differs"


KEPT = frozenset({Refusal.RAISED, Refusal.FORBIDDEN})
"""Refusals of a piece that ran and raised: what it did before is there for the next one. Of all others nothing is."""


class Bounds(msgspec.Struct, frozen=True):
    """What a run may use: seconds of computing a piece, MB of memory, characters printed a piece, frames, calls."""

    time_s: float = 5.0
    memory_mb: int = 256
    output_chars: int = 200_000
    recursion: int = 200
    calls: int = 1_000
    code_chars: int = 20_000
    answer_bytes: int = 1_000_000
    shown_chars: int = 2_000
    """Of what a piece printed, so much comes back: its beginning and its end."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call came to: its value, or how it failed."""

    value: Any = None
    failed: str = ""


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of program, and what its calls came to so far, in the order in which it made them."""

    code: str
    said: tuple[Said, ...] = ()
    seal: str = ""
    """Hash over the calls that these answer: run again, it must make the same."""


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that a piece waits for."""

    prompt: str
    context: Any = None
    recurse: bool = False


class Name(msgspec.Struct, frozen=True, array_like=True):
    """What a piece left behind: its name, its type and, where it has one, its length. Never its value."""

    name: str
    type: str
    size: int


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the last piece came to: it waits for ``calls``, or ``submitted``, or was refused, or just ended."""

    calls: tuple[Wanted, ...] = ()
    seal: str = ""
    submitted: bool = False
    answer: Any = None
    refusal: Refusal | None = None
    why: str = ""
    line: int = 0
    output: str = ""
    printed_chars: int = 0
    names: tuple[Name, ...] = ()


@offered(repeatable=True)
def sandbox(pieces: list[Piece], names: dict[str, Any], bounds: Bounds, recurses: bool = False) -> Outcome:
    """Run these pieces one after the other, and tell of the last; ``names`` are there from the first line.

    ``recurses``: whether ``rlm`` is among what it may call.
    """
    raise NotImplementedError("a worker runs it")
