"""Static check of flows for sources of nondeterminism: clocks, randomness, the event loop."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from cortex.flows.source_positions import file_name

_NOW = "ask ctx.now()"
_CHANCE = "ask ctx.random()"
_WAIT = "await ctx.sleep(seconds), ctx.join(...) or ctx.map(...)"
_INSTEAD: dict[str, str] = {
    **dict.fromkeys(("time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.localtime"), _NOW),
    **dict.fromkeys(("datetime.now", "datetime.utcnow", "datetime.today", "date.today"), _NOW),
    **dict.fromkeys(("uuid.uuid1", "uuid.uuid4", "os.urandom", "posix.urandom"), _CHANCE),
    "time.sleep": "await ctx.sleep(seconds)",
}
_MODULES = {"random": _CHANCE, "secrets": _CHANCE, "asyncio": _WAIT}
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_CLASSDEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def violations(function: FunctionType) -> list[str]:
    """Return one line for each use of a clock, of randomness or of an event loop, with file, line and replacement.

    Functions of the same module that the function uses are checked too.
    """
    found: dict[str, None] = {}
    seen: set[CodeType] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if one.__code__ in seen:
            continue
        seen.add(one.__code__)
        for code in _codes(one.__code__):
            for line, value, named in _loaded(code, one):
                instead = _instead(value)
                if instead:
                    found[f"{file_name(code)}:{line} uses {named}: {instead}"] = None
                elif isinstance(value, FunctionType) and _goes_along(value, function):
                    waiting.append(value)
    return list(found)


def _goes_along(called: FunctionType, function: FunctionType) -> bool:
    """True if a function runs as a part of the flow: it is in the same module and is no tool (tools run elsewhere)."""
    return called.__module__ == function.__module__ and not hasattr(called, "repeatable")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _loaded(code: CodeType, function: FunctionType) -> Iterator[tuple[int, Any, str]]:
    """(line, value, name) of every name loaded from outside the function, with the attributes taken of it."""
    outside = {**function.__globals__, **_closure(function)}
    value: Any = None
    named, line = "", code.co_firstlineno
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = getattr(step, "line_number", None) or (
                step.starts_line if not isinstance(step.starts_line, bool) else line
            )
        if step.opname in _LOADS and step.argval in outside:
            if named:
                yield line, value, named
            value, named = outside[step.argval], step.argval
        elif step.opname in _ATTRIBUTES and named and isinstance(value, (ModuleType, type)):
            value, named = getattr(value, step.argval, None), f"{named}.{step.argval}"
        elif named and step.opname not in ("CACHE", "PUSH_NULL", "PRECALL"):
            yield line, value, named
            named = ""
    if named:
        yield line, value, named


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # not bound yet
    return found


def _instead(value: Any) -> str:
    """The replacement for this function; empty if it may be used."""
    if not isinstance(value, (BuiltinFunctionType, FunctionType, MethodType)):
        return ""
    name = getattr(value, "__qualname__", "")
    owner = getattr(value, "__self__", None)
    module = getattr(value, "__module__", None) or type(owner).__module__
    if isinstance(owner, ModuleType):
        module = owner.__name__
    top = module.partition(".")[0]
    return _INSTEAD.get(f"{module}.{name}") or _INSTEAD.get(name if "." in name else "") or _MODULES.get(top, "")


def first(function: Callable[..., Any]) -> str:
    """Return the first complaint about a function; empty if there is none."""
    return next(iter(violations(function)), "") if isinstance(function, FunctionType) else ""
