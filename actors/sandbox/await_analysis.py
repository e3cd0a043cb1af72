"""Static analysis: the calls of a piece that are awaited together.

``answer = llm(p)`` needs its answer at once; ``await asyncio.gather(*[llm(p) for p in prompts])`` needs all calls in
flight. Models write both forms with the same function name. The interpreter accepts either kind of answer; the needed
kind follows from whether the result of the call is awaited: directly, by a ``gather``, or under a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cortex.state.sandbox import SYNONYMS

_TOGETHER = frozenset({"gather", "create_task", "ensure_future", "wait", "wait_for", "as_completed"})
_PUTS = frozenset({"append", "add", "extend", "insert"})


def awaited(code: str) -> set[tuple[int, int]]:
    """Return (begin, end) of the awaited calls, in bytes of the text; empty for a text that is no valid Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    begins = [0]
    for line in code.encode("utf-8", "replace").splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = _AwaitTracer(tree).calls
    return {
        (begins[call.lineno - 1] + call.col_offset, begins[(call.end_lineno or call.lineno) - 1] + call.end_col_offset)
        for call in found if call.end_col_offset is not None
    }  # fmt: skip


class _AwaitTracer:
    """Search from every ``await`` back to the calls that it waits for, through names, lists and functions."""

    def __init__(self, tree: ast.Module) -> None:
        self.calls: list[ast.Call] = []
        self._seen: set[int] = set()
        self._bound: dict[str, list[ast.expr]] = {}
        self._functions: dict[str, list[ast.expr]] = {}
        nodes = list(ast.walk(tree))
        for node in nodes:
            for name, value in _bindings(node):
                self._bound.setdefault(name, []).append(value)
            if isinstance(node, ast.FunctionDef):
                returned = [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
                self._functions.setdefault(node.name, []).extend(returned)
        self._waiting: list[ast.expr] = [node.value for node in nodes if isinstance(node, ast.Await)]
        self._waiting += [node.iter for node in nodes if isinstance(node, ast.AsyncFor)]
        while self._waiting:
            self._take(self._waiting.pop())

    def _take(self, value: ast.expr) -> None:
        """Follow an expression that is awaited, or holds awaited values."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, ast.Name):
            self._waiting += self._bound.get(value.id, [])
        elif isinstance(value, ast.Call):
            self._take_call(value)
        elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
            self._waiting += value.elts
        elif isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            self._waiting.append(value.elt)
        elif isinstance(value, ast.DictComp):
            self._waiting.append(value.value)
        elif isinstance(value, ast.Dict):
            self._waiting += value.values
        elif isinstance(value, ast.IfExp):
            self._waiting += [value.body, value.orelse]
        elif isinstance(value, (ast.Starred, ast.Subscript, ast.Await)):
            self._waiting.append(value.value)
        elif isinstance(value, ast.BinOp):
            self._waiting += [value.left, value.right]

    def _take_call(self, call: ast.Call) -> None:
        name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
        if isinstance(call.func, ast.Name) and name in SYNONYMS:
            self.calls.append(call)
        elif name in _TOGETHER or name in ("list", "tuple"):
            self._waiting += call.args
        elif name == "values" and isinstance(call.func, ast.Attribute):
            self._waiting.append(call.func.value)
        else:
            self._waiting += self._functions.get(name, [])


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) of the assignments in a node, and of additions to a named list."""
    targets: list[ast.expr] = []
    value: ast.expr | None = None
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        targets, value = [node.target], node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PUTS and node.args:
        targets, value = [node.func.value], node.args[-1]
    if value is not None:
        for target in targets:
            inner = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(inner, ast.Name):
                yield inner.id, value
