"""Check of names of the code in pages for maintainers: text in, errors out.

A name stands between backquotes: a dotted name that begins with ``actors``, ``cortex``, ``policies``, ``tests`` or
``benchmarks``; a path with a slash or of a file at the top; a field of K, ``k.goals``; a class, ``BatchReplay`` or
``Journal.append``; a target of the Makefile, ``make lint``. Other text between backquotes is not checked, nor a path
with ``NAME`` in it, which the reader replaces.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.repository_rules import PACKAGES, ROOT

ROOTS = (*PACKAGES, "tests", "benchmarks")
STATE = "cortex.state.state.State"
_SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_DOTTED = re.compile(rf"(?:{'|'.join(ROOTS)})(?:\.\w+)+")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:md|toml|yml|txt)|Makefile")
_CLASS = re.compile(r"([A-Z][a-z]+(?:[A-Z][a-z]+)*)(?:\.(_?[a-z]\w*))?(?:\(\))?")
_TARGET = re.compile(r"make ([\w-]+)\b.*")


def errors(page: str, text: str) -> list[str]:
    """Return one line for each name in a page that does not exist."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    found = dict.fromkeys(" ".join(span.split()) for span in _SPAN.findall(prose))
    return [f"{page}: `{name}`: {problem}" for name in found if (problem := _problem(name))]


def _problem(name: str) -> str:
    if _DOTTED.fullmatch(name):
        return "" if exists(name) else "no such module or name"
    if re.fullmatch(r"k\.\w+", name):
        return "" if exists(f"{STATE}.{name[2:]}") else "no such field of K"
    if match := _TARGET.fullmatch(name):
        return "" if match[1] in _targets() else "no such target of the Makefile"
    if _PATH.fullmatch(name) and "NAME" not in name:
        return "" if (ROOT / name).exists() else "no such file"
    if match := _CLASS.fullmatch(name):
        known = _classes(match[1])
        if not known:
            return "no such class" if match[2] or re.search(r"[a-z][A-Z]", name) else ""
        return "" if not match[2] or any(match[2] in members for members in known) else f"{match[1]} has no {match[2]}"
    return ""


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or something that a module or one of its classes defines or imports."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        if (path := _module(parts[:count])) is not None:
            rest = parts[count:]
            return not rest or (path.suffix == ".py" and _defines(path, rest))
    return False


def _module(parts: list[str]) -> Path | None:
    place = ROOT.joinpath(*parts)
    for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        if path.is_file():
            return path
    return place if place.is_dir() else None


def _defines(path: Path, rest: list[str]) -> bool:
    body = _tree(path).body
    if len(rest) > 2 or rest[0] not in set(_names(body)):
        return False
    owners = [node for node in body if isinstance(node, ast.ClassDef) and node.name == rest[0]]
    return len(rest) == 1 or any(rest[1] in _members(owner) for owner in owners)


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that these statements bind."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def _members(owner: ast.ClassDef) -> set[str]:
    """Return methods and fields of a class, including fields that its methods assign."""
    assigned = {
        node.attr for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name) and node.value.id == "self"
    }  # fmt: skip
    return {*_names(owner.body), *assigned}


def _classes(name: str) -> list[set[str]]:
    """Return the members of the classes of this name in the packages."""
    files = [path for path, text in _texts().items() if f"class {name}" in text]
    classes = (node for path in files for node in _tree(path).body if isinstance(node, ast.ClassDef))
    return [_members(node) for node in classes if node.name == name]


@functools.cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


@functools.cache
def _targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
