"""Telling whether a program has changed: a hash over its source, that of the modules it is made of, and the release."""

from __future__ import annotations

import ast
import inspect
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import cortex
from cortex.program import Program


def fingerprint_of(type_: type[Program], params_json: bytes, cells: dict[str, bytes]) -> str:
    """24 hex digits. ``cells``: sources of classes that came from a notebook, by name.

    A program is made of the module of its class, those of its bases, and whatever these import from beside them: a
    prompt kept in the file next to it counts, an installed library does not.
    """
    digest = sha256(cortex.__version__.encode() + b"\0" + params_json)
    seen: set[str] = set()
    for base in type_.__mro__:
        if issubclass(base, Program) and base is not Program:
            _take(base, digest.update, cells, seen)
    return digest.hexdigest()[:24]


def source_of(type_: type, cells: dict[str, bytes]) -> bytes:
    """Source of the module that defines a class, else of the class alone (a notebook), else its name."""
    if type_.__module__ == "__main__" and type_.__qualname__ in cells:
        return cells[type_.__qualname__]
    module = sys.modules.get(type_.__module__)
    try:
        if type_.__module__ != "__main__" and module is not None:
            return inspect.getsource(module).encode()
        return inspect.getsource(type_).encode()
    except (OSError, TypeError):
        return type_.__qualname__.encode()


def modules_of(type_: type[Program]) -> set[str]:
    """Names of the modules, loaded here, that a program is made of."""
    own = {
        base.__module__ for base in type_.__mro__
        if issubclass(base, Program) and not base.__module__.startswith("cortex.") and base.__module__ in sys.modules
    }  # fmt: skip
    return own.union(*(_beside(sys.modules[name], set(own)) for name in own))


def _take(base: type, update: object, cells: dict[str, bytes], seen: set[str]) -> None:
    assert callable(update)
    text = source_of(base, cells)
    update(text)
    module = sys.modules.get(base.__module__)
    if base.__module__ == "__main__" or module is None or base.__module__ in seen:
        return
    seen.add(base.__module__)
    for name in sorted(_beside(module, seen)):
        update(Path(str(sys.modules[name].__file__)).read_bytes())


def _beside(module: ModuleType, seen: set[str]) -> set[str]:
    """Names of the modules in the same folder that a module imports, and those that these import in turn."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for name in _imported(waiting.pop()) - seen:
            other = sys.modules.get(name)
            if other is not None and _folder(other) == _folder(module) is not None:
                seen.add(name)
                found.add(name)
                waiting.append(other)
    return found


def _imported(module: ModuleType) -> set[str]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve().parent if file else None
