"""Loader of programs by the place that a journal names, and check for changes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

from actors.common.errors import UserError
from actors.programs import answer_types
from actors.programs.answer_types import holds_types
from actors.programs.fingerprint import fingerprint_of, modules_of, source_of, sources_of
from actors.programs.released import fingerprint_then
from cortex.programs import READY
from cortex.state.program import Program, build

_known: dict[str, type[Program]] = {}
_sources: dict[str, bytes] = {}
"""Sources of classes from another process, by qualified name."""
_places: dict[type, str] = {}
"""Places of such classes in the process that they came from."""
_FILE_MODULE = "cortex_program_"
_importing: ContextVar[bool] = ContextVar("importing", default=False)
_cut: set[str] = set()
"""Names of modules that were imported up to a line that would have begun a job."""
GUARD = 'put that below `if __name__ == "__main__":`'


class NoSuchProgram(UserError, ValueError):
    """No program exists at a place. The message is one line for users."""


class _JobBegunOnImport(BaseException):
    """An imported module of programs would begin a job. A ``BaseException``, so that an author's ``except Exception``
    does not catch it."""


def refuse_in_import() -> None:
    """Stop the import of a module at a line that would begin a job.

    Called before a job is begun from Python. While a module is imported for its programs, to read or resume a job, the
    import ends at that line, and nothing is paid: the definitions above it are those that the job began with.
    """
    if _importing.get():
        raise _JobBegunOnImport


@contextlib.contextmanager
def _import() -> Iterator[None]:
    """Mark the import of an author's module; its prints go to standard error, away from results."""
    token = _importing.set(True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _importing.reset(token)


def place_of(type_: type[Program]) -> str:
    """Return the place of a class: the name of a built-in program, ``module:Class``, or ``file.py:Class``."""
    if type_ in _places:
        return _places[type_]
    where = f"{type_.__module__}:{type_.__qualname__}"
    for name, place in READY.items():
        if place == where:
            return name
    _known[where] = type_
    if type_.__module__ == "__main__" or type_.__module__.startswith(_FILE_MODULE):
        source = getattr(sys.modules.get(type_.__module__), "__file__", None)
        if source is not None:
            where = f"{Path(source).resolve()}:{type_.__qualname__}"
            _known[where] = type_
    return where


def is_ready(where: str, params_json: bytes = b"") -> bool:
    """Return True for a built-in program, which is found without running an author's code. ``params_json``: its
    parameters, which may name a type of an author."""
    return READY.get(where, where).startswith("cortex.programs.") and not holds_types(params_json)


def find(where: str) -> type[Program]:
    """Return the class at a place. Raises ``NoSuchProgram``."""
    place = READY.get(where, where)
    module_name, _, class_name = place.rpartition(":")
    if module_name.endswith(".py"):
        place = f"{os.path.realpath(module_name)}:{class_name}"  # valid from any working directory
    if place in _known:
        return _known[place]
    if not module_name:
        ready = ", ".join(sorted(READY))
        near = f"did you mean {where}.py? " if Path(f"{where}.py").is_file() else ""
        raise NoSuchProgram(f"no program {where!r}: {near}ready ones are {ready}; else module:Class or file.py:Class")
    found = at(place, f"program {where!r}")
    if not (isinstance(found, type) and issubclass(found, Program)):
        raise NoSuchProgram(f"{where} is not a program: name a flow or a subclass of cortex.Program")
    _known[place] = found
    return found


def at(place: str, noun: str) -> Any:
    """Import the object at a place, ``module:Name`` or ``file.py:Name``. ``noun``: its name in errors.

    Raises ``NoSuchProgram``.
    """
    module_name, _, name = place.rpartition(":")
    module: object
    try:
        with _import():
            if module_name.endswith(".py"):
                module = _file(Path(os.path.realpath(module_name)))
            else:
                _look_in(Path.cwd())
                module = importlib.import_module(module_name)
    # an author's module may raise anything while it is imported
    except (Exception, SystemExit, _JobBegunOnImport) as error:
        raise _not_imported(place, noun, error) from None
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None and getattr(module, "__name__", "") in _cut:
        raise NoSuchProgram(f"{module_name} begins a job before it has {name}: {GUARD}")
    if found is None:
        raise _of_a_notebook(noun) if module_name == "__main__" else NoSuchProgram(f"{module_name} has no {name}")
    return found


def adopt(where: str, type_: type[Program]) -> None:
    """Register a class from another process, under its place there."""
    _known[where] = type_
    _known[f"{type_.__module__}:{type_.__qualname__}"] = type_
    _places[type_] = where


def alias(where: str, place: str) -> None:
    """Register the program of one place under another. Raises ``NoSuchProgram``."""
    _known[where] = find(place)


def settle(where: str, place: str, moved: Mapping[str, str]) -> None:
    """Register a program that was copied to this machine under its original place, with the other programs of its
    files.

    ``moved``: original path of each file -> its path here. Raises ``NoSuchProgram``.
    """
    file, _, name = place.rpartition(":")
    type_ = find(f"{moved.get(file, file)}:{name}")
    now = sys.modules[type_.__module__]
    for each in vars(now).values():
        if isinstance(each, type) and issubclass(each, Program) and each.__module__ == now.__name__:
            adopt(f"{file}:{each.__qualname__}", each)
    _known[where] = type_


def adopt_sources(sources: dict[str, bytes]) -> None:
    """Register sources of classes from another process, by qualified name."""
    _sources.update(sources)


def forget(where: str) -> None:
    """Load a class again at its next use: its source may have changed."""
    place = READY.get(where, where)
    type_ = _known.pop(place, None)
    if type_ is None or type_ in _places or type_.__module__ == "__main__":
        return
    for name in modules_of(type_):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def programs_in(path: str) -> list[str]:
    """Return the names of the programs that a file defines. Raises ``NoSuchProgram``."""
    try:
        with _import():
            module = _file(Path(path))
    # an author's module may raise anything while it is imported
    except (Exception, SystemExit, _JobBegunOnImport) as error:
        raise _not_imported(path, f"program {path!r}", error) from None
    own = _FILE_MODULE + sha256(str(Path(path).resolve()).encode()).hexdigest()[:12]
    return [
        name for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Program) and value.__module__ == own
    ]  # fmt: skip


def _not_imported(place: str, noun: str, error: BaseException) -> NoSuchProgram:
    if isinstance(error, _JobBegunOnImport):
        return NoSuchProgram(f"{noun} begins a job when it is imported: {GUARD}")
    module = place.rpartition(":")[0]
    if module == "__main__" or module.endswith(">"):
        return _of_a_notebook(noun)
    text = " ".join(str(error).split())
    return NoSuchProgram(f"{noun} cannot be imported: {type(error).__name__}: {text}")


def _of_a_notebook(noun: str) -> NoSuchProgram:
    return NoSuchProgram(f"{noun} was given in a notebook or on standard input: go on with its job there")


def _file(path: Path) -> object:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = _FILE_MODULE + sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _look_in(path.resolve().parent)
    _cut.discard(name)
    try:
        spec.loader.exec_module(module)
    except _JobBegunOnImport:
        _cut.add(name)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _look_in(folder: Path) -> None:
    """Add a folder to the module search path, last, so that it does not hide installed modules."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load(where: str, params_json: bytes) -> Program:
    """Return a program from its place and parameters; the types that check its answers are registered.

    Raises ``ValueError`` with one line.
    """
    program = build(find(where), params_json)
    answer_types.load(program.answer_types(), at)
    return program


def types_of(where: str, params_json: bytes) -> tuple[str, ...]:
    """Return the places of the types that check the answers of a program. Raises ``ValueError`` with one line."""
    return build(find(where), params_json).answer_types() if holds_types(params_json) else ()


def fingerprint(where: str, params_json: bytes) -> str:
    """Return the fingerprint of a program: its source and parts, its parameters, the source of the types that check its
    answers, and the release. Raises ``ValueError`` with one line."""
    own = fingerprint_of(find(where), params_json, _sources)
    places = types_of(where, params_json)
    if not places:
        return own
    answer_types.load(places, at)
    digest = sha256(own.encode())
    for place in places:
        digest.update(answer_types.library_of(place).encode())  # a replay must come to the same verdicts
        for text in sources_of(answer_types.type_at(place), _sources):
            digest.update(b"\0" + text)
    return digest.hexdigest()[:24]


def is_unchanged(where: str, params_json: bytes, before: str) -> bool:
    """Return whether ``before``, a fingerprint from a journal, is that of the present program.

    Raises ``ValueError`` if the program is gone.
    """
    return before != "" and before in (fingerprint(where, params_json), fingerprint_then(where, params_json))


def source(type_: type) -> bytes:
    """Return the source of the module that defines a class; of the class alone in a notebook; else its name."""
    return source_of(type_, _sources)
