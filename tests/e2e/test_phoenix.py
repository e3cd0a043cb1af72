"""A real Phoenix receives a run over OTLP: its own API shows each row's tree, the session that is the job, and the tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e import background_jobs, tools
from tests.support.ports import free_port

pytestmark = pytest.mark.release  # its own start takes a minute; the same spans are checked without it

ROWS = 30
PROJECT = "triage"
SECRET_TEXT = "It crashes"
QUIET_S = 1.0
"""Phoenix puts away in its own time what it was sent: all is there when nothing has come for so long."""

# It phones nobody: no usage figures, no assistant, nothing of the web in its pages.
QUIET = {
    "PHOENIX_TELEMETRY_ENABLED": "false", "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
}  # fmt: skip


@pytest.fixture(scope="module")
def viewer(phoenix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a fresh Phoenix listens."""
    folder = tmp_path_factory.mktemp("phoenix")
    port = free_port()
    places = {
        "PHOENIX_WORKING_DIR": str(folder), "PHOENIX_HOST": "127.0.0.1", "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
    }  # fmt: skip
    log = folder / "phoenix.log"
    with tools.running([phoenix, "serve"], log, env={**os.environ, **QUIET, **places}, cwd=folder) as child:
        url = f"http://127.0.0.1:{port}"
        tools.until(lambda: tools.fetch(f"{url}/v1/projects"), 90, "Phoenix", child, log)
        yield url


class Run:
    """What a job said of itself, and what Phoenix has of it."""

    def __init__(self, told: dict[str, Any], spans: list[dict[str, Any]], session: dict[str, Any]) -> None:
        self.told, self.spans, self.session = told, spans, session
        self.traces: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.below: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
        for span in sorted(spans, key=lambda span: (span["start_time"], span["end_time"])):
            self.traces[span["context"]["trace_id"]].append(span)
            self.below[span["parent_id"]].append(span)

    def tree(self, span: dict[str, Any]) -> dict[str, Any]:
        """Names, as they are nested."""
        return {"name": span["name"], "below": [self.tree(one) for one in self.below[span["context"]["span_id"]]]}


@pytest.fixture(scope="module")
def run(viewer: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A batch with some failures, told to Phoenix as docs/observing.md says."""
    folder = tmp_path_factory.mktemp("run")
    variables = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{viewer}/v1/traces",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"x-project-name={PROJECT}",
        "OTEL_TRACES_SAMPLER": "always_on",
    }
    rows = background_jobs.requests(folder / "in.jsonl", ROWS)
    with background_jobs.provider(folder / "provider.log", "latency_ms=30", overloaded=0.1) as provider:
        words = ["batch", rows, "-o", folder / "out.jsonl", "--base-url", provider, "--state", folder / "state"]
        command = [sys.executable, "-m", "actors.cli", *map(str, words), "--cluster", "inline", "--job", "j1", "--json"]
        done = subprocess.run(
            command, env=background_jobs.environment(**variables), cwd=folder, capture_output=True, text=True, timeout=90, check=False
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout.splitlines()[-1])

    def come() -> Run:
        spans = _all(viewer, "spans")
        calls = [span for span in spans if span["span_kind"] == "LLM"]
        jobs = [span for span in spans if span["name"].startswith("invoke_workflow")]
        time.sleep(QUIET_S)
        # Asked for after them, and nothing came meanwhile: else it is one of some other moment than the spans are.
        session = [one for one in _all(viewer, "sessions") if one["session_id"] == "j1"]
        since = len(_all(viewer, "spans")) - len(spans)
        if not session or len(calls) < ROWS or not jobs or since:
            seen = f"{len(spans)} spans, {len(calls)} calls, {len(jobs)} jobs, {len(session)} sessions"
            raise tools.NotYetError(f"{seen}, {since} more spans since")
        return Run(reported, spans, session[0])

    return tools.until(come, 30, "the run in Phoenix")


def _all(viewer: str, what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = tools.fetch(f"{viewer}/v1/projects/{PROJECT}/{what}?limit=500{cursor}")
        found += answer["data"]
        if not answer["next_cursor"]:
            return found
        cursor = f"&cursor={answer['next_cursor']}"


def test_each_row_is_a_tree(run: Run, tell: Callable[[str], None]) -> None:
    """Goal, select, exactly one call with its attempts inside, absorb."""
    roots = [span for span in run.below[None] if span["name"].startswith("goal")]
    assert len(roots) == ROWS
    attempts = 0
    for root in roots:
        tree = run.tree(root)
        assert sorted(one["name"] for one in tree["below"]) == ["absorb", "chat claude-test", "select"], tree
        call = next(one for one in tree["below"] if one["name"].startswith("chat"))
        assert call["below"], tree
        assert {one["name"] for one in call["below"]} == {"attempt"}, tree
        attempts += len(call["below"])
        assert root["span_kind"] == "CHAIN"
    assert attempts == run.told["attempts"] > ROWS
    keys = {root["attributes"]["cortex.row.key"] for root in roots}
    assert keys == {f"r{number}" for number in range(ROWS)}
    tell(f"Phoenix shows {len(run.spans)} spans in {len(run.traces)} traces: {ROWS} rows, {attempts} attempts")


def test_no_span_is_an_orphan(run: Run) -> None:
    known = {span["context"]["span_id"] for span in run.spans}
    assert [span["name"] for span in run.spans if span["parent_id"] and span["parent_id"] not in known] == []
    for spans in run.traces.values():
        assert len([span for span in spans if not span["parent_id"]]) == 1


def test_the_session_is_the_job(run: Run) -> None:
    assert {trace["trace_id"] for trace in run.session["traces"]} == set(run.traces)
    for span in run.spans:
        assert span["attributes"]["session.id"] == span["attributes"]["cortex.job.id"] == "j1"


def test_the_tokens_are_those_of_the_job(run: Run) -> None:
    assert run.told["input_tokens"] > 0
    assert run.session["token_count_prompt"] == run.told["input_tokens"]
    assert run.session["token_count_completion"] == run.told["output_tokens"]
    for span in run.spans:
        if span["span_kind"] == "LLM":
            assert span["attributes"]["llm.model_name"] == "claude-test"
            assert span["attributes"]["llm.token_count.prompt"] > 0


def test_no_prompt_and_no_key_is_told(run: Run) -> None:
    text = json.dumps(run.spans)
    assert SECRET_TEXT not in text
    assert background_jobs.KEY not in text


def test_it_phones_nobody(viewer: str) -> None:
    """Nothing in its page comes from elsewhere: what this test relies on when it says that it stays on this machine."""
    with urllib.request.urlopen(viewer, timeout=10) as answer:
        page = answer.read().decode()
    assert 'src="http' not in page
    assert "scarf" not in page
