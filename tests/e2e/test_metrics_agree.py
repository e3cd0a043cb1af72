"""``cortex status``, ``/metrics``, Grafana's queries over a real Prometheus and the report say the same of one job.

A provider stands still after some answers, so that all four can be asked about one moment; then the job ends, and its end
is asked of ``cortex metrics``. With and without shards. Some calls fail at first, so calls and attempts differ.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.history.annotated_turns import readings
from actors.journal.journal import StateFolder
from actors.report.aggregate import fold
from k8s.boards.jobs import COST, DONE, EXPECTED
from k8s.boards.queries import OF_JOBS, in_all, level
from tests.e2e import background_jobs, tools
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

ROWS, STILL_AFTER, FAILED_EVERY = 120, 50, 9
CALLS = f"({in_all('cortex_calls_total', OF_JOBS, over='cortex_outcome')} + {level('cortex_calls_open', OF_JOBS)})"
ATTEMPTS = in_all("cortex_attempts_total", OF_JOBS, over="cortex_kind")
ENDS = "cortex_job_ended"


class Provider(ThreadingHTTPServer):
    """Messages API that stands still after ``STILL_AFTER`` requests, until it may go on."""

    daemon_threads = True
    asked = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.lock, self.on = threading.Lock(), threading.Event()


class _Answer(BaseHTTPRequestHandler):
    server: Provider
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.asked += 1
            number = self.server.asked
        if number > STILL_AFTER:
            self.server.on.wait()  # as long as it takes to ask all four; at the end of the test it is set
        code, body = 200, {
            "id": "m", "type": "message", "role": "assistant", "model": "claude-test", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "bug"}], "usage": {"input_tokens": 100, "output_tokens": 3},
        }  # fmt: skip
        if number % FAILED_EVERY == 0:
            code, body = 500, {"type": "error", "error": {"type": "api_error", "message": "not now"}}
        sent = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        with contextlib.suppress(OSError):  # who asked has left
            self.wfile.write(sent)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _provider() -> Iterator[Provider]:
    server = Provider()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.on.set()
        server.shutdown()
        server.server_close()


def _command(state: Path, *words: object) -> str:
    command = [sys.executable, "-m", "actors.cli", *map(str, words), "--state", str(state)]
    done = subprocess.run(command, capture_output=True, text=True, env=background_jobs.environment(), timeout=120, check=True)
    return done.stdout


def _of_status(state: Path) -> dict[str, float]:
    facts = json.loads(_command(state, "status", "one", "--json"))
    return {
        "rows": facts["rows_succeeded"] + facts["rows_failed"], "calls": facts["calls"], "expected": facts["rows"],
        "cost": facts["cost_usd"] + facts["cost_assumed_usd"],
    }  # fmt: skip


def _of_page(port: int) -> dict[str, float]:
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    assert len([line for line in text.splitlines() if not line.startswith("#")]) < 300

    def total(name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE))

    return {
        "rows": total("cortex_rows_total"), "calls": total("cortex_calls_total") + total("cortex_calls_open"), "expected": total("cortex_rows_expected"),
        "cost": total("cortex_cost_usd_total") + total("cortex_cost_assumed_usd"),
    }  # fmt: skip


def _of_grafana(port: int) -> dict[str, float]:
    def asked(query: str) -> float:
        query = f"sum({query})".replace("$job", ".*").replace("$namespace", ".*")
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        if not (found := tools.fetch(url)["data"]["result"]):
            raise tools.NotYetError(f"nothing is there: {query}")  # the last scrape was left out, on a busy machine
        return float(found[0]["value"][1])

    return {"rows": asked(DONE), "calls": asked(CALLS), "expected": asked(EXPECTED), "cost": asked(COST)}


def _of_report(state: Path) -> dict[str, float]:
    figures = fold(readings(StateFolder(str(state)), "one"))
    totals = list(figures.jobs.values())
    cost = sum(each.known_nusd + each.assumed_nusd for each in totals) / 1e9
    return {"calls": figures.calls, "cost": cost}


def _still(port: int) -> bool:
    """Whether the job has come to a stand, as two scrapes of Prometheus see it."""
    query = 'sum(changes({__name__=~"cortex_(calls|attempts)_total"}[3s])) == 0'
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    return bool(tools.fetch(url)["data"]["result"])


def _same(state: Path, port: int, server: int) -> bool:
    """Whether all four say the same, of a job that has come to a stand; what they say, if they do not.

    A busy machine leaves out scrapes, so that a stand may be seen too early, and is told to Grafana late.
    """
    status, page, grafana, report = _of_status(state), _of_page(port), _of_grafana(server), _of_report(state)
    alike = page == pytest.approx(status) and grafana == pytest.approx(status)
    if not alike or report != pytest.approx({name: status[name] for name in report}):
        raise tools.NotYetError(f"status {status}, page {page}, Grafana {grafana}, report {report}")
    return 0 < status["rows"] < status["expected"] == ROWS


@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 4])
def test_all_four_say_the_same_while_a_job_runs_and_after_it(prometheus: str, tmp_path: Path, shards: int) -> None:
    rows, state = background_jobs.requests(tmp_path / "in.jsonl", ROWS), tmp_path / "state"
    port, server, ends = free_port(), free_port(), free_port()
    targets = [{"targets": [f"127.0.0.1:{port}", f"127.0.0.1:{ends}"]}]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "cortex", "static_configs": targets}],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [prometheus, f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{server}", "--log.level=warn"]
    words = ["batch", rows, "-o", tmp_path / "out.jsonl", "--job", "one", "--state", state, "--cluster", "inline"]
    words += ["--price", background_jobs.PRICE, "--concurrency", 8, "--metrics-listen", f"127.0.0.1:{port}"]
    words += ["--shards", shards] if shards > 1 else []
    log = tmp_path / "job.log"
    with _provider() as provider, tools.running(command, tmp_path / "prometheus.log"):
        words += ["--base-url", f"http://127.0.0.1:{provider.server_address[1]}"]
        with background_jobs.cortex(*words, log=log) as child:
            tools.until(lambda: provider.asked > STILL_AFTER, PATIENCE_S, "the first answers", child, log)
            tools.until(lambda: _still(server), PATIENCE_S, "a stand", child, log)
            tools.until(lambda: _same(state, port, server), PATIENCE_S, "the same", child, log)
            provider.on.set()
            tools.until(lambda: child.poll() is not None, PATIENCE_S, "the end")
            assert child.returncode == 0, log.read_text()
        _see_end(state, ends, server)


def _see_end(state: Path, port: int, server: int) -> None:
    """The end of the job, after its process: from the journal, and through Prometheus."""
    status = _of_status(state)
    assert status["rows"] == ROWS
    words = ["metrics", "--state", state, "--metrics-listen", f"127.0.0.1:{port}"]
    with background_jobs.cortex(*words, log=state / "metrics.log") as child:

        def told() -> dict[str, float]:
            query = urllib.parse.urlencode({"query": f'{{__name__=~"{ENDS}_(rows|cost_usd)"}}'})
            found = tools.fetch(f"http://127.0.0.1:{server}/api/v1/query?{query}")["data"]["result"]
            sums = {"rows": 0.0, "cost_usd": 0.0}
            for each in found:
                sums[each["metric"]["__name__"].removeprefix(f"{ENDS}_")] += float(each["value"][1])
            return sums if found else {}

        ended = tools.until(told, PATIENCE_S, "the end of the job, scraped", child, state / "metrics.log")
        assert ended == pytest.approx({"rows": ROWS, "cost_usd": status["cost"]})
        address = f"http://127.0.0.1:{server}/api/v1/query?query={ENDS}_timestamp_seconds"
        (end,) = tools.until(lambda: tools.fetch(address)["data"]["result"], PATIENCE_S, "when it ended", child)
        assert (end["metric"]["cortex_outcome"], end["metric"]["cortex_cause"]) == ("complete", "none")
