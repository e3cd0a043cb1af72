"""``--via batches`` at providers of files, killed (-9) while a file is uploaded, a batch is made, its results are read and
its files are deleted: the same command goes on, no line is in two batches, and nothing that was paid is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.simulator.frontends.http_app import SimulatorServer, serve
from actors.simulator.settings import SimulatorSettings
from tests.cli.cli_runner import each_once, environment, requests

ROWS = 60
AT_ONCE = 25
"""Requests with the provider at once: three batches or more."""
IMPATIENT = """
import sys
import msgspec
from actors.api import session
from policies.estimates.batching import BatchingPolicy

bounds = session.bounds
policy = BatchingPolicy(
    gather_s=0.05, gather_max_s=0.3, settle_s=1.0, submit_timeout_s=30.0, poll_s=0.05, poll_max_s=0.3
)
session.bounds = lambda limits, **how: msgspec.structs.replace(bounds(limits, **how), batching=policy)
from actors.cli import main

sys.exit(main())
"""
"""The command line, with pauses for a provider that takes no hours."""
AT: dict[str, tuple[str, str]] = {
    "openai": ("OPENAI", "/v1"), "openai-responses": ("OPENAI", "/v1"), "mistral": ("MISTRAL", "/v1"),
    "gemini": ("GEMINI", "/v1beta/openai"),
}  # fmt: skip
"""Prefix of a provider's variables, and the path of its chat completions."""
MOMENTS = ("uploaded", "made", "read", "deleted")


class Watched:
    """A simulated provider in a thread of this process, which says what it has done before it answers."""

    def __init__(self) -> None:
        self.then: Callable[[str], None] = lambda moment: None
        self.submitted: Counter[str] = Counter()
        """Texts of the requests of all batches that were made."""
        self.batches = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        settings = SimulatorSettings(error=0.0, batch_ms=100)
        self.server: SimulatorServer = self._run(serve(settings))
        store: Any = self.server._face.chat.batches.store
        self._files = store._files
        self._after(store, "upload", lambda *given: self.then("uploaded"))
        self._after(store, "_kept", self._made)
        self._after(store, "content", lambda file: self.then("read") if file.startswith("file-output") else None)
        self._after(store, "delete", lambda file: self.then("deleted"))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _after(self, store: Any, name: str, then: Callable[..., None]) -> None:
        own = getattr(store, name)

        def done(*given: Any) -> Any:
            found = own(*given)
            then(*given)
            return found

        setattr(store, name, done)

    def _made(self, form: str, file: str, *more: Any) -> None:
        self.batches += 1
        self.submitted.update(_text(json.loads(line)) for line in self._files[file].splitlines())
        self.then("made")

    def close(self) -> None:
        self._run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _text(value: Any) -> str:
    """The one text of a request that names its row, wherever its form has it."""
    if isinstance(value, str):
        return value if "It crashes" in value else ""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return "".join(map(_text, parts))


@contextmanager
def watched() -> Iterator[Watched]:
    found = Watched()
    try:
        yield found
    finally:
        found.close()


@pytest.mark.long
@pytest.mark.parametrize("provider", AT)
def test_batches_of_a_job_that_is_killed_at_every_step_are_made_and_paid_once(
    provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    requests(Path("in.jsonl"), ROWS, model="m")
    prefix, path = AT[provider]
    with watched() as there:
        facts = {f"{prefix}_API_KEY": "sk-made-up-0123456789", f"{prefix}_BASE_URL": there.server.url + path}
        command = [
            sys.executable, "-c", IMPATIENT, "batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--json",
            "--provider", provider, "--via", "batches", "--concurrency", str(AT_ONCE), "--price", "input=1,output=1",
        ]  # fmt: skip
        for moment in MOMENTS:
            child = subprocess.Popen(command, env=environment(**facts), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

            def kill(now: str, meant: str = moment, victim: subprocess.Popen[bytes] = child) -> None:
                if now == meant and victim.poll() is None:
                    os.kill(victim.pid, signal.SIGKILL)

            there.then = kill
            out, err = child.communicate(timeout=120)
            assert child.returncode == -signal.SIGKILL, (moment, out, err)
        there.then = lambda moment: None
        done = subprocess.run(command, env=environment(**facts), capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answered = there.server.provider.stats()["complete_answers"]
    last = json.loads(done.stdout.splitlines()[-1])
    each_once(Path("out.jsonl"), ROWS)
    assert (last["rows_succeeded"], last["rows_failed"], last["paid_again"]) == (ROWS, 0, 0)
    assert last["cost_assumed_usd"] == 0, "no charge is left open"
    assert there.batches >= ROWS // AT_ONCE
    assert set(there.submitted.values()) == {1} and len(there.submitted) == ROWS, "no line in two batches"
    assert answered == ROWS
