"""Saved programs on disk: a readable file for each, and beside it recorded runs as its tests.

    programs/late-deliveries.toml           description, origin, cost, approval and code
    programs/late-deliveries.tests.jsonl    a recorded run a line: input, calls with their answers, answer

Keep both files in version control. A program runs only if its digest is the approved one.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from actors.common.errors import UserError
from actors.files.local.new_files import opened_new
from actors.sandbox.child_pool import Sandbox
from cortex.programs.rlm import Kind, fault
from cortex.programs.rlm_record import RecordedRun, calls_of
from cortex.state.sandbox import KEPT, PieceCallResult, SandboxBounds, SandboxPiece

FORM = 1
"""Version of the file format; other versions are refused."""
SUFFIX, TESTS = ".toml", ".tests.jsonl"
FOLDER = "programs"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
TESTS_MAX = 50
CALLS_MAX = 10_000


class SavedProgramError(UserError, ValueError):
    """A saved program cannot be read, run or saved. The message is one line for users."""


class ProgramOrigin(msgspec.Struct, frozen=True):
    """Origin of a saved program."""

    job: str
    model: str
    date: str
    cortex: str


class WritingCost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Cost of the run that wrote the program; ``writing_calls`` are the calls that a later run saves."""

    writing_calls: int
    calls: int
    input_tokens: int
    output_tokens: int
    usd: float | None = None


class ProgramApproval(msgspec.Struct, frozen=True):
    """Approval: author, date, and digest of the approved version."""

    by: str
    date: str
    digest: str


class SavedProgram(msgspec.Struct, frozen=True, omit_defaults=True):
    """Program that a model wrote, with its origin, cost and approval."""

    name: str
    version: int
    question: str
    returns: Kind
    origin: ProgramOrigin
    cost: WritingCost
    pieces: tuple[str, ...]
    approved: ProgramApproval | None = None

    def digest(self) -> str:
        """Return a hash of all that runs: name, version, question, kind of answer, code."""
        entries = (self.name, self.version, self.question, self.returns, self.pieces)
        return hashlib.sha256(msgspec.json.encode(entries)).hexdigest()

    def approval(self, by: str, date: str) -> SavedProgram:
        """Return a copy that is approved in its present version."""
        return msgspec.structs.replace(self, approved=ProgramApproval(by, date, self.digest()))

    def params(self) -> dict[str, Any]:
        """Return the parameters for ``crystal``. Raises ``SavedProgramError`` unless this version is approved."""
        which = f"{self.name} version {self.version}"
        if self.approved is None:
            raise SavedProgramError(f"{which} is not approved: read it, then `cortex program approve {self.name}`")
        if self.approved.digest != self.digest():
            by = self.approved.by
            raise SavedProgramError(
                f"{which} was changed since {by} approved it: read it, then `cortex program approve {self.name}`"
            )
        return {
            "pieces": self.pieces, "name": self.name, "version": self.version, "returns": self.returns,
            "question": self.question,
        }  # fmt: skip


class RecordedCase(msgspec.Struct, frozen=True, omit_defaults=True):
    """Recorded run: input, calls with their answers, answer."""

    version: int
    job: str
    question: str
    context: Any
    calls: list[tuple[str, PieceCallResult]]
    answer: Any


# -- files ---------------------------------------------------------------------------------------------------------


def place_of(name: str, folder: str = FOLDER) -> Path:
    """Return the file of a saved program, from its name or path. Raises ``SavedProgramError`` for an invalid name."""
    if name.endswith(SUFFIX):
        return Path(name)
    if NAME.fullmatch(name) is None:
        raise SavedProgramError(f"{name!r} is no name for a program: use letters, digits, - and _, at most 64")
    return Path(folder) / f"{name}{SUFFIX}"


def read(path: Path) -> SavedProgram:
    """Read a saved program. Raises ``SavedProgramError``."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise SavedProgramError(
            f"{path} does not exist: save a program with `cortex program save JOB --as NAME`"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise SavedProgramError(f"{path} cannot be read: {error}") from None
    form = found.pop("form", None)
    if form != FORM:
        raise SavedProgramError(f"{path} has form {form!r}; this release reads form {FORM}: save the program again")
    try:
        found["pieces"] = [piece["code"].strip("\n") for piece in found.get("pieces", [])]
        read_ = msgspec.convert(found, SavedProgram)
    except (msgspec.ValidationError, AttributeError, KeyError, TypeError) as error:
        raise SavedProgramError(f"{path} is not a valid saved program: {error}") from None
    if read_.name != path.name.removesuffix(SUFFIX):
        raise SavedProgramError(f"{path} holds the name {read_.name!r}: rename the file, or change the name in it")
    return read_


def cases(path: Path) -> list[RecordedCase]:
    """Read the recorded runs of a saved program. Raises ``SavedProgramError`` with the line."""
    place, found = _tests(path), []
    try:
        lines = place.read_bytes().splitlines()
    except FileNotFoundError:
        raise SavedProgramError(f"{place}: its recorded runs are missing: restore them from version control") from None
    except OSError as error:
        raise SavedProgramError(f"{place} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.json.decode(line, type=RecordedCase))
        except (ValueError, RecursionError) as error:
            raise SavedProgramError(f"{place} line {number}: {error}") from None
    if not found:
        raise SavedProgramError(f"{place} holds no recorded run: restore it from version control")
    return found


def write(path: Path, kept: SavedProgram, tests: list[RecordedCase] | None = None) -> None:
    """Write both files, each completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if tests is not None:
        _put(_tests(path), b"".join(msgspec.json.encode(each) + b"\n" for each in tests))
    _put(path, _toml(kept).encode())


def _tests(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(SUFFIX) + TESTS)


def _put(place: Path, content: bytes) -> None:
    part = place.with_name(f".{place.name}.part")
    with os.fdopen(opened_new(part), "wb") as file:
        file.write(content)
    os.replace(part, place)


def _toml(kept: SavedProgram) -> str:
    head = (
        f"# A program that a model wrote. Read it, then: cortex program approve {kept.name}\n"
        f"# Run it: cortex run {kept.name}{SUFFIX} INPUT. What is changed here must be approved again.\n"
    )
    lines = [head, f"form = {FORM}"]
    lines += [f"{name} = {_value(getattr(kept, name))}" for name in ("name", "version", "question", "returns")]
    for name, table in (("origin", kept.origin), ("cost", kept.cost), ("approved", kept.approved)):
        if table is not None:
            lines.append(f"\n[{name}]")
            given = msgspec.structs.asdict(table).items()
            lines += [f"{key} = {_value(value)}" for key, value in given if value is not None]
    for piece in kept.pieces:
        lines.append(f"\n[[pieces]]\ncode = {_code(piece)}")
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _code(code: str) -> str:
    plain = "'''" not in code and all(each in "\n\t" or each.isprintable() for each in code)
    return f"'''\n{code}\n'''" if plain else _value(code)


# -- tests ---------------------------------------------------------------------------------------------------------


def case_of(recorded: RecordedRun, job: str, version: int) -> RecordedCase:
    """Return a recorded run as a test case."""
    params = recorded.params
    return RecordedCase(
        version, job, params["question"], params.get("context", ""), calls_of(recorded), recorded.answer
    )


def passes(sandbox: Sandbox, pieces: tuple[str, ...], returns: str, case: RecordedCase) -> str:
    """Run pieces with the input and the answers of a recorded run. Return the first fault in one line; empty if none.
    """
    answers: dict[str, list[PieceCallResult]] = {}
    for prompt, came in case.calls:
        answers.setdefault(prompt, []).append(came)
    kept: list[SandboxPiece] = []
    names = {"context": case.context, "question": case.question}
    for code in pieces:
        piece, seen = SandboxPiece(code), dict.fromkeys(answers, 0)
        while True:
            outcome = sandbox.outcome([*kept, piece], names, SandboxBounds(calls=CALLS_MAX))
            if not outcome.calls:
                break
            new = [wanted.prompt for wanted in outcome.calls if wanted.prompt not in answers or wanted.recurse]
            if new:
                more = f" and {len(new) - 1} more" if len(new) > 1 else ""
                return f"it makes calls that were not recorded: {' '.join(new[0].split())[:60]!r}{more}"
            parts = list(piece.said)
            for wanted in outcome.calls:
                there = answers[wanted.prompt]
                parts.append(there[min(seen[wanted.prompt], len(there) - 1)])
                seen[wanted.prompt] += 1
            piece = SandboxPiece(code, tuple(parts), outcome.seal)
        kept.append(piece)
        wrong = fault(outcome, returns)
        if wrong and (outcome.submitted or outcome.refusal not in KEPT):
            return wrong
        if outcome.submitted:
            same = outcome.answer == case.answer
            return "" if same else f"it answers {outcome.answer!r:.60} where {case.answer!r:.60} was recorded"
    return "it submits nothing"


def needed(sandbox: Sandbox, recorded: RecordedRun, case: RecordedCase) -> tuple[str, ...]:
    """Return the shortest tail of a run's pieces that gives its answer; the pieces before only explored.

    Raises ``SavedProgramError`` if not even all pieces give it.
    """
    codes = tuple(piece.code for piece in recorded.pieces)
    why = "it has no pieces"
    for begin in range(len(codes) - 1, -1, -1):
        why = passes(sandbox, codes[begin:], recorded.params.get("returns", "text"), case)
        if not why:
            return codes[begin:]
    raise SavedProgramError(f"the program does not give its answer again with its recorded calls: {why}")
