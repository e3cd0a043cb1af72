"""A command that runs on the head of a cluster, and a dashboard there that is away for a while, or for good."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors.cli.options.errors import PARTIAL, Interrupted
from actors.cli.options.options import Options
from actors.cli.remote import submit
from actors.common.errors import USAGE, CommandError
from actors.ports.runtime import ClusterError
from tests.support.patience import PATIENCE_S

ROWS = b'{"custom_id": "a"}\n'
SUMMARY = json.dumps({"job": "j", "output": "/there/out.jsonl", "rows": 1})


class Head:
    """The Jobs API of a head: a job runs for a few looks, then ends well. ``fails``: what goes wrong with a request."""

    def __init__(self) -> None:
        self.looks = 0
        self.asked: list[str] = []
        """Methods and paths, whatever became of them."""
        self.jobs: dict[str, str] = {}
        self.fails: Callable[[str, str], str] = lambda method, path: ""
        self.ends_at = 4

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, str]:
        if path == "/api/version":
            return 200, '{"ray_version": "2.60.0"}'
        if path.startswith("/api/packages"):
            return 200, ""
        if method == "POST":
            answer = json.loads(body)
            if answer["submission_id"] in self.jobs:
                return 500, "ValueError: Job with submission_id j already exists"
            self.jobs[answer["submission_id"]] = answer["entrypoint"]
            return 200, ""
        name, _, logs = path.removeprefix("/api/jobs/").partition("/")
        if name not in self.jobs:
            return 404, ""
        if "-results-" in name:
            packed = base64.b64encode(gzip.compress(ROWS)).decode()
            text = "\n".join(("20", sha256(ROWS).hexdigest() + "  -", packed))
            return 200, json.dumps({"logs": text} if logs else {"status": "SUCCEEDED"})
        self.looks += not logs
        over = self.looks >= self.ends_at or any("-drain-" in each for each in self.jobs)
        return 200, json.dumps(
            {"logs": "working\n" + (SUMMARY + "\n" if over else "")} if logs
            else {"status": "SUCCEEDED" if over else "RUNNING"}
        )  # fmt: skip


class _Door(BaseHTTPRequestHandler):
    head: Head

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        head = self.head
        head.asked.append(f"{self.command} {self.path}")
        wrong = head.fails(self.command, self.path)
        if wrong != "unheard":
            code, text = head.answer(self.command, self.path, body)
        if wrong in ("unheard", "unanswered"):  # the line is cut before, or after, it is heard
            self.close_connection = True
            return
        if wrong:
            code, text = (200, wrong) if wrong.startswith("<") else (int(wrong), "nothing more")
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Head]:
    monkeypatch.setattr(submit, "LOOK_S", 0.01)
    monkeypatch.setattr(submit, "AWAY_S", PATIENCE_S)
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(ROWS)
    made = Head()
    handler = type("Door", (_Door,), {"head": made})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("RAY_ADDRESS", f"http://127.0.0.1:{server.server_address[1]}")
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def for_good(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is away does not come back in the time for which it is asked."""
    monkeypatch.setattr(submit, "AWAY_S", 0.3)


def batch() -> int:
    return submit.carry_out("batch", {"input": "in.jsonl", "output": "out.jsonl"}, Options(job="j", cluster="auto"))


def only(path: str, method: str, what: str, first: int, count: int) -> Callable[[str, str], str]:
    """The ``first`` such request and some after it go wrong."""
    seen: list[Any] = []

    def fails(asked: str, at: str) -> str:
        if asked != method or not at.startswith(path) or "-results-" in at:
            return ""
        seen.append(at)
        return what if first <= len(seen) < first + count else ""

    return fails


@pytest.mark.parametrize("what", ["unheard", "unanswered", "502", "503", "504", "500", "<html>"])
def test_a_hiccup_of_the_dashboard_ends_nothing(head: Head, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    head.fails = only("/api/jobs/j", "GET", what, 3, 4)  # the first was whether there is such a job
    assert batch() == 0
    assert Path("out.jsonl").read_bytes() == ROWS
    text = capsys.readouterr().err
    assert text.count("; asking again\n") <= 2, "one line, however often it is asked"
    assert [name for name in head.jobs if "-" not in name] == ["j"]


@pytest.mark.usefixtures("for_good")
@pytest.mark.parametrize("what", ["unheard", "500"])
def test_one_that_stays_away_leaves_the_job_there_and_says_so(head: Head, what: str) -> None:
    head.fails = only("/api/jobs/j", "GET", what, 3, 1_000_000)
    with pytest.raises(CommandError) as caught:
        batch()
    assert caught.value.code == PARTIAL, "calls are paid for there"
    assert str(caught.value).endswith(f"; job j goes on there: cortex attach j --cluster {os.environ['RAY_ADDRESS']}")


@pytest.mark.usefixtures("for_good")
def test_results_that_cannot_be_asked_for_any_more_are_named(head: Head) -> None:
    head.fails = lambda method, path: "unheard" if method == "POST" and "j" in head.jobs else ""
    with pytest.raises(CommandError) as caught:
        batch()
    assert caught.value.code == PARTIAL
    assert "the results of job j stand at /there/out.jsonl on the head: cortex attach j --cluster" in str(caught.value)


@pytest.mark.parametrize("what", ["unheard", "unanswered", "504"])
def test_a_command_whose_answer_was_lost_is_run_once(head: Head, what: str) -> None:
    head.fails = only("/api/jobs/", "POST", what, 1, 1)
    assert batch() == 0
    assert Path("out.jsonl").read_bytes() == ROWS
    assert [name for name in head.jobs if "-" not in name] == ["j"]


@pytest.mark.usefixtures("for_good")
def test_where_nobody_tells_whether_it_began_that_is_said(head: Head) -> None:
    begun: list[str] = []

    def fails(method: str, path: str) -> str:
        begun.extend([path] if method == "POST" else [])
        return "unanswered" if begun else ""

    head.fails = fails
    with pytest.raises(CommandError) as caught:
        batch()
    assert (caught.value.code, list(head.jobs)) == (PARTIAL, ["j"])
    assert "; job j may have begun there: cortex attach j --cluster" in str(caught.value)


def test_what_is_refused_was_not_begun(head: Head) -> None:
    head.fails = only("/api/jobs/", "POST", "400", 1, 1_000_000)
    with pytest.raises(CommandError, match="answers 400: nothing more") as caught:
        batch()
    assert caught.value.code == USAGE
    assert len([each for each in head.asked if each.startswith("POST")]) == 1
    head.fails = only("/api/version", "GET", "unheard", 1, 1)
    with pytest.raises(ClusterError, match="no Ray answers at"):
        batch()


def test_an_interrupt_while_it_is_away_has_the_job_drain_when_it_is_back(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.ends_at = 1_000_000
    drains = only("/api/jobs/", "POST", "unheard", 2, 3)
    pressed: list[bool] = []

    def fails(method: str, path: str) -> str:
        if head.looks == 2 and not pressed:
            pressed.append(True)
            os.kill(os.getpid(), signal.SIGINT)
        return drains(method, path)

    def stop(*_: object) -> None:
        raise Interrupted(130)

    before = signal.signal(signal.SIGINT, stop)
    head.fails = fails
    try:
        assert batch() == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert [name.partition("-")[2][:5] for name in head.jobs] == ["", "drain", "resul"]
    assert Path("out.jsonl").read_bytes() == ROWS


def test_a_file_that_is_not_the_job_s_stays_where_results_are_brought(head: Head, capfd: Any) -> None:
    def meanwhile(method: str, path: str) -> str:
        if "-results-" in path and method == "GET":
            Path("out.jsonl").write_text("mine\n")
        return ""

    head.fails = meanwhile
    with pytest.raises(CommandError, match=r"out\.jsonl is not as job j left it, and stays: .* -o FILE") as error:
        batch()
    assert error.value.code == PARTIAL and Path("out.jsonl").read_text() == "mine\n"


def test_results_that_were_brought_before_are_brought_again(head: Head, capfd: Any) -> None:
    def meanwhile(method: str, path: str) -> str:
        if "-results-" in path and method == "GET":
            Path("out.jsonl").write_bytes(ROWS)
        return ""

    head.fails = meanwhile
    assert batch() == 0
    assert Path("out.jsonl").read_bytes() == ROWS
