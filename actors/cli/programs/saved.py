"""``program save``, ``show``, ``test``, ``approve`` and ``run``: programs that a model wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime

import cortex
from actors.cli.jobs.programs import built, parameters_of
from actors.cli.jobs.settings import folder_of
from actors.cli.jobs.texts import files_of
from actors.cli.options.errors import COMPLETE, FAILED, print_data, print_error
from actors.cli.options.options import Options
from actors.common.errors import CommandError
from actors.history.catalog import last_state
from actors.jobs.spec import who
from actors.jobs.summary import summary
from actors.programs.loader import is_unchanged, load
from actors.programs.saved import (
    FOLDER,
    TESTS_MAX,
    ProgramOrigin,
    RecordedCase,
    SavedProgram,
    SavedProgramError,
    WritingCost,
    case_of,
    cases,
    needed,
    passes,
    place_of,
    read,
    write,
)
from actors.sandbox.child_pool import Sandbox
from cortex.programs.crystal import crystal
from cortex.programs.rlm import rlm
from cortex.programs.rlm_record import RecordedRun, recorded
from cortex.state.program import Program
from cortex.state.state import State

OWN = ("pieces", "name", "version", "returns")
"""Parameters that only the saved file gives."""


def save(job: str, name: str, folder: str, options: Options) -> int:
    """Run ``cortex program save`` and return the exit code."""
    path = place_of(name, folder)
    k = last_state(folder_of(options), job)
    record = _recorded(k, job)
    before = read(path) if path.exists() else None
    old = cases(path) if before is not None else []
    version = before.version + 1 if before is not None else 1
    with _sandbox() as sandbox:
        case = case_of(record, job, version)
        pieces = needed(sandbox, record, case)
        returns = record.params.get("returns", "text")
        if before is not None and (before.pieces, before.returns) == (pieces, returns):
            print_error(f"{path}: version {before.version} is already this program")
            return COMPLETE
        for each in old:
            wrong = passes(sandbox, pieces, returns, each)
            if wrong:
                raise CommandError(
                    f"not saved: version {version} fails a recorded run of version {each.version} (job {each.job}):"
                    f" {wrong}; give another name"
                )
    kept = SavedProgram(
        path.name.removesuffix(path.suffix), version, record.params["question"], returns, _origin(k), _cost(k, record),
        pieces,
    )  # fmt: skip
    write(path, kept, [*old, case][-TESTS_MAX:])
    tests = len(old) + 1
    print_error(
        f"{path}: version {version}, {_lines(kept)} lines, {tests} recorded run{'s' * (tests > 1)}, not approved yet"
    )
    print_error(f"read the program, then `cortex program approve {name}`")
    return COMPLETE


def show(name: str, folder: str, options: Options) -> int:
    """Run ``cortex program show`` and return the exit code."""
    path = place_of(name, folder)
    read(path)
    print_data(path.read_text("utf-8"))
    return COMPLETE


def test(name: str, folder: str, options: Options) -> int:
    """Run ``cortex program test`` and return the exit code."""
    path = place_of(name, folder)
    kept = read(path)
    wrong = _wrong(kept, cases(path))
    for line in wrong:
        print_error(line)
    print_error(f"{kept.name} version {kept.version}: {'fails' if wrong else 'gives the recorded answers'}")
    return FAILED if wrong else COMPLETE


def approve(name: str, folder: str, options: Options) -> int:
    """Run ``cortex program approve`` and return the exit code."""
    path = place_of(name, folder)
    kept = read(path)
    wrong = _wrong(kept, cases(path))
    if wrong:
        raise CommandError(f"not approved: {wrong[0]}")
    write(path, kept.approval(who(), _today()))
    print_error(f"{kept.name} version {kept.version} is approved: cortex run {path} INPUT")
    return COMPLETE


def saved(where: str, folder: str) -> SavedProgram:
    """Return the saved program for a file, NAME or NAME@VERSION. Raises ``SavedProgramError``."""
    name, at, version = where.partition("@")
    path = place_of(name, folder)
    kept = read(path)
    if at and version != str(kept.version):
        raise SavedProgramError(
            f"{path} is version {kept.version}, not {version}: restore that one from version control"
        )
    return kept


def program_of(where: str, inputs: list[str], pairs: list[str], folder: str = FOLDER) -> Program:
    """Return a saved program with its input as a runnable program. Raises ``CommandError`` or ``SavedProgramError``."""
    for pair in pairs:
        name = pair.partition("=")[0].strip()
        if name in OWN:
            raise CommandError(f"-p {name} is set by the saved program: leave it out")
    own = saved(where, folder).params()
    return built(crystal, pairs, {**own, **(files_of(crystal.files, inputs) if inputs else {})})


def saved_program_help(where: str) -> str:
    """Return description and parameters of a saved program, for ``cortex run NAME.toml --help``."""
    kept = saved(where, FOLDER)
    taken = [f"  -p {name}=…   {kind}, {default}" for name, kind, default in parameters_of(crystal)
             if name not in (*OWN, "question", "context")]  # fmt: skip
    lines = [f"{kept.name}: saved, version {kept.version}: {kept.question}", "", *taken, ""]
    return "\n".join([*lines, f"cortex run {where} INPUT; cortex run --help: the other options"])


def _recorded(k: State, job: str) -> RecordedRun:
    program = load(k.terms.program, k.terms.params_json)
    if type(program) is not rlm:
        raise CommandError(f"job {job} runs {k.terms.program}: only programs written by rlm can be saved")
    if not is_unchanged(k.terms.program, k.terms.params_json, k.terms.fingerprint):
        raise CommandError(f"job {job} was run by another release: run it again (its replies are reused)")
    try:
        record = recorded(program, k)
    except LookupError as error:
        raise CommandError(f"job {job}: {error}") from None
    if record.recursed:
        raise CommandError(f"job {job}: its program calls rlm, which writes new code each time, so it cannot be saved")
    return record


def _wrong(kept: SavedProgram, tests: list[RecordedCase]) -> list[str]:
    with _sandbox() as sandbox:
        found = [(each, passes(sandbox, kept.pieces, kept.returns, each)) for each in tests]
    return [f"the run of version {each.version} (job {each.job}): {wrong}" for each, wrong in found if wrong]


@contextlib.contextmanager
def _sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    try:
        yield sandbox
    finally:
        sandbox.close()


def _origin(k: State) -> ProgramOrigin:
    return ProgramOrigin(k.terms.job, k.terms.route.model, _today(), cortex.__version__)


def _cost(k: State, record: RecordedRun) -> WritingCost:
    facts = summary(k)
    tokens = facts["input_tokens"] + facts["cache_read_tokens"] + facts["cache_creation_tokens"]
    return WritingCost(record.writing_calls, facts["calls"], tokens, facts["output_tokens"], facts["cost_usd"])


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _lines(kept: SavedProgram) -> int:
    return sum(piece.count("\n") + 1 for piece in kept.pieces)
