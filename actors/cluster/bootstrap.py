"""What is to be known and done before Ray is spoken to: its address, its environment, a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from actors.cluster.orphan_cleanup import MARK, below, marked
from actors.common.process_owner import process_started
from actors.ports.runtime import ClusterError
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.environment import keys_in, scrub

PROBE_S = 3.0
"""How long an address may take to answer."""
PORTS = {"": 6379, "ray://": 10001}
OBJECT_STORE_BYTES = 80_000_000
"""About the least that Ray takes; nothing of ours goes through its object store."""
_SOCKET_PATH_MAX = 103
"""Bytes in the path of a Unix socket: 104 with its end on macOS and BSD, 108 on Linux (sys/un.h)."""
_SOCKET_BELOW = "/cortex-12345678/r/session_2026-01-01_00-00-00_123456_4194304/cortex/0123456789ab.4194304"
"""The longest of all: one of ours (``sockets``). Ray's own are shorter by seven bytes, and a folder too long for ours
alone is left for ``/tmp`` all the same: without them everything is slower."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""An HTTP/2 client's first words and an empty SETTINGS frame: RFC 9113, 3.4 and 6.5."""
_SETTINGS_FRAME = 4

NOT_NEEDED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's ``GoalNode`` that a private Ray goes without (``lean``)."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
}
"""How a private Ray is set up: it tells nobody anything, and its agents notice when it dies."""
NICENESS = "RAY_worker_niceness"
"""By how much Ray lowers its workers' priority. Its usual 15 leaves our actors a thirtieth of a processor that the
driver or Ray itself wants too (sched(7): each step is a factor of 1.25); with 0 `http` makes 1.09 times as many calls a
second on two busy cores (docs/decisions/0007)."""

PYTHONS_THAT_FIT = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
"""What Ray is told about Pythons: a driver's may be 3.11.7 where a node's is 3.11.9, as with Ray Client."""


CLIENT_TRIES = 3
"""How often a client asks Ray's client server for a process of its own. That one is forked among threads of gRPC, and
now and then dies of it (grpc/grpc#43055); nothing of ours has begun then."""
_CLIENT_DIED = "Starting Ray client server failed"


def asked_again(begin: Callable[[], Any]) -> None:
    """``begin``, again where the process that Ray made for this client died at once. Raises what ``begin`` raises."""
    for left in reversed(range(CLIENT_TRIES)):
        try:
            begin()
            return
        except ConnectionAbortedError as error:
            if not left or _CLIENT_DIED not in str(error):
                raise


def checked_address(cluster: str) -> str:
    """The address as Ray takes it, with its port. Raises ``ClusterError`` where it is none, or nobody answers."""
    if re.match(r"https?://", cluster):
        raise ClusterError(
            f"--cluster {cluster}: over HTTP go `cortex batch`, `run`, `resume` and `attach` alone: give the head's "
            "own address here, host:6379 or ray://host:10001"
        )
    found = re.fullmatch(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", cluster)
    if found is None or not (found[1] or found[3]):
        raise ClusterError(f"--cluster {cluster}: give inline, local, host:6379 or ray://host:10001")
    scheme, host, port = found[1] or "", found[2], int(found[3] or PORTS[found[1] or ""])
    _probe(cluster, host.strip("[]"), port)
    return f"{scheme}{host}:{port}"


def see_same(cluster: str, address: str) -> None:
    """The program that we are part of has connected itself already. Raises ``ClusterError`` where that is elsewhere."""
    if cluster.removeprefix("ray://").split(":")[0] not in (address.split(":")[0], "auto"):
        raise ClusterError(f"this process is connected to the Ray at {address}: give --cluster {address}")


def token_environ(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The setting with which a Ray on this machine is given this user's token, where there is one.

    A Ray that was started where a token is found asks for it, and Ray gives it to none whose address was named. To
    one elsewhere it is given only if ``RAY_AUTH_MODE=token`` says so: it is a secret.
    """
    if "RAY_AUTH_MODE" in environ or not _is_here(address.removeprefix("ray://").rpartition(":")[0].strip("[]")):
        return {}
    named = "RAY_AUTH_TOKEN" in environ or "RAY_AUTH_TOKEN_PATH" in environ
    return {"RAY_AUTH_MODE": "token"} if named or (Path.home() / ".ray" / "auth_token").is_file() else {}


def _is_here(host: str) -> bool:
    """Whether a host is this machine: whether its address can be bound to."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as tried:
            tried.bind(found[4])
        return True
    except OSError:
        return False


def _probe(cluster: str, host: str, port: int) -> None:
    """Ray waits for minutes where nobody is; here is known at once whether somebody speaks HTTP/2, as its head does."""
    try:
        with socket.create_connection((host, port), PROBE_S) as line:
            line.settimeout(PROBE_S)
            if speaks_http2(line):
                return
    except OSError as error:
        text = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ClusterError(f"no Ray answers at {cluster}: {text}") from None
    raise ClusterError(f"no Ray answers at {cluster}: something else listens there")


def speaks_http2(line: socket.socket) -> bool:
    """Whether whoever is at the other end greets as an HTTP/2 server does, and gRPC with it. Raises ``OSError``."""
    line.sendall(_GREETING)
    answer = line.recv(9)
    return len(answer) >= 4 and answer[3] == _SETTINGS_FRAME


@contextlib.contextmanager
def environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> Iterator[None]:
    """While Ray starts: no secret in the environment, which its processes inherit, and ``extra`` in it.

    ``environ`` is where the user's key stands, so that it is found under other names as well.
    """
    before = dict(os.environ)
    try:
        scrub(os.environ, *keys_in(environ))
        os.environ.update(extra)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def hidden(credentials: Iterable[Credential]) -> Iterator[None]:
    """While Ray starts: no variable that holds what opens a job's routes, whatever its name. Keys of AWS stay in the
    driver's own environment, since they open object stores for its input and output, too."""
    before = dict(os.environ)
    try:
        for each in credentials:
            scrub(os.environ, each)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class PrivateRay(msgspec.Struct, frozen=True):
    """The Ray that one process started for itself."""

    folder: str
    mark: str
    """Stands in the environment of all its processes, and in no other's."""

    @classmethod
    def prepare(cls) -> PrivateRay:
        """A folder of its own, with a path short enough for the sockets in it, and a mark."""
        places = [tempfile.gettempdir(), *(["/tmp"] if sys.platform != "win32" else [])]
        base = next((p for p in places if len((p + _SOCKET_BELOW).encode()) <= _SOCKET_PATH_MAX), places[-1])
        return cls(tempfile.mkdtemp(prefix="cortex-", dir=base), secrets.token_hex(8))

    @property
    def rays(self) -> str:
        """The part of the folder that is Ray's. It opens that to everybody, and nobody can reach it."""
        return self.folder + "/r"

    def environ(self) -> dict[str, str]:
        """What stands in the environment while it starts. Only who knows its token may speak to it."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return {**QUIET, NICENESS: os.environ.get(NICENESS, "0"), MARK: self.mark, **token}

    def processes(self) -> tuple[tuple[int, str], ...]:
        """Ids and start times of the processes that it has now."""
        roots = marked(self.mark)
        found = {(pid, process_started(pid)) for pid in roots}.union(*map(below, roots))
        return tuple(sorted((pid, started) for pid, started in found if started))

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def code_paths() -> tuple[str, ...]:
    """Where this process finds code, so that actors find the same: ours, and the program's modules."""
    own = str(Path(__file__).resolve().parent.parent)
    paths = [str(Path(path or ".").resolve()) for path in sys.path if not path.endswith(".zip")]
    return tuple(dict.fromkeys(path for path in (*paths, own) if Path(path).is_dir()))


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    lead = lines.pop(0) + " " if len(lines) > 1 and lines[0].endswith(":") and "Traceback" in lines[1] else ""
    traced = "Traceback" in lines[0] or "creation task" in lines[0]
    text = lines[-1] if traced else lines[0]
    return (lead + text)[:300]


@contextlib.contextmanager
def lean(node_class: type[Any]) -> Iterator[None]:
    """Have Ray's ``GoalNode`` start without what one process has no use for: autoscaler, log forwarding, dashboard.

    It has no option for these; each is a Python process, and together they double the time of the start. Where a
    release of Ray has them no more under these names, they are started after all.
    """

    def nothing(node: Any, **options: Any) -> None:
        node._webui_url = ""

    kept = {name: vars(node_class)[name] for name in NOT_NEEDED if name in vars(node_class)}
    try:
        for name in kept:
            setattr(node_class, name, nothing)
        yield
    finally:
        for name, method in kept.items():
            setattr(node_class, name, method)


def take_signals_back() -> None:
    """Ray puts a handler of its own before ours, which tells the user of a SIGTERM with a stack trace."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def end_gently(ray_worker: Any, loop: asyncio.AbstractEventLoop, reported: Callable[[], None]) -> None:
    """Have an actor's process finish its work when it is asked to end.

    Ray's answer to SIGTERM is to exit at once, by a function of this name, in a main thread that is not ours.
    """
    exit_now = ray_worker.raise_sys_exit_with_custom_error_message

    def end(message: str, exit_code: int = 0) -> None:
        if "SIGTERM" in message:
            loop.call_soon_threadsafe(reported)
        else:
            exit_now(message, exit_code)

    ray_worker.raise_sys_exit_with_custom_error_message = end
