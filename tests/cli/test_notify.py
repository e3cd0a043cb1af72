"""``--notify``: a URL hears of caps, pauses, deadlines and ends, each once; nothing waits for it, and nothing shows it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors.channel import webhooks
from actors.journal.journal import StateFolder
from cortex.state.state import State
from cortex.values.limits import Limits
from tests.cli.cli_runner import requests, until
from tests.support.patience import PATIENCE_S
from tests.support.state_machine_harness import failure, terms

PRICED = ("--model", "sim", "--price", "input=3,output=15", "--max-output-tokens", "40")
SECRET = "T000-B000-very-secret"


class Receiver:
    """What a webhook heard. ``statuses`` are given in turn, then 200."""

    def __init__(self, *statuses: int) -> None:
        self.heard: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.statuses = list(statuses)


@contextmanager
def receiving(*statuses: int) -> Iterator[tuple[Receiver, str]]:
    """A receiver and its URL. A job that ends waits as long as a busy machine needs to post its last messages."""
    found = Receiver(*statuses)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CLOSE_S", "TIMEOUT_S"):
            patch.setattr(webhooks, name, PATIENCE_S)
        yield from _receiving(found)


def _receiving(found: Receiver) -> Iterator[tuple[Receiver, str]]:

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = found.statuses.pop(0) if found.statuses else 200
            found.paths.append(self.path)
            if status == 200:
                found.heard.append(json.loads(body))  # before the answer: whoever has it may send the next
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            found.paths.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found, f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
    finally:
        server.shutdown()
        server.server_close()


def _events(heard: Receiver) -> list[tuple[Any, ...]]:
    return [(each["event"], each.get("percent") or each.get("outcome")) for each in heard.heard]


def _nowhere(done: Any) -> None:
    """The secret stands in nothing that was said or kept."""
    assert SECRET not in done.out + done.err
    for path in Path(os.environ["CORTEX_STATE"]).rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_shares_of_a_cap_and_the_end_are_told_each_once_also_after_a_resume(cortex):
    requests(Path("in.jsonl"), 60)
    command = ("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--job", "a", "--label", "team=search", "--json")
    with receiving() as (receiver, url):
        done = cortex(*command, "--max-cost", "0.002", "--notify", url)
        assert done.code == 3
        assert _events(receiver) == [("cost", 50), ("cost", 80), ("cost", 100), ("ended", "partial")]
        end = receiver.heard[-1]
        assert end["job"] == "a" and end["labels"] == {"team": "search"} and end["cost_usd"] == done.last["cost_usd"]
        assert "cortex job a (team=search): ended partial: over_budget: " in end["text"] and "$0.00" in end["text"]
        _nowhere(done)
        again = cortex("resume", "a", "--notify", url, "--json")
        assert again.code == 3
        assert _events(receiver)[4:] == [("ended", "partial")]
        last = cortex("resume", "a", "--max-cost", "1", "--notify", url)
        assert last.code == 0 and _events(receiver)[5:] == [("ended", "complete")]
        assert "crashes" not in json.dumps(receiver.heard), "a prompt went out"
        _nowhere(last)
    assert "notify" not in cortex("config", "a").out


def test_a_budget_is_told_too(cortex):
    requests(Path("in.jsonl"), 200)
    cortex("budget", "team=search", "--max-cost-per-day", "0.01")
    with receiving() as (receiver, url):
        done = cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--label", "team=search", "--notify", url)
        assert done.code == 3
    receiver.heard.sort(key=lambda told: told.get("percent", 101))  # a message that had to be posted again comes later
    assert _events(receiver) == [("cost", 50), ("cost", 80), ("cost", 100), ("ended", "partial")]
    assert "80 % of the budget team=search a day of $0.01 is spent" in receiver.heard[1]["text"]
    assert receiver.heard[2]["cost_usd"] < 0.01
    assert "the budget team=search a day of $0.01 is used up, the next call could pass it" in receiver.heard[2]["text"]
    assert "the budget team=search" in receiver.heard[3]["text"]


def test_a_url_may_come_from_the_environment_or_a_job_file(cortex, monkeypatch):
    requests(Path("in.jsonl"), 3)
    with receiving() as (receiver, url):
        monkeypatch.setenv("CORTEX_NOTIFY", url)
        assert cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED).code == 0
        monkeypatch.delenv("CORTEX_NOTIFY")
        Path("job.toml").write_text(f'notify = "{url}"\n')
        done = cortex("batch", "in.jsonl", "-o", "b.jsonl", *PRICED, "-f", "job.toml")
        assert done.code == 0 and len(receiver.heard) == 2
        _nowhere(done)


@pytest.mark.parametrize("url", ["hooks.example.com/x", "ftp://h/x", "http:///", "http://h:port/x", "http://h/a b"])
def test_what_is_no_url_is_one_line_that_does_not_show_it(cortex, url):
    requests(Path("in.jsonl"), 3)
    done = cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--notify", url + SECRET)
    done.refused("--notify", "whole URL")
    assert SECRET not in done.err and not Path("a.jsonl").exists()


def test_one_that_refuses_or_hangs_holds_up_nothing(cortex, monkeypatch):
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 100.0)
    requests(Path("in.jsonl"), 30)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)  # it takes connections, and never answers
        port = deaf.getsockname()[1]
        began_s = time.monotonic()
        done = cortex("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--notify", f"http://127.0.0.1:{port}/{SECRET}")
        assert done.code == 0 and time.monotonic() - began_s < 60
        _nowhere(done)
    done = cortex("batch", "in.jsonl", "-o", "b.jsonl", *PRICED, "--notify", f"http://127.0.0.1:{port}/{SECRET}")
    assert done.code == 0
    _nowhere(done)


def test_a_message_is_tried_again_and_no_redirect_is_followed(caplog):
    done: list[str] = []
    with receiving(500, 503) as (receiver, url):
        post = webhooks.WebhookThread(url, done.append, tries_s=(0.01, 0.01))
        post.put("a", b'{"text": "a"}')
        post.put("b", b'{"text": "b"}')
        until(lambda: len(done) == 2)
        post.close()
    assert done == ["a", "b"] and [each["text"] for each in receiver.heard] == ["a", "b"] and not caplog.records
    done.clear()
    with receiving(302, 302, 302, 302, 302, 302) as (receiver, url):
        post = webhooks.WebhookThread(url, done.append, tries_s=(0.01, 0.01))
        for key in "abc":
            post.put(key, b"{}")
        until(lambda: bool(done))
        post.close()
    assert receiver.paths == [f"/services/{SECRET}"] * 7 and done == ["c"], "three tries of each of the first two"
    (warned,) = caplog.records
    assert "127.0.0.1 accepts no message (status 302)" in warned.getMessage() and SECRET not in caplog.text


class _Quiet:
    """A runtime with clocks alone, and no message that is posted."""

    seen = ()

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_s(self) -> float:
        return 1_800_000_000 + self.at_s

    def monotonic_s(self) -> float:
        return self.at_s


def test_a_pause_a_breaker_and_a_deadline_at_risk(monkeypatch):
    quiet = _Quiet()
    k = State(terms=terms(places={"rows": "1000"}))
    herald = webhooks.WebhookNotifier("", None, quiet, lambda: k, quiet, str)  # type: ignore[arg-type]

    def told() -> dict[str, str]:
        return {key.partition("/")[0]: each["event"] for key, each in herald._news(k)}

    assert told() == {}
    k.shares[0].why = "the breaker is open: 9 of 10 failed"
    assert told() == {}
    quiet.at_s += 299
    k.shares[0].why = "half open, 1 to probe: 9 of 10 failed"
    assert told() == {}
    quiet.at_s += 2
    assert told() == {"breaker": "breaker_open"}
    assert len({key for _ in range(3) for key, _ in herald._news(k)}) == 1, "it would be told again and again"
    k.shares[0].why = ""
    assert told() == {}
    k.paused, k.paused_at_s = failure("blocked", "your credit is used up: PROMPT"), 7.0
    ((key, each),) = herald._news(k)
    assert (key, each["event"], each["kind"]) == ("paused/7", "paused", "blocked")
    assert b"PROMPT" not in webhooks._message(k, each)
    k.paused, k.terms = None, terms(Limits(deadline_at_s=1_800_009_000.0), places={"rows": "1000"})
    monkeypatch.setattr(webhooks, "forecast", lambda *_: {"projected_end_s": 1_900_000_000.0, "deadline_at_risk": True})
    ((key, each),) = herald._news(k)
    assert key == "deadline/1800009000" and each["event"] == "deadline_at_risk" and "is at risk" in each["said"]


def test_what_was_not_taken_is_told_by_the_next_run(cortex):
    requests(Path("in.jsonl"), 30)
    command = ("batch", "in.jsonl", "-o", "a.jsonl", *PRICED, "--job", "a", "--max-cost", "0.001")
    with receiving(*[500] * 40) as (receiver, url):
        assert cortex(*command, "--notify", url).code == 3 and not receiver.heard
    with receiving() as (receiver, url):
        assert cortex("resume", "a", "--notify", url).code == 3
    assert ("cost", 50) in _events(receiver)
    source = StateFolder(os.environ["CORTEX_STATE"]).journal("a")
    assert json.loads(source.meta(webhooks.NOTED) or b"[]")
    source.close()
