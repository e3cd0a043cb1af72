"""A command for the head of a cluster: what is sent of it, and what an address that is none says."""

from __future__ import annotations

import io
import json
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from actors.cli.options.options import Options
from actors.cli.remote import submit
from actors.cli.remote.package import JOB_FILE, package
from actors.cli.remote.submit import is_elsewhere
from actors.cluster.jobs_api import JobsApi, token_of
from actors.common.errors import CommandError
from actors.ports.runtime import ClusterError


class Dashboard(BaseHTTPRequestHandler):
    """What a dashboard answers, by path; whatever is not there is 404."""

    said: ClassVar[dict[str, tuple[int, str]]] = {}
    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:  # the name that http.server calls
        self.heard.append(self.headers.get("Authorization", ""))
        code, body = self.said.get(self.path, (404, ""))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Dashboard, "said", {"/api/version": (200, '{"ray_version": "2.60.0"}')})
    monkeypatch.setattr(Dashboard, "heard", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


MISSING = "Unauthorized: Missing authentication token"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "t" * 40}


@pytest.mark.parametrize(
    ("answer", "environ", "why"),
    [
        ((200, "<html>"), {}, "something else listens there"),
        ((404, ""), {}, "something else listens there"),
        ((401, '{"error": "invalid x-api-key"}'), {}, "something else listens there"),
        ((401, MISSING), {}, "asks for a token: set RAY_AUTH_MODE=token"),
        ((403, "Forbidden: Invalid authentication token"), TOKEN, "refuses the token"),
        ((500, "Traceback\n  File x\nRuntimeError: broken"), {}, "answers 500: RuntimeError: broken"),
    ],
)
def test_what_keeps_a_command_out_is_one_line(
    dashboard: str, answer: tuple[int, str], environ: dict[str, str], why: str
) -> None:
    Dashboard.said["/api/version"] = answer
    with pytest.raises(ClusterError) as caught:
        JobsApi(dashboard, environ).see()
    assert why in str(caught.value) and "\n" not in str(caught.value)


def test_a_token_is_given_where_it_is_announced_alone(dashboard: str, tmp_path: Path) -> None:
    JobsApi(dashboard, {"RAY_AUTH_TOKEN": "t" * 40}).see()
    JobsApi(dashboard, TOKEN).see()
    assert Dashboard.heard == ["", f"Bearer {'t' * 40}"]
    (tmp_path / "token").write_text("of a file\n")
    assert token_of({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}) == "of a file"


@pytest.mark.parametrize("address", ["http://", "http://user:secret@head:8265", "http://head:8265/?x=1"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ClusterError, match="give the address of the dashboard"):
        JobsApi(address, {})


def test_how_a_submission_stands(dashboard: str) -> None:
    def told(**more: Any) -> tuple[int, str]:
        return 200, json.dumps(more)

    failed = "Job entrypoint command failed with exit code 3, last available logs"
    Dashboard.said |= {
        "/api/jobs/a": told(status="RUNNING", message="Job is currently running."),
        "/api/jobs/b": told(status="FAILED", message=failed, metadata={"cortex_job": "b"}),
        "/api/jobs/c": told(status="SUCCEEDED"),
    }
    found = [JobsApi(dashboard, {}).submission(name) for name in "abcd"]
    assert [each and (each.over, each.code) for each in found] == [(False, None), (True, 3), (True, 0), None]


# -- what is sent ----------------------------------------------------------------------------------------------------


def sent(given: dict[str, Any], options: Options, stdin: bytes = b"") -> tuple[dict[str, Any], dict[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(package(given, options, stdin).zipped())) as found:
        files = {name: found.read(name) for name in found.namelist()}
    return tomllib.loads(files.pop(JOB_FILE).decode()), files


def test_a_batch_means_the_same_in_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text\na\n")
    (tmp_path / "prompt.txt").write_text("Label: {{text}}")
    (tmp_path / "schema.json").write_text('{"type": "object", "properties": {"a": {"type": "string"}}}')
    options = Options(
        model="m", prompt=f"@{tmp_path}/prompt.txt", system='a "quoted"\nü \x7f text', schema=f"{tmp_path}/schema.json",
        max_cost="2", concurrency="7", label=["team=a"], cluster="http://h:8265", state="/here", job="j", as_json=True,
    )  # fmt: skip
    facts, files = sent({"input": str(tmp_path / "rows.csv"), "output": "out.csv"}, options)
    assert facts == {
        "input": "input/rows.csv", "model": "m", "prompt": "@texts/prompt.txt", "system": 'a "quoted"\nü \x7f text',
        "schema": "schema.json", "max-cost": "2", "concurrency": "7", "label": ["team=a"],
    }  # fmt: skip
    assert sorted(files) == ["input/rows.csv", "schema.json", "texts/prompt.txt"]
    assert str(tmp_path) not in json.dumps(facts), "nothing names this machine"


def test_what_is_elsewhere_already_is_not_sent(tmp_path: Path) -> None:
    facts, files = sent({"input": "s3://b/in.jsonl", "output": "s3://b/out.jsonl"}, Options())
    assert (facts, files) == ({"input": "s3://b/in.jsonl", "output": "s3://b/out.jsonl"}, {})
    assert sent({"input": "-"}, Options(), b"{}\n") == ({"input": "input/stdin.jsonl"}, {"input/stdin.jsonl": b"{}\n"})


def test_the_same_content_has_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("1")
    given = {"input": str(tmp_path / "in.jsonl")}
    first = package(given, Options())
    assert first.name() == package(given, Options()).name() and first.zipped() == package(given, Options()).zipped()
    (tmp_path / "in.jsonl").write_text("2")
    assert package(given, Options()).name() != first.name()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (Options(model="local"), "--model local"),
        (Options(api_key_file="key"), "--api-key-file key: the nodes of the cluster read the key"),
        (Options(notify="https://hooks.example/secret"), "--notify: the URL would be shown"),
    ],
)
def test_what_cannot_be_meant_there_is_refused(options: Options, why: str) -> None:
    with pytest.raises(CommandError, match=why) as caught:
        package({}, options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "cluster", "ray_address", "there"),
    [
        ("batch", "http://h:8265", "", True),
        ("attach", "https://h:8265", "", True),
        ("run", "", "http://h:8265", True),
        ("run", "auto", "http://h:8265", True),
        ("run", "inline", "http://h:8265", False),
        ("batch", "h:6379", "http://h:8265", False),
        ("batch", "ray://h:10001", "", False),
        ("status", "http://h:8265", "", False),
    ],
)
def test_which_commands_run_on_the_head(
    monkeypatch: pytest.MonkeyPatch, command: str, cluster: str, ray_address: str, there: bool
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    assert is_elsewhere(command, Options(cluster=cluster)) is there


def test_results_that_are_not_whole_are_no_results() -> None:
    import base64
    import gzip
    from hashlib import sha256

    content = b"a row\n" * 100
    packed = base64.b64encode(gzip.compress(content)).decode()
    digest = sha256(content).hexdigest() + "  -"
    assert submit._unpacked(["20", digest, packed[:16], packed[16:]]) == content
    for lines in ([], ["20", digest], ["20", digest, packed[:16]], ["20", "0" * 64, packed], ["20", digest, "%"]):
        assert submit._unpacked(lines) is None
