"""Check of a working folder: a command line or a Python function, in its own session, with a time limit."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from actors.providers.credentials.environment import hidden_in, keys_in, scrub
from actors.workspace.snapshots import FolderSnapshots
from actors.workspace.tree import FolderRefused
from policies.decisions.progress import failing, fingerprint

OUTPUT_BYTES_MAX: Final = 8_000
"""Most bytes kept of a check's output: half from its beginning, half from its end."""
_FUNCTION: Final = re.compile(r"(\S+\.py):([A-Za-z_]\w*)")
_SHELL: Final = re.compile(r"[|;&<>`$()\n]")
_INTERPRETER: Final = re.compile(r"(?:python|pypy)[\d.]*|ba?sh|dash|zsh|node|ruby|perl|php")
_ENDS_S: Final = 5.0

_CALLED: Final = """
import os, sys
library = os.path.dirname(os.__file__)
own = [path for path in sys.path if path.startswith(library) and "-packages" not in path]
sys.path[:] = [*own, sys.argv[3], *(path for path in sys.path if path not in own)]
import runpy
found = runpy.run_path(sys.argv[1])[sys.argv[2]](sys.argv[3])
if found is None or found is True or found == 0 and found is not False:
    sys.exit(0)
if isinstance(found, bool):
    sys.exit(1)
if isinstance(found, int):
    print(f"{found} remaining")
    sys.exit(1)
found = [found] if isinstance(found, str) else list(found)
for each in found:
    print(each)
if found:
    print(f"{len(found)} remaining")
sys.exit(1 if found else 0)
"""
"""Script that calls a check function. None, True, 0 or an empty list pass; False, a number of remaining items, or a
list of findings fail, and so does an error.

Modules of the folder can be imported, but do not replace those of the standard library: a model could otherwise write a
``pkgutil.py`` that passes any check.
"""


class _CheckOutput:
    """Output of a process: beginning and end, of any length."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._dropped = 0

    def take(self, some: bytes) -> None:
        half = OUTPUT_BYTES_MAX // 2
        room = half - len(self._head)
        self._head += some[:room]
        tail = self._tail + some[room:] if room < len(some) else self._tail
        self._dropped += max(0, len(tail) - half)
        self._tail = tail[-half:]

    def text(self) -> str:
        """Return the kept output as text, with the number of bytes left out."""
        gap = f"\n[... {self._dropped:,} bytes left out ...]\n".encode() if self._dropped else b""
        return (self._head + gap + self._tail).decode("utf-8", "replace").strip()


def checked(keeping: FolderSnapshots, check: str, timeout_s: float) -> dict[str, Any]:
    """Run the check. Return ``passed``, ``exit`` (None after a timeout), ``failing``, ``said`` and ``found`` (its
    hash).

    Only exit code 0 passes. All processes that the check started are ended. Raises ``FolderRefused`` if the check
    cannot be started.
    """
    output = _CheckOutput()
    try:
        child = subprocess.Popen(
            _command(check, keeping.folder), cwd=keeping.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True, env=_environ(),
        )  # fmt: skip
    except OSError as error:
        raise FolderRefused(f"the check cannot be started: {error}") from None
    reader = threading.Thread(target=_read, args=(child, output), daemon=True)
    try:
        reader.start()
        keeping.note_check(child.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout_s)
    finally:
        late = child.poll() is None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        keeping.check_over()
    reader.join(_ENDS_S)
    text, code = _without_key(output.text()), None if late else child.returncode
    if late:
        text = f"{text}\n[the check did not end within {timeout_s:g} s, and was ended]".strip()
    return {
        "passed": code == 0, "exit": code, "failing": None if late else failing(text), "said": text,
        "found": fingerprint(code, text),
    }  # fmt: skip


def script_of(check: str) -> list[str]:
    """Return the file that is the check, which edits must not change; empty for a line that needs a shell.

    ``check.py:passes``, ``./check.sh -q`` and ``python3 check.py`` name a file; ``python3 main.py | grep ok`` does not.
    """
    found = _FUNCTION.fullmatch(check.strip())
    if found is not None:
        return [os.path.normpath(found[1])]
    try:
        words = shlex.split(check)
    except ValueError:
        return []
    if not words or _SHELL.search(check):
        return []
    if _INTERPRETER.fullmatch(words[0].rpartition("/")[2]):
        words = [word for word in words[1:] if not word.startswith("-")]
    return [os.path.normpath(word) for word in words[:1]]


def _command(check: str, folder: Path) -> list[str]:
    found = _FUNCTION.fullmatch(check.strip())
    if found is None:
        return ["/bin/sh", "-c", check]
    return [sys.executable, "-P", "-c", _CALLED, str(folder / Path(found[1]).expanduser()), found[2], str(folder)]


def _environ() -> dict[str, str]:
    """Return the environment without keys: a check runs model-written code, and its output goes into prompts and
    journals."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_TOKEN")}
    scrub(environ, *keys_in(environ))
    return environ


def _without_key(text: str) -> str:
    """Return the output of a check without the key that this process was started with, which /proc shows to its
    children."""
    begun_with: dict[str, str] = {}
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/environ").read_text("utf-8", "replace").split("\0")
        begun_with = dict(line.split("=", 1) for line in lines if "=" in line)
    for environ in (begun_with, os.environ):
        for credential in (*keys_in(environ), *hidden_in(environ)):
            text = credential.redactor()(text)
    return text


def _read(child: subprocess.Popen[bytes], output: _CheckOutput) -> None:
    assert child.stdout is not None
    with child.stdout as out:
        while some := os.read(out.fileno(), 1 << 16):
            output.take(some)
