"""The files of a program, on their way to machines that do not have them.

Those go along that the author wrote: the program's module, what of its folder is imported, and whole packages there;
what is installed does not, nor what is too large, and a machine that lacks that says so. Over there they stand in a
folder of their own, named by what is in it, so that a program that has changed is another; a machine that has the same
files under the same paths takes its own.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import msgspec

from actors.ports.runtime import ClusterError
from cortex.state.program import Program

BYTES_MAX = 8_000_000
"""Of all files of one program: they stand in the memory of the cluster's head."""
FILE_BYTES_MAX = 1_000_000
"""Of one of them."""
TEXTS = (".py", ".pyi", ".txt", ".md", ".json", ".toml", ".yaml", ".yml", ".jinja", ".j2", ".csv", ".prompt")


class ProgramBundle(msgspec.Struct, array_like=True, frozen=True):
    """Files as they travel."""

    root: str = ""
    """The folder that they stand in."""
    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    """By their paths in it."""
    modules: tuple[str, ...] = ()
    """Names under which modules of them may have been imported."""
    left: dict[str, tuple[int, bytes]] = msgspec.field(default_factory=dict)
    """Files that are too large to travel, by their paths: bytes, and their digest."""

    def too_large(self) -> str:
        """What is too large, and by what measure."""
        name, (size, _) = max(self.left.items(), key=lambda each: each[1][0])
        if size > FILE_BYTES_MAX:
            return f"{Path(self.root) / name} has {size:,} bytes, and at most {FILE_BYTES_MAX:,} travel of one file"
        whole = sum(size for size, _ in self.left.values())
        return f"its files below {self.root} have {whole:,} bytes, and at most {BYTES_MAX:,} travel"


def packed(type_: type[Program]) -> ProgramBundle:
    """The files that hold a program, or that a notebook's imports. Of more than can travel, none does."""
    own = sys.modules.get(type_.__module__)
    main = _file_of(own)
    if own is None or (main is None and own.__name__ != "__main__") or (main is not None and not _is_authors(main)):
        return ProgramBundle()
    root = _root(own.__name__, main) if main is not None else Path.cwd().resolve()
    files, left = {}, {}
    for path in _wanted(root, main):
        content = path.read_bytes()
        if len(content) <= FILE_BYTES_MAX:
            files[path.relative_to(root).as_posix()] = content
        else:
            left[path.relative_to(root).as_posix()] = _digest(content)
    if sum(map(len, files.values())) > BYTES_MAX:
        left |= {name: _digest(content) for name, content in files.items()}
        files = {}
    modules = tuple(sorted({_module(name) for name in (*files, *left) if name.endswith(".py")}))
    return ProgramBundle(str(root), files, modules, left)


def unpacked(bundle: ProgramBundle) -> dict[str, str]:
    """Where each file stands here, by where it stood; empty where this machine has the same under the same paths.

    Raises ``ClusterError`` where this machine lacks what was too large to travel.
    """
    root = Path(bundle.root)
    files = dict(bundle.files)
    files |= {name: own for name, entries in bundle.left.items() if (own := _found(name, entries, root)) is not None}
    if len(files) < len(bundle.files) + len(bundle.left):
        raise ClusterError(
            f"the program cannot be brought to this machine, which does not have it: {bundle.too_large()}: "
            "put it into the image of the nodes, or name it as an input"
        )
    if not files or all(_same(root / name, content) for name, content in files.items()):
        return {}
    digest = sha256(msgspec.msgpack.encode(sorted(files.items()))).hexdigest()[:24]
    folder = _private() / digest
    for name, content in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ClusterError(f"{name} does not stand below the folder of its program")
        if not _same(path, content):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(path)  # another actor of this machine may be reading it
    for name in bundle.modules:
        sys.modules.pop(name, None)  # of an earlier program, or of the same before it changed
    with contextlib.suppress(ValueError):
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return {str(root / name): str(folder / name) for name in files}


def _digest(content: bytes) -> tuple[int, bytes]:
    return len(content), sha256(content).digest()


def _found(name: str, entries: tuple[int, bytes], root: Path) -> bytes | None:
    """The same file, as this machine has it: under its own path, or where modules are found."""
    for path in (Path(each or ".") / name for each in (str(root), *sys.path)):
        with contextlib.suppress(OSError):
            if path.stat().st_size == entries[0] and _digest(content := path.read_bytes()) == entries:
                return content
    return None


def _private() -> Path:
    """A folder for code that nobody else may write to. Raises ``ClusterError``."""
    folder = Path(tempfile.gettempdir()) / f"cortex-code-{getpass.getuser() if os.name == 'nt' else os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.stat()
    if os.name != "nt" and (folder.is_symlink() or stat.st_uid != os.getuid() or stat.st_mode & 0o022):
        raise ClusterError(f"{folder} is somebody else's: code is not read from there; remove it")
    return folder


def _wanted(root: Path, main: Path | None) -> Iterator[Path]:
    """The program's file, what of its folder is imported, and the whole of packages in it."""
    packages: set[Path] = set()
    if main is not None:
        yield main
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path is None or path == main or not path.is_relative_to(root) or not _is_authors(path):
            continue
        inside = path.relative_to(root)
        if _module(inside.as_posix()) != name:
            continue  # it is found from elsewhere
        if (root / inside.parts[0] / "__init__.py").is_file():
            packages.add(root / inside.parts[0])
        else:
            yield path
    if main is not None and (root / main.relative_to(root).parts[0] / "__init__.py").is_file():
        packages.add(root / main.relative_to(root).parts[0])
    for folder in sorted(packages):
        yield from _all_of(folder)


def _all_of(folder: Path) -> Iterator[Path]:
    """A package: its sources, and texts beside them, a prompt say."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.suffix in TEXTS and path.is_file() and not hidden:
            yield path


def _root(name: str, main: Path) -> Path:
    """The folder from which a module is imported by its name."""
    if name.startswith(("cortex_program_", "__main__")):
        return main.parent
    return main.parents[name.count(".") + (main.name == "__init__.py")]


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and Path(file).is_file() else None


def _is_authors(path: Path) -> bool:
    """Whether a file is nobody's installation: neither of a library, nor of Python, nor ours."""
    ours = Path(__file__).resolve().parents[3]
    installed = [sysconfig.get_paths()[each] for each in ("stdlib", "purelib", "platlib")]
    with contextlib.suppress(AttributeError):  # a virtualenv of old has none
        installed += [*site.getsitepackages(), site.getusersitepackages()]
    inside = [path.is_relative_to(ours / name) for name in ("cortex", "policies", "actors", "tests", "benchmarks")]
    library = "site-packages" in path.parts or "dist-packages" in path.parts
    return not any(inside) and not library and not any(path.is_relative_to(Path(each).resolve()) for each in installed)


def _same(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
