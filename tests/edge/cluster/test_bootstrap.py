"""Before Ray is spoken to: what is no address is said at once, and no secret stands where its processes inherit it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from actors.cluster import bootstrap
from actors.cluster.bootstrap import (
    PrivateRay,
    asked_again,
    checked_address,
    code_paths,
    environment,
    first_line,
    lean,
    loopback,
    token_environ,
)
from actors.ports.runtime import ClusterError
from tests.support.patience import PATIENCE_S


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def _answering(listener: socket.socket, answer: bytes) -> str:
    def serve() -> None:
        line, _ = listener.accept()
        with line:
            line.recv(100)
            line.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("http://head:8265", "work over HTTP"),
        ("https://head", "work over HTTP"),
        ("head", "give inline, local, host:6379 or ray://host:10001"),
        ("two words:1", "give inline, local"),
        ("head:many", "give inline, local"),
        ("", "give inline, local"),
    ],
)
def test_what_is_no_address_is_said_in_one_line(cluster: str, said: str) -> None:
    with pytest.raises(ClusterError, match=said) as caught:
        checked_address(cluster)
    assert "\n" not in str(caught.value)


def test_an_address_where_nobody_listens_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PROBE_S", 2 * PATIENCE_S)
    with socket.socket() as held:  # nobody else gets its port meanwhile
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(ClusterError, match=f"no Ray answers at {address}"):
            checked_address(address)
    assert time.monotonic() - began_s < PATIENCE_S


def test_an_address_that_stays_silent_is_said_soon(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "PROBE_S", 0.05)
    with pytest.raises(ClusterError, match="no answer"):
        checked_address(f"127.0.0.1:{listener.getsockname()[1]}")


def test_an_address_where_something_else_listens_is_told_apart(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "PROBE_S", PATIENCE_S)
    with pytest.raises(ClusterError, match="something else listens there"):
        checked_address(_answering(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n"))


def test_an_address_that_speaks_as_a_head_does_is_taken(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "PROBE_S", PATIENCE_S)
    address = _answering(listener, bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    assert checked_address(address) == address


def test_no_secret_stands_in_the_environment_in_which_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-ant-0123456789abcdef"
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    monkeypatch.setenv("MY_COPY", f"key={key}")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@proxy:3128")
    before = dict(os.environ)
    with environment(before, {"MARK": "x"}):
        assert os.environ["MARK"] == "x"
        assert os.environ["PATH"] == before["PATH"]
        assert not [name for name, value in os.environ.items() if key in value or "password" in value]
    assert dict(os.environ) == before


def test_a_private_ray_has_a_folder_whose_sockets_have_short_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(bootstrap.tempfile, "tempdir", str(long))
    first, second = PrivateRay.prepare(), PrivateRay.prepare()
    try:
        assert len(first.folder) < 30
        assert oct(Path(first.folder).stat().st_mode)[-3:] == "700"
        assert first.environ()["RAY_AUTH_TOKEN"] != second.environ()["RAY_AUTH_TOKEN"]
        assert first.mark != second.mark
    finally:
        first.remove()
        second.remove()
    assert not Path(first.folder).exists()


def test_the_actors_of_a_private_ray_are_no_lower_than_its_driver_unless_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = PrivateRay("folder", "mark")
    assert private.environ()["RAY_worker_niceness"] == "0"
    monkeypatch.setenv("RAY_worker_niceness", "5")
    assert private.environ()["RAY_worker_niceness"] == "5"


def test_the_users_token_is_given_to_a_ray_on_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_environ("127.0.0.1:6379", {}) == {}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert token_environ("127.0.0.1:6379", {}) == {"RAY_AUTH_MODE": "token"}
    assert token_environ("ray://localhost:10001", {}) == {"RAY_AUTH_MODE": "token"}
    assert token_environ("127.0.0.1:6379", {"RAY_AUTH_MODE": "disabled"}) == {}
    monkeypatch.setattr(bootstrap, "_is_here", lambda host: host != "elsewhere")
    assert token_environ("elsewhere:6379", {}) == {}


def test_what_one_process_has_no_use_for_is_not_started() -> None:
    class Node:
        def start_monitor(self) -> str:
            return "started"

    with lean(Node):
        assert Node().start_monitor() is None
    assert Node().start_monitor() == "started"


def test_actors_find_our_code_and_the_programs() -> None:
    paths = code_paths()
    assert str(Path(bootstrap.__file__).parent.parent) in paths
    assert all(Path(path).is_dir() for path in paths)
    assert len(paths) == len(set(paths))


def test_an_error_of_many_lines_is_told_in_one() -> None:
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError("Traceback (most recent call last):\n  File x\nImportError: no actors")) == (
        "ImportError: no actors"
    )
    assert first_line(ValueError()) == "ValueError"
    text = "Initialization failure from server:\nTraceback (most recent call last):\n  File x\nRuntimeError: it died"
    assert first_line(ConnectionAbortedError(text)) == "Initialization failure from server: RuntimeError: it died"
    assert first_line(ValueError("why:\nit is so")) == "why:"


@pytest.mark.parametrize(("deaths", "why", "asked"), [
    (0, "", 1), (2, "RuntimeError: Starting Ray client server failed. See x.err", 3),
    (9, "RuntimeError: Starting Ray client server failed. See x.err", 3), (1, "RuntimeError: no such thing", 1),
])  # fmt: skip
def test_a_client_whose_process_on_the_head_died_at_once_asks_for_another(deaths: int, why: str, asked: int) -> None:
    left, calls = [ConnectionAbortedError(f"Initialization failure from server:\n{why}")] * deaths, []

    def begin() -> None:
        calls.append(1)
        if left:
            raise left.pop()

    with pytest.raises(ConnectionAbortedError, match=why) if deaths >= asked else contextlib.nullcontext():
        asked_again(begin)
    assert len(calls) == asked


@pytest.mark.parametrize(("deaths", "joins"), [(2, True), (3, False)])
def test_joining_by_a_client_asks_again_and_at_last_says_why(
    monkeypatch: pytest.MonkeyPatch, deaths: int, joins: bool
) -> None:
    from actors.runtime import ray_runtime

    text = "Initialization failure from server:\nTraceback (x):\nRuntimeError: Starting Ray client server failed. See 7.err"
    calls: list[str] = []

    def init(*, address: str, **options: object) -> None:
        calls.append(address)
        if len(calls) <= deaths:
            raise ConnectionAbortedError(text)

    monkeypatch.setattr(ray_runtime.ray, "init", init)
    monkeypatch.setattr(ray_runtime.ray_worker, "print_to_stdstream", ray_runtime.ray_worker.print_to_stdstream)
    with contextlib.nullcontext() if joins else pytest.raises(ClusterError, match="Starting Ray client server failed"):
        ray_runtime._init(address="ray://head:10001")
    assert calls == ["ray://head:10001"] * 3


async def test_a_private_ray_has_room_for_as_many_branches_as_the_machine_has_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is told of more CPUs than that, so that it starts processes ahead."""
    from actors.runtime import ray_runtime

    monkeypatch.setattr(ray_runtime, "own_cores", lambda: 5)
    alone = object.__new__(ray_runtime.RayRuntime)
    alone.cluster = "local"
    assert await alone.cores() == 5


def test_ray_keeps_the_local_address_while_a_private_one_starts() -> None:
    resolve = lambda host: "192.0.2.2"  # noqa: E731
    services = SimpleNamespace(resolve_ip_for_localhost=resolve)
    with pytest.raises(ValueError, match="inside"), loopback(services):
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        raise ValueError("inside")
    assert services.resolve_ip_for_localhost is resolve
    other = SimpleNamespace()
    with loopback(other):
        assert vars(other) == {}, "a release without it starts as it did"
