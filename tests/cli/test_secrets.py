"""A key is found nowhere: not in a file under state or output, not in what is shown, not in what is started later."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

from actors.cli.options import errors
from actors.journal.journal import StateFolder
from tests.cli.cli_runner import ended, environment, requests, started

KEY = "sk-ant-api03-averyveryverysecretkeyindeed0123456789"


def _clean(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
            assert path.stat().st_mode & 0o077 == 0 or path.name in ("in.jsonl", "out.jsonl", "note.txt", ".gitignore")


def test_a_run_against_a_provider_leaves_no_key(cortex, tmp_path, monkeypatch):
    requests(Path("in.jsonl"), 40)
    with started("simulate", "--port", 0, "--fault", "unauthorised=0.2", "-s", "seed=4") as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        facts = environment(ANTHROPIC_API_KEY=KEY, ANTHROPIC_BASE_URL=url, CORTEX_DEBUG="1")
        with started("batch", "in.jsonl", "-o", "out.jsonl", "--json", env=facts) as child:
            done = ended(child)
        assert KEY not in done.out + done.err
        # 401 for some: the job pauses and says so, or all came through
        assert done.code in (0, 3), done.err
        assert done.last["cost_usd"] is None  # nobody knows the price of claude-test
        server.send_signal(signal.SIGTERM)
        assert ended(server).code == 0
    state = StateFolder(os.environ["CORTEX_STATE"]).path
    assert any(state.rglob("*.sqlite"))
    for journal in state.rglob("*.sqlite"):  # what is still in the write-ahead log is in the file then
        sqlite3.connect(journal).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    _clean(state)
    _clean(tmp_path)


def test_the_key_leaves_the_environment_before_anything_is_started(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "SOMEBODYS_COPY"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:verysecretpassword@proxy:1")
    monkeypatch.setattr(errors, "_secrets", [])
    assert cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim").code == 0
    assert not [name for name, value in os.environ.items() if KEY in value or "verysecretpassword" in value]


def test_an_error_that_holds_the_key_shows_it_not(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    token = "a gateway's own word"  # it does not look like a key
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", token)
    monkeypatch.setattr(errors, "_secrets", [])

    def fault(*arguments: object, **named: object) -> None:
        raise RuntimeError(f"it said {token}")

    monkeypatch.setattr("actors.api.session.destination", fault)
    done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "-v")
    assert done.code == 1
    assert "it said [redacted]" in done.err
    assert token not in done.err
    assert "Traceback" in done.err
