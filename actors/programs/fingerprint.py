"""Fingerprint of a program: a hash of its source, of the modules that it consists of, and of the release."""

from __future__ import annotations

import ast
import builtins
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

import cortex
from cortex.state.program import Program

_READY = "cortex.programs."


def fingerprint_of(type_: type[Program], params_json: bytes, cells: dict[str, bytes]) -> str:
    """Return the fingerprint of a program and its parameters: 24 hex digits.

    ``cells``: sources of classes from a notebook, by name. Comments, docstrings and imports of a built-in program
    (``cortex.programs``) do not count, unless it is a flow: a checkpoint of a flow holds line numbers of its source.

    A program consists of the module of its class, those of its bases, and the modules that these import from the same
    folder: prompts in a file beside it count, installed libraries do not.
    """
    digest = sha256(cortex.__version__.encode() + b"\0" + params_json)
    seen: set[str] = set()
    for base in type_.__mro__:
        if issubclass(base, Program) and base is not Program:
            _take(base, digest.update, cells, seen)
    return digest.hexdigest()[:24]


def source_of(type_: type, cells: dict[str, bytes]) -> bytes:
    """Return the source of the module that defines a class; of the class alone in a notebook; else its name.

    A script that is run equals the module that others import from its file. For a flow in a notebook, the source is
    that of the function and of all that it uses from other cells.
    """
    if type_.__module__ == "__main__" and type_.__qualname__ in cells:
        return cells[type_.__qualname__]
    module = sys.modules.get(type_.__module__)
    try:
        if module is not None and _has_file(type_):
            return inspect.getsource(module).encode()
        function = getattr(type_, "function", None)
        if isinstance(function, FunctionType):
            return "\0".join(_spoken_of(function)).encode()
        return inspect.getsource(type_).encode()
    except (OSError, TypeError):
        return type_.__qualname__.encode()


def class_of(type_: Any) -> type:
    """Return the class of a Python type that is annotated or has parameters, or the class itself."""
    while not isinstance(type_, type):
        type_ = get_args(type_)[0] if get_origin(type_) is Annotated else get_origin(type_) or type(type_)
    return type_


def sources_of(type_: Any, cells: dict[str, bytes]) -> list[bytes]:
    """Return the sources of a Python type: that of its module, and those of the imported modules of its folder; in a
    notebook and at a prompt those of its methods and of the types of its fields."""
    own = class_of(type_)
    if own.__module__ == "__main__" and own.__qualname__ in cells:
        return [cells[own.__qualname__]]
    module = sys.modules.get(own.__module__)
    file = getattr(module, "__file__", None) or ""  # "<stdin>" at a prompt
    if module is None or (own.__module__ == "__main__" and not Path(file).is_file()):
        return [text.encode() for text in _spoken_of_class(own)]
    beside = sorted(_beside(module, {module.__name__}))
    return [source_of(own, cells), *(Path(str(sys.modules[name].__file__)).read_bytes() for name in beside)]


def _spoken_of_class(type_: type) -> Iterator[str]:
    """Yield the sources of a class's methods, with what they use from other cells, and those of its bases and of the
    types of its fields from the same module. A method without a source counts by its code."""
    waiting, seen = [type_], {type_}
    while waiting:
        one = waiting.pop(0)
        yield one.__qualname__
        for value in vars(one).values():
            function = inspect.unwrap(getattr(value, "__func__", getattr(value, "wrapped", value)))
            if isinstance(function, FunctionType) and function.__module__ == one.__module__:
                yield from _spoken_of(function)
                yield from map(_code_text, _codes(function.__code__)) if not _has_source(function) else ()
        parts = [*one.__bases__, *_classes_in(getattr(one, "__annotations__", {}).values(), one)]
        new = [each for each in parts if each.__module__ == type_.__module__ and each not in seen]
        seen.update(new)
        waiting += new


def _has_source(function: FunctionType) -> bool:
    try:
        return bool(inspect.getsource(function))
    except (OSError, TypeError):
        return False


def _code_text(code: CodeType) -> str:
    """Return the code of a function as a text that is the same in each process of one Python version."""
    plain = [each for each in code.co_consts if not isinstance(each, CodeType)]
    constants = [sorted(map(repr, each)) if isinstance(each, frozenset) else repr(each) for each in plain]
    return f"{code.co_code!r} {code.co_names} {constants}"


def _classes_in(annotations: Iterable[Any], own: type) -> Iterator[type]:
    """Yield the classes that annotations name, also as texts of the class's module."""
    names = vars(sys.modules.get(own.__module__, builtins))
    for each in annotations:
        if isinstance(each, str):
            found = [names.get(word) for word in re.findall(r"\w+", each)]
            yield from (value for value in found if isinstance(value, type))
        elif isinstance(each, type) and not get_args(each):
            yield each
        else:
            yield from _classes_in(get_args(each), own)


def _has_file(type_: type) -> bool:
    """Return True for a class of a module with a file, not of a notebook cell or a prompt."""
    return type_.__module__ != "__main__" or _folder(sys.modules["__main__"]) is not None


def _spoken_of(function: FunctionType) -> Iterator[str]:
    """Yield the source of a function, of the functions and classes of other cells that it uses, and values of
    constants."""
    waiting: list[Any] = [function]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        inner = getattr(one, "function", None)
        if isinstance(inner, FunctionType):
            waiting.append(inner)  # another flow
            continue
        try:
            yield inspect.getsource(one) if isinstance(one, (FunctionType, type)) else repr(one)
        except (OSError, TypeError):
            yield one.__qualname__
        if isinstance(one, FunctionType):
            names = sorted({name for code in _codes(one.__code__) for name in code.co_names})
            known = [one.__globals__[name] for name in names if name in one.__globals__]
            waiting += [each for each in known if _of_a_cell(each, function)]


def _of_a_cell(value: Any, function: FunctionType) -> bool:
    if isinstance(value, (FunctionType, type)):
        return value.__module__ == function.__module__
    return isinstance(value, (str, bytes, int, float, bool)) or get_origin(value) is Literal


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def modules_of(type_: type[Program]) -> set[str]:
    """Return the names of the loaded modules that a program consists of."""
    own = {
        base.__module__ for base in type_.__mro__
        if issubclass(base, Program) and not base.__module__.startswith("cortex.") and base.__module__ in sys.modules
    }  # fmt: skip
    return own.union(*(_beside(sys.modules[name], set(own)) for name in own))


def _take(base: type[Program], update: object, cells: dict[str, bytes], seen: set[str]) -> None:
    assert callable(update)
    ready = base.__module__.startswith(_READY) and not base.traced
    text = source_of(base, cells)
    update(_code_of(text) if ready else text)
    module = sys.modules.get(base.__module__)
    if not _has_file(base) or module is None or base.__module__ in seen:
        return
    seen.add(base.__module__)
    for name in sorted(_beside(module, seen)):
        text = Path(str(sys.modules[name].__file__)).read_bytes()
        update(_code_of(text) if ready else text)


@lru_cache(maxsize=256)
def _code_of(source: bytes) -> bytes:
    """Return a source text without comments, docstrings, imports and blank lines. Cached, as `_named_in` is.

    Ranges are cut out of the text itself: what ``ast.unparse`` and ``tokenize`` print differs between Python versions.
    """
    text = source.decode()
    lines = text.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    cuts = [(token.start, token.end) for token in tokens if token.type == tokenize.COMMENT]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and (isinstance(node, (ast.Import, ast.ImportFrom)) or _is_prose(node)):
            assert node.end_lineno is not None and node.end_col_offset is not None
            start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
            end = len(lines[node.end_lineno - 1].encode()[: node.end_col_offset].decode())
            cuts.append(((node.lineno, start), (node.end_lineno, end)))
    for (first, start), (last, end) in sorted(cuts, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:], *[""] * (last - first)]
    return "\n".join(line.rstrip() for line in lines if line.strip()).encode()


def _is_prose(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _beside(module: ModuleType, seen: set[str]) -> set[str]:
    """Return the names of modules that belong to a module and are imported by it, directly or indirectly."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for name in _imported(waiting.pop()) - seen:
            other = sys.modules.get(name)
            if other is not None and _belong_together(module, other):
                seen.add(name)
                found.add(name)
                waiting.append(other)
    return found


def _belong_together(module: ModuleType, other: ModuleType) -> bool:
    """Return True for modules of one folder; built-in programs also have a folder of parts."""
    if module.__name__.startswith(_READY) and other.__name__.startswith(_READY):
        return True
    return _folder(other) == _folder(module) is not None


def _imported(module: ModuleType) -> set[str]:
    try:
        return set(_named_in(inspect.getsource(module)))
    except (OSError, TypeError, SyntaxError):
        return set()


@lru_cache(maxsize=256)
def _named_in(source: str) -> frozenset[str]:
    """Return the modules that a source imports. Cached, since tests of a program begin many jobs of it."""
    tree = ast.parse(source)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _folder(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return _resolved(file).parent if file else None


@lru_cache(maxsize=4096)
def _resolved(file: str) -> Path:
    return Path(file).resolve()
