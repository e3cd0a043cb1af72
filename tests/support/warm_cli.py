"""Commands without start-up cost: ``cortex`` and ``python`` on a PATH, each a fork of one warm process.

A page of the documentation is run by a real shell, with its pipes, redirections and exit codes, and starts some hundred
commands. Each would spend half a second on imports. So the names on the PATH are small scripts that pass arguments,
folder, environment and standard streams to a process that has done the imports. That process forks, and the fork runs
the command; exit codes, signals and kills behave as usual.

``python -m tests.support.warm_cli SOCKET`` is that process; it prints a line when it begins to serve.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WARM = (
    "actors.cli.app actors.cli.run.start actors.api.client actors.driver.driver actors.api.tables actors.runtime.inline actors.api.session "
    "actors.simulator.frontends.in_memory anthropic pandas pyarrow.parquet opentelemetry.sdk.trace"
).split()
"""Modules that most commands import."""

CLIENT = """#!{python} -ISs
import json, os, signal, socket, sys
road = socket.socket(socket.AF_UNIX)
road.connect({address!r})
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: road.send(bytes([number])))
order = json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(road, [len(order).to_bytes(4, "big")], [0, 1, 2])
road.sendall(order)
code = road.recv(1)
os._exit(code[0] if code else 255)
"""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Path]:
    """Return a folder for the PATH with ``cortex`` and ``python`` in it, until the context ends."""
    address = str(folder / "road")
    bin_ = folder / "bin"
    bin_.mkdir()
    for name in ("cortex", "python"):
        path = bin_ / name
        path.write_text(CLIENT.format(python=sys.executable, address=address, name=name))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "tests.support.warm_cli", address]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline(), "it never began to serve"
        yield bin_
        server.terminate()


def _serve(address: str) -> None:
    for name in WARM:
        importlib.import_module(name)
    from actors.cli.main import enter

    _stay_near()

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        enter(["jobs", "--state", folder])  # imports that commands do on demand
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    road = socket.socket(socket.AF_UNIX)
    road.bind(address)
    road.listen(16)
    gc.freeze()
    print("serving", flush=True)
    commands: dict[int, int] = {}
    while True:
        visitor, _ = road.accept()
        _end_orphans(commands)
        client, _, _ = struct.unpack("3i", visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        command = os.fork()
        if not command:
            road.close()
            _become(visitor)
        commands[command] = client
        visitor.close()


def _end_orphans(commands: dict[int, int]) -> None:
    """End the commands whose clients were killed and waited for: a shell takes them for dead. ``commands``: process of
    a command -> that of its client.
    """
    for command, client in list(commands.items()):
        if not os.waitpid(command, os.WNOHANG)[0]:
            if Path(f"/proc/{client}").exists():
                continue
            os.kill(command, signal.SIGKILL)
            os.waitpid(command, 0)
        del commands[command]


def _stay_near() -> None:
    """Refuse lookups of names other than this machine's. uvloop asks the system itself, so pages run on asyncio's own
    loop.
    """
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    lookup = socket.getaddrinfo

    def near(host: Any, *args: Any, **more: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in (None, "", "localhost", "127.0.0.1", "::1"):
            raise OSError(f"a page asked for {name}: only this machine may be spoken to")
        return lookup(host, *args, **more)

    socket.getaddrinfo = near


def _become(visitor: socket.socket) -> None:
    """Run the requested command in place of its client, with the client's signals and exit code."""
    code = 1
    try:
        length, streams, _, _ = socket.recv_fds(visitor, 4, 3)
        order = b""
        while len(order) < int.from_bytes(length, "big"):
            order += visitor.recv(65_536)
        name, words, folder, environ = json.loads(order)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        for each in (sys.stdin, sys.stdout, sys.stderr):
            each.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environ)
        time.tzset()
        threading.Thread(target=_heed, args=(visitor,), daemon=True).start()
        code = _cortex(words) if name == "cortex" else _python(words)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    with contextlib.suppress(OSError):
        visitor.send(bytes([code & 255]))
    os._exit(code & 255)


def _heed(visitor: socket.socket) -> None:
    """Forward signals of the client. If the client is killed, kill the command."""
    while data := visitor.recv(1):
        os.kill(os.getpid(), data[0])
    os.kill(os.getpid(), signal.SIGKILL)


def _cortex(words: list[str]) -> int:
    from actors.cli.main import enter

    sys.argv = ["cortex", *words]
    return enter(words)


def _python(words: list[str]) -> int:
    """Run a file, ``-m MODULE``, ``-c TEXT`` or standard input, as the interpreter does."""
    first = words[0] if words else "-"
    sys.argv = words[1:] if first in ("-m", "-c") else words or ["-"]
    sys.path[0] = os.getcwd() if first in ("-m", "-c", "-") else str(Path(first).resolve().parent)
    sys.path.insert(1, str(ROOT))
    try:
        if first == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif first in ("-c", "-"):
            text = words[1] if first == "-c" else sys.stdin.read()
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1])
