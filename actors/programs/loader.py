"""Finding programs by the place that a journal names, and telling whether one has changed since."""

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

from actors.common.errors import UserError
from actors.programs.fingerprint import fingerprint_of, modules_of, source_of
from actors.programs.released import fingerprint_then
from cortex.programs import READY
from cortex.state.program import Program, build

_known: dict[str, type[Program]] = {}
_sources: dict[str, bytes] = {}
"""Source texts of classes that came from another process, by qualified name."""
_places: dict[type, str] = {}
"""Where such classes are found in the process that they came from."""
_FILE_MODULE = "cortex_program_"
_importing: ContextVar[bool] = ContextVar("importing", default=False)
_cut: set[str] = set()
"""Names of modules that were imported up to the line at which they would have begun a job."""
GUARD = 'put that below `if __name__ == "__main__":`'


class NoSuchProgram(UserError, ValueError):
    """No program is found at that place. The message is one clear line."""


class _JobBegunOnImport(BaseException):
    """A module that is imported for its programs would begin a job. No author's ``except Exception`` is to catch it."""


def refuse_in_import() -> None:
    """Called before a job is begun from Python. A module that is imported for a program of it, to read or resume a job,
    ends there: what stands above is all that there was when the job was begun by that line, and nothing is paid."""
    if _importing.get():
        raise _JobBegunOnImport


@contextlib.contextmanager
def _import() -> Iterator[None]:
    """An author's module is imported meanwhile; what it prints is no part of a result."""
    token = _importing.set(True)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _importing.reset(token)


def place_of(type_: type[Program]) -> str:
    """Where a class is found again: the name of a ready program, ``module:Class``, or ``file.py:Class``."""
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


def is_ready(where: str) -> bool:
    """Whether a program is part of this package: no author's code is run to find it."""
    return READY.get(where, where).startswith("cortex.programs.")


def find(where: str) -> type[Program]:
    """The class at a place. Raises ``NoSuchProgram``."""
    place = READY.get(where, where)
    module_name, _, class_name = place.rpartition(":")
    module: object
    if module_name.endswith(".py"):
        module_name = os.path.realpath(module_name)  # wherever the working folder is next time
        place = f"{module_name}:{class_name}"
    if place in _known:
        return _known[place]
    if not module_name:
        ready = ", ".join(sorted(READY))
        near = f"did you mean {where}.py? " if Path(f"{where}.py").is_file() else ""
        raise NoSuchProgram(f"no program {where!r}: {near}ready ones are {ready}; else module:Class or file.py:Class")
    try:
        with _import():
            if module_name.endswith(".py"):
                module = _file(Path(module_name))
            else:
                _look_in(Path.cwd())
                module = importlib.import_module(module_name)
    # an author's module may raise anything while it is imported
    except (Exception, SystemExit, _JobBegunOnImport) as error:
        raise _not_imported(where, error) from None
    found: object = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if found is None and getattr(module, "__name__", "") in _cut:
        raise NoSuchProgram(f"{module_name} begins a job before it has {class_name}: {GUARD}")
    if found is None:
        raise NoSuchProgram(f"{module_name} has no {class_name}")
    if not (isinstance(found, type) and issubclass(found, Program)):
        raise NoSuchProgram(f"{where} is no cortex.Program")
    _known[place] = found
    return found


def adopt(where: str, type_: type[Program]) -> None:
    """Take in a class that came from another process, under the place that it has there."""
    _known[where] = type_
    _known[f"{type_.__module__}:{type_.__qualname__}"] = type_
    _places[type_] = where


def alias(where: str, place: str) -> None:
    """Find under one place what stands at another. Raises ``NoSuchProgram``."""
    _known[where] = find(place)


def settle(where: str, place: str, moved: Mapping[str, str]) -> None:
    """Find under the place that it has elsewhere what was brought here; so with other programs of those files.

    ``moved``: where each file of it stands now, by where it stood. Raises ``NoSuchProgram``.
    """
    file, _, name = place.rpartition(":")
    type_ = find(f"{moved.get(file, file)}:{name}")
    now = sys.modules[type_.__module__]
    for each in vars(now).values():
        if isinstance(each, type) and issubclass(each, Program) and each.__module__ == now.__name__:
            adopt(f"{file}:{each.__qualname__}", each)
    _known[where] = type_


def adopt_sources(sources: dict[str, bytes]) -> None:
    """Take in the source texts of classes that came from another process, by qualified name."""
    _sources.update(sources)


def forget(where: str) -> None:
    """Look a class up anew the next time: its source may have changed."""
    place = READY.get(where, where)
    type_ = _known.pop(place, None)
    if type_ is None or type_ in _places or type_.__module__ == "__main__":
        return
    for name in modules_of(type_):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def programs_in(path: str) -> list[str]:
    """Names of the programs that a file defines. Raises ``NoSuchProgram``."""
    try:
        with _import():
            module = _file(Path(path))
    # an author's module may raise anything while it is imported
    except (Exception, SystemExit, _JobBegunOnImport) as error:
        raise _not_imported(path, error) from None
    own = _FILE_MODULE + sha256(str(Path(path).resolve()).encode()).hexdigest()[:12]
    return [
        name for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Program) and value.__module__ == own
    ]  # fmt: skip


def _not_imported(where: str, error: BaseException) -> NoSuchProgram:
    if isinstance(error, _JobBegunOnImport):
        return NoSuchProgram(f"program {where!r} begins a job when it is imported: {GUARD}")
    module = where.rpartition(":")[0]
    if module == "__main__" or module.endswith(">"):
        text = "was given in a notebook or on standard input: go on with its job there"
        return NoSuchProgram(f"program {where!r} {text}")
    text = " ".join(str(error).split())
    return NoSuchProgram(f"program {where!r} cannot be imported: {type(error).__name__}: {text}")


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
    """Modules are looked for there too: last, so that nothing there hides what is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load(where: str, params_json: bytes) -> Program:
    """A program from its place and its fields. Raises ``ValueError`` with one clear line."""
    return build(find(where), params_json)


def fingerprint(where: str, params_json: bytes) -> str:
    """Hash over a program: its source and what it is made of, its parameters and the release."""
    return fingerprint_of(find(where), params_json, _sources)


def is_unchanged(where: str, params_json: bytes, before: str) -> bool:
    """Return whether ``before``, a fingerprint from a journal, is that of the program as it is now.

    Raises ``ValueError`` where the program is gone.
    """
    return before != "" and before in (fingerprint(where, params_json), fingerprint_then(where, params_json))


def source(type_: type) -> bytes:
    """Source of the module that defines a class, else of the class alone (a notebook), else its name."""
    return source_of(type_, _sources)
