"""A real gateway: LiteLLM's proxy in front of a simulated provider, asked over chat completions and the Messages API."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import background_jobs, tools
from tests.support.ports import free_port

ROWS = 60
MODEL = "gpt-5-mini"
KEY, WRONG_KEY = "sk-of-the-gateway-0123456789", "sk-of-somebody-else-0123456789"
APIS = ("chat", "messages")
PROMPT = "Answer with one of: bug, praise.\n\n{{text}}"

# It fetches no prices, and serves nothing but the APIs.
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DISABLE_ADMIN_UI": "True", "NO_DOCS": "True", "LITELLM_LOG": "ERROR"}


class Gateway:
    """Addresses of the gateway and of the provider behind it."""

    def __init__(self, url: str, upstream: str) -> None:
        self.url, self.upstream = url, upstream

    def worked(self) -> int:
        """Calls that the provider has answered."""
        return int(tools.fetch(f"{self.upstream}/_sim/stats")["worked"])


@pytest.fixture(scope="module")
def gateway(litellm: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """LiteLLM with a master key and no database, as its first page sets it up."""
    folder = tmp_path_factory.mktemp("litellm")
    with background_jobs.provider(folder / "provider.log", "latency_ms=20", "error=0") as upstream:
        config, log = folder / "config.yaml", folder / "litellm.log"
        settings = {
            "model_list": [{
                "model_name": MODEL,
                "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{upstream}/v1", "api_key": "sk-any"},
            }],
            "litellm_settings": {"use_chat_completions_url_for_anthropic_messages": True},
            "general_settings": {"master_key": KEY},
        }  # fmt: skip
        config.write_text(json.dumps(settings))  # JSON is YAML
        port = free_port()
        command = [litellm, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PYTHON"))}
        with tools.running(command, log, env={**own, **QUIET}, cwd=folder) as child:
            url = f"http://127.0.0.1:{port}"
            tools.until(lambda: tools.fetch(f"{url}/health/liveliness"), 120, "LiteLLM", child, log)
            yield Gateway(url, upstream)


class Place:
    """Folder with a table, in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with (folder / "in.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("id", "text"), *((f"r{at}", f"It crashes {at} times") for at in range(ROWS))])

    def batch(self, job: str, url: str, *words: object, key: str = KEY) -> subprocess.CompletedProcess[str]:
        """Ask the gateway about each row."""
        table = ("in.csv", "--prompt", PROMPT, "--id", "id", "-o", f"{job}.csv", "--model", MODEL, "--base-url", url)
        return self.cortex("batch", *table, "--job", job, *words, key=key)

    def cortex(self, *words: object, key: str = KEY) -> subprocess.CompletedProcess[str]:
        """Run a command with the gateway's key."""
        command = [sys.executable, "-m", "actors.cli", *map(str, words), "--cluster", "inline", "--json"]
        environ = background_jobs.environment(CORTEX_SERVER_KEY=key, CORTEX_STATE=str(self.folder / "state"))
        return subprocess.run(
            command, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False
        )  # fmt: skip

    def answers(self, job: str) -> dict[str, str]:
        """Answers by row; every row stands there once."""
        with (self.folder / f"{job}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert sorted(row["id"] for row in rows) == sorted(f"r{at}" for at in range(ROWS))
        return {row["id"]: row["answer"] for row in rows}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def last(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("api", APIS)
def test_each_row_is_paid_once_and_has_the_answer_of_the_provider(gateway: Gateway, place: Place, api: str) -> None:
    before = gateway.worked()
    done = place.batch("mine", gateway.url, "--api", api)
    assert (done.returncode, last(done)["rows_succeeded"]) == (0, ROWS), done.stderr
    assert gateway.worked() - before == last(done)["paid_calls"] == ROWS
    direct = place.batch("direct", gateway.upstream, "--api", "chat")
    assert direct.returncode == 0, direct.stderr
    assert place.answers("mine") == place.answers("direct")
    assert last(done)["cost_usd"] == pytest.approx(last(direct)["cost_usd"], rel=0.01)  # the tokens come through


@pytest.mark.parametrize("api", APIS)
def test_a_schema_is_kept(gateway: Gateway, place: Place, api: str) -> None:
    schema = {
        "type": "object", "properties": {"label": {"enum": ["bug", "praise"]}}, "required": ["label"],
        "additionalProperties": False,
    }  # fmt: skip
    (place.folder / "schema.json").write_text(json.dumps(schema))
    done = place.batch("typed", gateway.url, "--api", api, "--schema", "schema.json")
    assert (done.returncode, last(done)["rows_succeeded"]) == (0, ROWS), done.stderr
    assert last(done)["calls"] == ROWS, "no answer was asked for again"


@pytest.mark.parametrize("api", APIS)
def test_a_cap_is_never_passed_and_the_job_goes_on_with_a_larger_one(gateway: Gateway, place: Place, api: str) -> None:
    words = ("--api", api, "--max-output-tokens", 8)
    cap_usd = 0.0002
    before = gateway.worked()
    done = place.batch("capped", gateway.url, *words, "--max-cost", cap_usd)
    assert done.returncode == 3, done.stderr
    assert 0 < last(done)["cost_usd"] <= cap_usd and 0 < last(done)["rows_succeeded"] < ROWS
    assert gateway.worked() - before == last(done)["rows_succeeded"]
    done = place.batch("capped", gateway.url, *words, "--max-cost", 1)
    assert (done.returncode, last(done)["rows_succeeded"]) == (0, ROWS), done.stderr
    assert gateway.worked() - before == ROWS
    place.answers("capped")


@pytest.mark.parametrize("api", APIS)
def test_a_wrong_key_and_a_wrong_model_are_one_line_and_fail_no_row(gateway: Gateway, place: Place, api: str) -> None:
    before = gateway.worked()
    done = place.batch("locked", gateway.url, "--api", api, key=WRONG_KEY)
    assert (done.returncode, last(done)["rows_failed"]) == (3, 0), done.stderr
    assert "no row failed: set the key of that server in CORTEX_SERVER_KEY" in _line(done, "unauthorised: ")
    assert WRONG_KEY not in done.stderr + done.stdout
    done = place.cortex("resume", "locked")
    assert (done.returncode, last(done)["rows_succeeded"]) == (0, ROWS), done.stderr
    assert gateway.worked() - before == ROWS

    done = place.batch("unknown", gateway.url, "--api", api, "--model", "gpt-nope", "--price", "input=1,output=1")
    assert (done.returncode, last(done)["rows_failed"]) == (3, 0), done.stderr
    line = _line(done, "blocked: ")
    assert "gpt-nope" in line and "give a --model that is served there" in line
    assert gateway.worked() - before == ROWS


def _line(done: subprocess.CompletedProcess[str], word: str) -> str:
    """The one line that says this."""
    (line,) = [line for line in done.stderr.splitlines() if word in line]
    assert line.startswith("cortex: ") and "Traceback" not in done.stderr
    return line
