"""Files of a program, sent to machines that do not have them.

The files that the author wrote are sent: the program's module, the imported modules of its folder, and whole packages
there. Installed packages are not sent, nor are files that are too large; a machine that lacks these raises an error. On
the receiving machine the files are written to a folder named by their digest, so that a changed program gets a new
folder. A machine that has the same files under the same paths uses its own.
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

from actors.files.local.new_files import is_private
from actors.ports.runtime import ClusterError

BYTES_MAX = 8_000_000
"""Bytes of all files of one program, at most: they are kept in the memory of the cluster's head."""
FILE_BYTES_MAX = 1_000_000
"""Bytes of one file, at most."""
TEXTS = (".py", ".pyi", ".txt", ".md", ".json", ".toml", ".yaml", ".yml", ".jinja", ".j2", ".csv", ".prompt")


class ProgramBundle(msgspec.Struct, array_like=True, frozen=True):
    """Files in transit."""

    root: str = ""
    """Folder of the files."""
    files: dict[str, bytes] = msgspec.field(default_factory=dict)
    """Content of the files by their paths in the folder."""
    modules: tuple[str, ...] = ()
    """Names under which modules of the files may have been imported."""
    left: dict[str, tuple[int, bytes]] = msgspec.field(default_factory=dict)
    """Files that are too large to send, by path: size in bytes, and digest."""

    def too_large(self) -> str:
        """Return a description of the file or files that are too large, with the limit that they exceed."""
        name, (size, _) = max(self.left.items(), key=lambda each: each[1][0])
        if size > FILE_BYTES_MAX:
            return f"{Path(self.root) / name} has {size:,} bytes, and at most {FILE_BYTES_MAX:,} of one file are sent"
        whole = sum(size for size, _ in self.left.values())
        return f"its files below {self.root} have {whole:,} bytes, and at most {BYTES_MAX:,} are sent"


def packed(type_: type) -> ProgramBundle:
    """Return the files that hold a program or another class, or that a notebook imports. If they exceed ``BYTES_MAX``,
    none is included."""
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
    """Write the files of a bundle to this machine; return the local path of each file by its original path.

    Empty if this machine has the same files under the same paths. Raises ``ClusterError`` if this machine lacks a file
    that was too large to send.
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
            raise ClusterError(f"{name} is outside the folder of its program")
        if not _same(path, content):
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_bytes(content)
            part.replace(path)  # another actor of this machine may be reading it
    for name in bundle.modules:
        sys.modules.pop(name, None)  # imported from an earlier program, or from an earlier version
    with contextlib.suppress(ValueError):
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    return {str(root / name): str(folder / name) for name in files}


def _digest(content: bytes) -> tuple[int, bytes]:
    return len(content), sha256(content).digest()


def _found(name: str, entries: tuple[int, bytes], root: Path) -> bytes | None:
    """Find the same file on this machine: under its own path, or on the module search path. None if it is not found."""
    for path in (Path(each or ".") / name for each in (str(root), *sys.path)):
        with contextlib.suppress(OSError):
            if path.stat().st_size == entries[0] and _digest(content := path.read_bytes()) == entries:
                return content
    return None


def _private() -> Path:
    """Return a folder for code to which only this user can write. Raises ``ClusterError``."""
    folder = Path(tempfile.gettempdir()) / f"cortex-code-{getpass.getuser() if os.name == 'nt' else os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.name != "nt" and not is_private(folder):
        raise ClusterError(f"{folder} belongs to another user, or others can write to it: remove it")
    return folder


def _wanted(root: Path, main: Path | None) -> Iterator[Path]:
    """Yield the program's file, the imported modules of its folder, and all files of packages in the folder."""
    packages: set[Path] = set()
    if main is not None:
        yield main
    for name, module in list(sys.modules.items()):
        path = _file_of(module)
        if path is None or path == main or not path.is_relative_to(root) or not _is_authors(path):
            continue
        inside = path.relative_to(root)
        if _module(inside.as_posix()) != name:
            continue  # imported from another folder
        if (root / inside.parts[0] / "__init__.py").is_file():
            packages.add(root / inside.parts[0])
        else:
            yield path
    if main is not None and (root / main.relative_to(root).parts[0] / "__init__.py").is_file():
        packages.add(root / main.relative_to(root).parts[0])
    for folder in sorted(packages):
        yield from _all_of(folder)


def _all_of(folder: Path) -> Iterator[Path]:
    """Yield the sources of a package, and text files beside them, such as prompts."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(folder).parts)
        if path.suffix in TEXTS and path.is_file() and not hidden:
            yield path


def _root(name: str, main: Path) -> Path:
    """Return the folder from which a module is imported by its name."""
    if name.startswith(("cortex_program_", "__main__")):
        return main.parent
    return main.parents[name.count(".") + (main.name == "__init__.py")]


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _file_of(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) and Path(file).is_file() else None


def _is_authors(path: Path) -> bool:
    """Return whether a file is the author's: it belongs to no library, and neither to Python nor to this project."""
    ours = Path(__file__).resolve().parents[3]
    installed = [sysconfig.get_paths()[each] for each in ("stdlib", "purelib", "platlib")]
    with contextlib.suppress(AttributeError):  # absent in environments of old virtualenv releases
        installed += [*site.getsitepackages(), site.getusersitepackages()]
    inside = [path.is_relative_to(ours / name) for name in ("cortex", "policies", "actors", "tests", "benchmarks")]
    library = "site-packages" in path.parts or "dist-packages" in path.parts
    return not any(inside) and not library and not any(path.is_relative_to(Path(each).resolve()) for each in installed)


def _same(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False
