"""Source positions of waiting coroutines, in the author's file."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import lru_cache
from types import CodeType, TracebackType
from typing import Any


def file_name(code: CodeType) -> str:
    """Return the last part of a source file's path."""
    return code.co_filename.replace("\\", "/").rpartition("/")[2]


def chain(coroutine: Coroutine[Any, Any, Any]) -> list[tuple[CodeType, int]]:
    """Return (code, line) of a waiting coroutine and of the coroutines it awaits, outermost first."""
    found = []
    inner: Any = coroutine
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        found.append((frame.f_code, frame.f_lineno))
        inner = inner.cr_await
    return found


def place(coroutine: Coroutine[Any, Any, Any], own: str) -> str:
    """Return ``file:line`` of the innermost frame in the file ``own`` at which a coroutine waits; "?" if there is
    none.
    """
    found: tuple[CodeType, int] | None = None
    inner: Any = coroutine
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        if frame.f_code.co_filename == own:
            found = frame.f_code, frame.f_lineno
        inner = inner.cr_await
    return _describe(*found) if found is not None else "?"


@lru_cache(maxsize=4_096)
def _describe(code: CodeType, line: int) -> str:
    return f"{file_name(code)}:{line}"


def raised_at(trace: TracebackType | None, own: str) -> str:
    """Return ``file:line`` of the innermost frame in the file ``own`` through which an error passed; empty if none."""
    text = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == own:
            text = f"{file_name(code)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return text


def route(coroutine: Coroutine[Any, Any, Any]) -> str:
    """Return the lines at which a coroutine waits, outermost first: a text that identifies a place in the code."""
    return ">".join(f"{code.co_name}:{line}" for code, line in chain(coroutine))


def foreign(coroutine: Coroutine[Any, Any, Any], got: object) -> str:
    """Describe an awaited object that does not come from ctx."""
    code, _ = chain(coroutine)[-1]
    folder = code.co_filename.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
    if folder == "asyncio":
        return f"asyncio.{code.co_name}"
    return "something foreign" if got is None else f"a {type(got).__name__}"
