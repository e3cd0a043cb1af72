"""Preparation for a connection to Ray: check of the address, environment variables, folder of a private Ray."""

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
"""Seconds that an address may take to answer."""
PORTS = {"": 6379, "ray://": 10001}
OBJECT_STORE_BYTES = 80_000_000
"""About the smallest object store that Ray accepts. The actors of this project do not use the object store."""
_SOCKET_PATH_MAX = 103
"""Bytes in the path of a Unix socket: 104 with its end on macOS and BSD, 108 on Linux (sys/un.h)."""
_SOCKET_BELOW = "/cortex-12345678/r/session_2026-01-01_00-00-00_123456_4194304/cortex/0123456789ab.4194304"
"""Longest path below the temporary folder: a socket of ``actors.cluster.sockets``.

Ray's own socket paths are seven bytes shorter. A temporary folder that is too long only for the sockets of this project
is still replaced by ``/tmp``, since all messages are slower without these sockets."""
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface of an HTTP/2 client and an empty SETTINGS frame: RFC 9113, 3.4 and 6.5."""
_SETTINGS_FRAME = 4

NOT_NEEDED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's class of a node that are skipped for a private Ray (``lean``)."""

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_metrics_collection": "0",
}
"""Environment of a private Ray: no usage reports, and agents that end when their parent dies."""
NICENESS = "RAY_worker_niceness"
"""Variable for the niceness of Ray's workers. Ray's default of 15 leaves an actor a thirtieth of a processor that the
driver or Ray itself wants too (sched(7): each step is a factor of 1.25); with 0 `http` makes 1.09 times as many calls a
second on two busy cores (docs/decisions/0007)."""

PYTHONS_THAT_FIT = {"RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor"}
"""Environment that makes Ray compare only minor versions of Python: a driver with 3.11.7 may use nodes with 3.11.9, as
with Ray Client."""

PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
"""Environment that makes Ray wait for a lost head longer than a driver does (``actors.cluster.node_watchdog.SILENT_S``,
and the seconds in which a failed driver lets go). After Ray's own 60 s it ends the process, with exit code 1 and a line
about GCS (``rpc_client.h``, Ray 2.60), in the middle of that."""

CLIENT_TRIES = 3
"""Attempts to get a server process for a Ray client. Ray's client server forks the process among threads of gRPC, and
the fork sometimes dies of it (grpc/grpc#43055). Nothing of a job has begun at that moment."""
_CLIENT_DIED = "Starting Ray client server failed"


def asked_again(begin: Callable[[], Any]) -> None:
    """Call ``begin``, and again, up to ``CLIENT_TRIES`` times, if the server process for this client died at once.

    Raises what ``begin`` raises.
    """
    for left in reversed(range(CLIENT_TRIES)):
        try:
            begin()
            return
        except ConnectionAbortedError as error:
            if not left or _CLIENT_DIED not in str(error):
                raise


def checked_address(cluster: str) -> str:
    """Return the address in Ray's form, with its port. Raises ``ClusterError`` if it is malformed or does not answer.
    """
    if re.match(r"https?://", cluster):
        raise ClusterError(
            f"--cluster {cluster}: only `cortex batch`, `run`, `resume` and `attach` work over HTTP: give the "
            "head's own address, host:6379 or ray://host:10001"
        )
    found = re.fullmatch(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", cluster)
    if found is None or not (found[1] or found[3]):
        raise ClusterError(f"--cluster {cluster}: give inline, local, host:6379 or ray://host:10001")
    scheme, host, port = found[1] or "", found[2], int(found[3] or PORTS[found[1] or ""])
    _probe(cluster, host.strip("[]"), port)
    return f"{scheme}{host}:{port}"


def see_same(cluster: str, address: str) -> None:
    """Check that an existing connection of this process leads to the requested cluster. Raises ``ClusterError`` if not.
    """
    if cluster.removeprefix("ray://").split(":")[0] not in (address.split(":")[0], "auto"):
        raise ClusterError(f"this process is connected to the Ray at {address}: give --cluster {address}")


def token_environ(address: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that make Ray use this user's token for a Ray on this machine; empty without a
    token.

    A Ray started where a token exists demands the token, but Ray does not send a token to an address that was given
    explicitly. The token is a secret, so a Ray on another machine gets it only if the user sets
    ``RAY_AUTH_MODE=token``.
    """
    if "RAY_AUTH_MODE" in environ or not _is_here(address.removeprefix("ray://").rpartition(":")[0].strip("[]")):
        return {}
    named = "RAY_AUTH_TOKEN" in environ or "RAY_AUTH_TOKEN_PATH" in environ
    return {"RAY_AUTH_MODE": "token"} if named or (Path.home() / ".ray" / "auth_token").is_file() else {}


def _is_here(host: str) -> bool:
    """Return whether a host is this machine, which is so if its address can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], socket.SOCK_STREAM) as tried:
            tried.bind(found[4])
        return True
    except OSError:
        return False


def _probe(cluster: str, host: str, port: int) -> None:
    """Check at once that an HTTP/2 server, as Ray's head is, listens at an address; Ray itself would wait for minutes.

    Raises ``ClusterError``.
    """
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
    """Return whether the peer greets as an HTTP/2 server does, and so every gRPC server. Raises ``OSError``."""
    line.sendall(_GREETING)
    answer = line.recv(9)
    return len(answer) >= 4 and answer[3] == _SETTINGS_FRAME


@contextlib.contextmanager
def environment(environ: Mapping[str, str], extra: Mapping[str, str]) -> Iterator[None]:
    """Set the environment for the start of Ray: remove all secrets, which Ray's processes would inherit, and add
    ``extra``.

    ``environ`` holds the user's key, so that copies of the key under other variable names are found and removed too.
    The previous environment is restored at the end.
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
    """Remove the variables that hold credentials of a job's routes, under any name, during the start of Ray.

    Keys of AWS stay in the driver's own environment, since they also open object stores for its input and output. The
    previous environment is restored at the end.
    """
    before = dict(os.environ)
    try:
        for each in credentials:
            scrub(os.environ, each)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class PrivateRay(msgspec.Struct, frozen=True):
    """Ray that one process started for itself."""

    folder: str
    mark: str
    """Random mark in the environment of all processes of this Ray, and of no other process."""

    @classmethod
    def prepare(cls) -> PrivateRay:
        """Make a private folder, with a path short enough for the sockets in it, and a mark."""
        places = [tempfile.gettempdir(), *(["/tmp"] if sys.platform != "win32" else [])]
        base = next((p for p in places if len((p + _SOCKET_BELOW).encode()) <= _SOCKET_PATH_MAX), places[-1])
        return cls(tempfile.mkdtemp(prefix="cortex-", dir=base), secrets.token_hex(8))

    @property
    def rays(self) -> str:
        """Ray's part of the folder. Ray makes it accessible to all users, but only this user can access the folder
        above.
        """
        return self.folder + "/r"

    def environ(self) -> dict[str, str]:
        """Return the environment variables for the start, with a new token: only holders of the token may connect."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        return {**QUIET, NICENESS: os.environ.get(NICENESS, "0"), MARK: self.mark, **token}

    def processes(self) -> tuple[tuple[int, str], ...]:
        """Return ids and start times of its present processes."""
        roots = marked(self.mark)
        found = {(pid, process_started(pid)) for pid in roots}.union(*map(below, roots))
        return tuple(sorted((pid, started) for pid, started in found if started))

    def remove(self) -> None:
        """Remove its folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def code_paths() -> tuple[str, ...]:
    """Return the folders from which this process imports code: the project's own, and those of the program's modules.

    Actors get the same list.
    """
    own = str(Path(__file__).resolve().parent.parent)
    paths = [str(Path(path or ".").resolve()) for path in sys.path if not path.endswith(".zip")]
    return tuple(dict.fromkeys(path for path in (*paths, own) if Path(path).is_dir()))


def first_line(error: BaseException) -> str:
    """Return the message of an error in one line, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    lead = lines.pop(0) + " " if len(lines) > 1 and lines[0].endswith(":") and "Traceback" in lines[1] else ""
    traced = "Traceback" in lines[0] or "creation task" in lines[0]
    text = lines[-1] if traced else lines[0]
    return (lead + text)[:300]


@contextlib.contextmanager
def lean(node_class: type[Any]) -> Iterator[None]:
    """Make Ray's class of a node skip the autoscaler, log forwarding and the dashboard, which a single process does not
    need.

    Ray has no option for these. Each is a Python process, and together they double the time of the start. In a release
    of Ray without methods of these names, they are started.
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


@contextlib.contextmanager
def loopback(services: Any) -> Iterator[None]:
    """Make Ray keep 127.0.0.1 as the address of a node, so that no process of a private Ray listens elsewhere.

    ``ray.init`` replaces a local address by that of the network, for nodes on other machines
    (``ray._private.services.resolve_ip_for_localhost``, Ray 2.60), and gcs, raylet and actors then listen on all
    interfaces. With 127.0.0.1 each of them binds to it (https://github.com/ray-project/ray/pull/59852). ``services``:
    Ray's module; in a release without that function nothing is changed.
    """
    name = "resolve_ip_for_localhost"
    kept = getattr(services, name, None)
    if kept is None:
        yield
        return
    setattr(services, name, lambda host: host)
    try:
        yield
    finally:
        setattr(services, name, kept)


def take_signals_back() -> None:
    """Restore the signal handlers of this process: Ray's handler, set in front of them, prints a stack trace on
    SIGTERM.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if handler is not None:
                signal.signal(number, handler)


def end_gently(ray_worker: Any, loop: asyncio.AbstractEventLoop, reported: Callable[[], None]) -> None:
    """Make an actor's process finish its work on SIGTERM: ``reported`` is called in ``loop`` instead of an exit.

    Ray's reaction to SIGTERM is an immediate exit, by a function of this name, in Ray's main thread.
    """
    exit_now = ray_worker.raise_sys_exit_with_custom_error_message

    def end(message: str, exit_code: int = 0) -> None:
        if "SIGTERM" in message:
            loop.call_soon_threadsafe(reported)
        else:
            exit_now(message, exit_code)

    ray_worker.raise_sys_exit_with_custom_error_message = end
