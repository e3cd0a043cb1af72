"""Where in its author's file a coroutine stands."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import lru_cache
from types import CodeType, TracebackType
from typing import Any


def file_name(code: CodeType) -> str:
    """The last part of a source file's path."""
    return code.co_filename.replace("\\", "/").rpartition("/")[2]


def chain(coroutine: Coroutine[Any, Any, Any]) -> list[tuple[CodeType, int]]:
    """(code, line) of a coroutine that waits, and of those that it waits in, the outermost first."""
    found = []
    inner: Any = coroutine
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        found.append((frame.f_code, frame.f_lineno))
        inner = inner.cr_await
    return found


def place(coroutine: Coroutine[Any, Any, Any], own: str) -> str:
    """``file:line`` of the innermost frame in the file ``own``, where a coroutine waits."""
    found: tuple[CodeType, int] | None = None
    inner: Any = coroutine
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        if frame.f_code.co_filename == own:
            found = frame.f_code, frame.f_lineno
        inner = inner.cr_await
    return _said(*found) if found is not None else "?"


@lru_cache(maxsize=4_096)
def _said(code: CodeType, line: int) -> str:
    return f"{file_name(code)}:{line}"


def raised_at(trace: TracebackType | None, own: str) -> str:
    """``file:line`` of the innermost frame in the file ``own`` through which an error came; empty where none did."""
    said = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == own:
            said = f"{file_name(code)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return said


def route(coroutine: Coroutine[Any, Any, Any]) -> str:
    """The lines at which a coroutine waits, the outermost first: one text for one place in the code."""
    return ">".join(f"{code.co_name}:{line}" for code, line in chain(coroutine))


def foreign(coroutine: Coroutine[Any, Any, Any], got: object) -> str:
    """What a coroutine awaits that is not ctx's, as far as it can be named."""
    code, _ = chain(coroutine)[-1]
    folder = code.co_filename.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
    if folder == "asyncio":
        return f"asyncio.{code.co_name}"
    return "something foreign" if got is None else f"a {type(got).__name__}"
