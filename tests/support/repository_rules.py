"""Rules of the repository's structure, as checks: text in, complaints out.

Each check returns a list of lines, empty if there are no complaints. ``tests/unit/repository/test_structure.py`` runs
them over the repository, and proves with a small bad sample that each can fail.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cortex", "actors", "policies")
PURE = ("cortex", "policies")
CODE = (*PACKAGES, "tests", "benchmarks", "k8s", ".ci")

FILE_LINES_MAX = 600
FOLDER_MODULES_MAX = 15
ROOT_MODULES_MAX = 25
FUNCTION_LINES_MAX = 70

TOP_LEVEL = {
    *CODE,
    "docs",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "mkdocs.yml",
    "pyproject.toml",
} | {
    *(".dockerignore", ".github", ".gitignore", "Dockerfile"),
}

# Modules of the standard library without I/O, clock or randomness. `datetime` is included for its arithmetic; calls of
# its clock are found below.
PURE_STDLIB = frozenset(
    """
    __future__ abc array ast base64 binascii bisect collections contextlib contextvars copy dataclasses
    datetime decimal difflib dis enum fractions functools graphlib hashlib heapq html inspect ipaddress itertools
    json keyword math numbers operator re statistics string struct textwrap types typing unicodedata weakref zlib
    """.split()
)

# Builtins with effects, and the two whose result differs between processes.
IMPURE_CALLS = frozenset(
    {"open", "print", "input", "breakpoint", "exec", "eval", "compile", "__import__", "hash", "id"}
)
CLOCK_CALLS = frozenset({"now", "utcnow", "today"})

FORBIDDEN_WORDS = frozenset({"manager", "helper", "utils"})


def files(root: Path = ROOT) -> list[Path]:
    """Return the repository's files: those tracked by git, or without git all outside hidden and built folders."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
        found = [root / name for name in listing.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = []
    if not found:
        found = [path for path in root.rglob("*") if path.is_file() and _ours(path.relative_to(root).parts)]
    return sorted(path for path in found if path.is_file())


def _ours(parts: tuple[str, ...]) -> bool:
    hidden = any(part.startswith(".") and part not in TOP_LEVEL for part in parts)
    return not hidden and not {"__pycache__", "build", "dist"} & set(parts)


def sources(folders: Iterable[str]) -> list[Path]:
    """Return every Python file on disk below these folders, tracked or not."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


# ------------------------------------------------------------------------------------------------ purity


def purity(source: str, allowed: Collection[str], doors: Collection[str] = ()) -> list[str]:
    """Return imports outside ``allowed`` (top-level names), calls with effects, and reads of the clock.

    ``doors`` are dotted modules that may also be imported, but only inside a function.
    """
    tree = ast.parse(source)
    inside = {id(node) for function in _functions(tree) for node in ast.walk(function)}
    complaints = []
    for node in ast.walk(tree):
        for name in _imported(node):
            at_door = name in doors and id(node) in inside
            if name.partition(".")[0] not in allowed and not at_door:
                complaints.append(f"line {node.lineno}: imports {name}")
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            complaints.append(f"line {node.lineno}: calls {node.func.id}()")
        of_flow = (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "ctx"
        )
        if (
            isinstance(node.func, ast.Attribute) and node.func.attr in CLOCK_CALLS and not of_flow
        ):  # the clock of ctx is journalled
            complaints.append(f"line {node.lineno}: reads a clock with .{node.func.attr}()")
    return complaints


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield "." * node.level + (node.module or "")


# ------------------------------------------------------------------------------------------- size, names


def sizes(source: str) -> list[str]:
    """Return files over 600 lines and functions over 70 (from ``def`` to the last line)."""
    complaints = []
    if (lines := len(source.splitlines())) > FILE_LINES_MAX:
        complaints.append(f"{lines} lines, {FILE_LINES_MAX} at most")
    for node in _functions(ast.parse(source)):
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX:
            complaints.append(f"line {node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} at most")
    return complaints


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def piles(modules: Iterable[str]) -> list[str]:
    """Return folders with more than 15 modules, and more than 25 directly in the three packages together.

    ``modules``: paths of Python files relative to the repository; ``__init__.py`` does not count.
    """
    counts = Counter(Path(module).parent for module in modules if Path(module).name != "__init__.py")
    roots = sum(count for folder, count in counts.items() if len(folder.parts) == 1)
    complaints = [
        f"{folder}: {count} modules, {FOLDER_MODULES_MAX} at most"
        for folder, count in sorted(counts.items())
        if count > FOLDER_MODULES_MAX
    ]
    return complaints + (
        [f"{roots} modules at the top, {ROOT_MODULES_MAX} at most"] if roots > ROOT_MODULES_MAX else []
    )


# --------------------------------------------------------------------------------------------- circles

DOORS = frozenset({("cortex", "actors"), ("cortex.testing", "actors")})
"""Imports that may point backwards: the importing module, and the package that it imports."""


def circles(sources: Mapping[str, str]) -> list[str]:
    """Return circles of modules and of folders in an import graph, including imports inside functions.

    ``sources``: source text by path. Imports under ``TYPE_CHECKING`` are never run: only the import contract applies to
    them.
    """
    names = {path: path.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in sources}
    packages = {names[path] for path in sources if path.endswith("__init__.py")}
    edges = {names[path]: _edges(names[path], text, set(names.values())) for path, text in sources.items()}

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    folders: dict[str, set[str]] = {}
    for module, others in edges.items():
        folders.setdefault(folder(module), set()).update(map(folder, others))
    graphs = (("modules", edges), ("folders", {one: others - {one} for one, others in folders.items()}))
    return [f"circle of {kind}: {', '.join(found)}" for kind, graph in graphs for found in _components(graph)]


def _edges(module: str, source: str, known: set[str]) -> set[str]:
    tree = ast.parse(source)
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in types_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found & known - {module} if (module, name.split(".")[0]) not in DOORS}


def _components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return strongly connected components of more than one node: nodes that reach each other."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in graph.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        reach[start] = seen
    circles = {tuple(sorted(b for b in reach[a] if a in reach.get(b, ()))) for a in graph if a in reach[a]}
    return [list(circle) for circle in sorted(circles) if len(circle) > 1]


def hiding(module: str, taken: Collection[str]) -> list[str]:
    """Return a top-level module or package that has the name of a standard module or of a dependency.

    Inside a package such a name hides nothing.
    """
    return [f"{module} is named like {module}"] if module in taken else []


def dependencies(pyproject: str) -> set[str]:
    """Return the import names of the declared dependencies, extras included."""
    project = tomllib.loads(pyproject)["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    declared = {_plain(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in wanted} - {_plain(project["name"])}
    installed = {
        name
        for name, distributions in metadata.packages_distributions().items()
        if any(_plain(distribution) in declared for distribution in distributions)
    }
    return declared | installed


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def taken_names() -> set[str]:
    """Return names that a top-level module must not have: those of the standard library and of dependencies."""
    return set(sys.stdlib_module_names) | dependencies((ROOT / "pyproject.toml").read_text())


def twins(sources: Mapping[str, str]) -> list[str]:
    """Return public classes of one package that have the same name; ``sources`` by path."""
    homes: dict[tuple[str, str], list[str]] = {}
    for path, source in sorted(sources.items()):
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault((path.split("/")[0], node.name), []).append(path)
    return [f"class {name}: {', '.join(paths)}" for (_, name), paths in homes.items() if len(paths) > 1]


def words(module: str, source: str) -> list[str]:
    """Return names of the module and of its classes that carry no meaning."""
    named = [module, *(node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))]
    complaints = []
    for name in named:
        parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
        found = parts & FORBIDDEN_WORDS or {part for part in parts if part.removesuffix("s") in FORBIDDEN_WORDS}
        complaints += [f"{name}: {word} is not used as a name" for word in sorted(found)]
    return complaints


# -------------------------------------------------------------------------------------------- docstrings


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

FIRST_WORDS = re.compile(
    r"(What|Who|Whom|Whose|Whoever|Which|Where|Nobody|Somebody|Someone|How|That|Those|One|It|They|So (many|much|often))\b"
)
"""Words with which no docstring begins: each leaves the subject unnamed. A noun of the field or a verb comes first."""


def first_words(source: str) -> list[str]:
    """Docstrings of modules, classes and functions, private ones included, that begin with one of ``FIRST_WORDS``."""
    kinds = (ast.Module, ast.ClassDef, *_FUNCTION)
    complaints = []
    for node in ast.walk(ast.parse(source)):
        text = ast.get_docstring(node) if isinstance(node, kinds) else None
        if text and (found := FIRST_WORDS.match(text)):
            line = node.body[0].lineno  # type: ignore[attr-defined]
            complaints.append(f"line {line}: begins with {found[0]!r}: name the subject")
    return complaints


def documented_methods(source: str) -> set[str]:
    """Return names of methods that have a docstring: their overrides inherit it."""
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return {node.name for owner in classes for node in _body(owner, _FUNCTION) if ast.get_docstring(node)}


def docstrings(source: str, inherited: Collection[str] = ()) -> list[str]:
    """Return the module, public classes and functions and their public methods that have no docstring."""
    tree = ast.parse(source)
    complaints = [] if ast.get_docstring(tree) else ["the module has no docstring"]
    for node in _body(tree, (*_FUNCTION, ast.ClassDef)):
        if node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            complaints.append(f"line {node.lineno}: {node.name} has no docstring")
        if isinstance(node, ast.ClassDef):
            complaints += [
                f"line {method.lineno}: {node.name}.{method.name} has no docstring"
                for method in _body(node, _FUNCTION)
                if not method.name.startswith("_") and not ast.get_docstring(method) and method.name not in inherited
                if not _speaks_for_itself(method)
            ]
    return complaints




def _body(owner: ast.Module | ast.ClassDef, kinds: tuple[type, ...]) -> list:
    return [node for node in owner.body if isinstance(node, kinds)]


def _speaks_for_itself(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a method needs no docstring: a setter, an overload, or a property that a protocol only declares.
    """
    named = {_decorator(one) for one in method.decorator_list}
    declared = ast.unparse(method.body[0]) == "..."
    return bool({"overload", "setter"} & named) or (declared and "property" in named)


def _decorator(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# ------------------------------------------------------------------------------------ machine, top level

_ANY_MACHINE = re.compile(
    r"(?<![\w.$}])(?:/home/\w|/Users/\w|/root/|/tmp/(?!ray\b)\w|[A-Z]:\\Users)"
    r"|file:///\w|--(?:extra-)?index-url|--find-links|--trusted-host"
)


def machine(text: str, names: Collection[str] = ()) -> list[str]:
    """Return paths of one machine and hosts of package registries; ``names`` are those of this machine."""
    own = [re.compile(rf"(?<![\w.]){re.escape(name)}") for name in sorted(names)]
    return [
        f"line {number}: {found[0]} belongs to one machine"
        for number, line in enumerate(text.splitlines(), 1)
        for pattern in (_ANY_MACHINE, *own)
        if (found := pattern.search(line))
    ]


def machine_names() -> set[str]:
    """Return the folders of the repository and of Python on this machine, and the registries configured for pip."""
    places = {str(ROOT), str(ROOT.parent), sys.prefix, sys.base_prefix, str(Path.home())}
    common = set(
        "/ /app /home /opt /private/tmp /private/var/tmp /root /src /srv /tmp /usr /usr/local /var/tmp".split()
    )
    command = [sys.executable, "-m", "pip", "config", "list"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    urls = re.findall(r"https?://[^\s'\"]+", asked.stdout)
    hosts = {urlsplit(url).hostname or "" for url in urls} - {"", "localhost", "127.0.0.1"}
    return {place + "/" for place in places - common} | hosts


def top_level(names: Iterable[str]) -> list[str]:
    """Return names that must not be at the top of the repository."""
    return [f"{name} does not belong at the top level" for name in sorted({*names} - TOP_LEVEL)]
