"""A real Prometheus scrapes running jobs: every query of both dashboards and of all rules finds what it asks for.

Three jobs: one with every cap and a provider that sometimes fails, one whose provider mostly fails so that its breaker
opens, one that votes. All through ``--metrics-listen``, and the first once more under the names that Ray gives. What only
a cluster or a rare event has is listed, with its reason; those queries still have to be well-formed.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.boards.alerts import ALERTS, RECORDED, STALLED
from k8s.boards.queries import metrics_in
from tests.e2e import background_jobs, tools
from tests.e2e import ray_metrics_page as as_ray
from tests.support.ports import free_port
from tests.support.repository_rules import ROOT

RULES = ROOT / "k8s" / "prometheus" / "cortex-rules.yaml"
BOARDS = sorted((ROOT / "k8s" / "grafana").glob("*.json"))
SELECTOR = re.compile(r"\{__name__[^}]*\}")

# Metrics that these three jobs cannot have, and why.
WITHOUT = {
    "cortex_job_ended_timestamp_seconds": "no job has ended: test_metrics_agree.py scrapes jobs that have",
    "cortex_job_ended_rows": "likewise",
    "cortex_job_ended_cost_usd": "likewise",
    "cortex_ends_kept_seconds": "no cluster here outlives its jobs: test_metrics_agree.py runs `cortex metrics`",
    "cortex_state_up": "likewise",
    "cortex_state_fault": "likewise",
    "cortex_ends_unread": "likewise",
    "cortex_node_lost_timestamp_seconds": "no node is lost: drills/test_node.py loses one",
}
# Panels that show such a metric, or what is rare, and find nothing here.
EMPTY_PANELS: dict[tuple[str, str], str] = {
    ("Cortex / Cluster", "Nodes drained"): "nobody drains the one node",
}
# As if scraped in Kubernetes; the others as if not.
NAMESPACE = {"capped": "triage", "as ray": "on-ray"}
FULL_AFTER_S = 200.0
SCRAPED_S = 60.0
"""A scrape that takes longer than its second, on a busy machine, leaves a page without numbers until the next."""


class Server:
    """A Prometheus that runs."""

    def __init__(self, url: str, state: Path) -> None:
        self.url, self.state = url, state

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query finds now."""
        asked = urllib.parse.urlencode({"query": query})
        answer = tools.fetch(f"{self.url}/api/v1/query?{asked}")
        assert answer["status"] == "success", query
        return answer["data"]["result"]

    def found(self, query: str) -> list[dict[str, Any]]:
        """The series that a query finds, as soon as it finds any: a scrape that was too slow leaves none until the next."""
        return list(tools.until(lambda: self.ask(query), SCRAPED_S, query))

    def get(self, path: str, **words: str) -> Any:
        """What its API says."""
        return tools.fetch(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(words)}")["data"]


def _config(folder: Path, ports: dict[str, int]) -> Path:
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = "2s"  # for a test that has no time
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    places = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": NAMESPACE[name]} if name in NAMESPACE else {}}
        for name, port in ports.items()
    ]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "cortex", "static_configs": places}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yml"


def _jobs(folder: Path, fails: str, breaks: str, ports: dict[str, int]) -> dict[str, list[object]]:
    """Commands by name; each runs until it is ended, or as good as."""
    rows = background_jobs.requests(folder / "in.jsonl", 50_000)
    common = ["--state", folder / "state", "--cluster", "inline"]
    capped = [
        "--max-cost",
        500,
        "--price",
        background_jobs.PRICE,
        "--max-job-tokens",
        10**9,
        "--deadline",
        "+6h",
        "--hedge",
        "300ms",
    ]
    capped += ["--label", "team=search"]
    return {
        "capped": ["batch", rows, "-o", folder / "a.jsonl", "--base-url", fails, "--concurrency", 8, *capped, *common],
        "broken": ["batch", rows, "-o", folder / "b.jsonl", "--base-url", breaks, "--concurrency", 8, *common],
        "voting": ["run", "hanoi", "-p", "disks=12", "--model", "claude-test", "--base-url", fails, *common],
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Prometheus with all three jobs in it, after all that may come has come."""
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        slow = ("latency_ms=120",)
        often = {"throttled": 0.06, "overloaded": 0.03, "reset": 0.03, "slow_drip": 0.02, "billing": 0.0}
        fails = stack.enter_context(background_jobs.provider(folder / "a.log", *slow, "drip_s=2", **_some(often)))
        breaks = stack.enter_context(background_jobs.provider(folder / "b.log", *slow, overloaded=0.85))
        ports = {name: free_port() for name in ("capped", "broken", "voting")}
        for name, words in _jobs(folder, fails, breaks, ports).items():
            log = folder / f"{name}.log"
            words = [*words, "--job", name, "--metrics-listen", f"127.0.0.1:{ports[name]}"]
            child = stack.enter_context(background_jobs.cortex(*words, log=log, OTEL_TRACES_SAMPLER="always_on"))
            page = f"http://127.0.0.1:{ports[name]}/metrics"
            tools.until(lambda page=page: b"cortex_" in _page(page), 120, f"the metrics of {name}", child, log)
        ports["as ray"] = stack.enter_context(as_ray.port_of(f"http://127.0.0.1:{ports['capped']}/metrics"))
        port = free_port()
        log = folder / "prometheus.log"
        command = [prometheus, f"--config.file={_config(folder, ports)}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn"]
        child = stack.enter_context(tools.running(command, log))
        found = Server(f"http://127.0.0.1:{port}", folder / "state")
        tools.until(lambda: len(found.ask("up == 1")) == len(ports), 120, "all targets scraped", child, log)
        tools.until(lambda: _all_there(found), FULL_AFTER_S, "every metric", child, log)
        yield found


def _some(shares: dict[str, float]) -> dict[str, float]:
    return {name: share for name, share in shares.items() if share}


def _page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read()


def _names() -> set[str]:
    """Every metric that a dashboard or rule asks for."""
    texts = [path.read_text() for path in (*BOARDS, RULES)]
    return {name for text in texts for name in metrics_in(text)}


def _all_there(server: Server) -> bool:
    """Whether each metric has come, and rates and rules have had two scrapes of it."""
    wanted = [form for name in _names() - set(WITHOUT) for form in (name, f"ray_{name.lower()}")]
    missing = [name for name in wanted if not server.ask(f"count_over_time({name}[1m]) >= 4")]
    recorded = [name for name in RECORDED if name != STALLED and not server.ask(name)]
    if missing or recorded:
        raise tools.NotYetError(f"missing: {sorted(missing)} {recorded}")
    return True


def _queries() -> list[tuple[str, str, str]]:
    found = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                found.append((board["title"], panel["title"], target["expr"]))
    return found


def _chosen(expr: str, **chosen: str) -> str:
    """A query as Grafana sends it: with these choices, and everything else at All."""
    # What stands for "none of it" would hide a query that never finds anything.
    expr = expr.replace("$__rate_interval", "20s").replace(" or vector(0)", "")
    for name in ("namespace", "job", "pool"):
        expr = expr.replace(f"${name}", chosen.get(name, ".*"))
    return expr


def test_every_query_of_the_dashboards_finds_something(server: Server, tell: Callable[[str], None]) -> None:
    queries = _queries()
    for board, title, expr in queries:
        if (board, title) not in EMPTY_PANELS:
            asked = _chosen(expr)
            tools.until(lambda asked=asked: _numbers(server.ask(asked)), SCRAPED_S, f"{board}, {title}: {asked}")
    tell(
        f"{len(queries)} queries of {len(BOARDS)} dashboards asked of Prometheus; {len(EMPTY_PANELS)} panels known to be empty"
    )


def test_every_query_finds_the_names_that_ray_gives(server: Server) -> None:
    for board, title, expr in _queries():
        if (board, title) not in EMPTY_PANELS:
            asked = _chosen(expr, namespace="on-ray")
            tools.until(lambda asked=asked: _numbers(server.ask(asked)), SCRAPED_S, f"{board}, {title}: {asked}")
    (as_ray,) = server.found(_chosen(EXPECTED, namespace="on-ray"))
    (own,) = server.found(_chosen(EXPECTED, namespace="triage"))
    assert as_ray["metric"]["WorkerId"] == "w1"
    assert as_ray["value"][1] == own["value"][1]


EXPECTED = '{__name__=~"(ray_)?cortex_rows_expected", cortex_job_id=~"$job", namespace=~"$namespace"}'


def _numbers(found: list[dict[str, Any]]) -> list[str]:
    """What can be drawn: NaN cannot."""
    return [series["value"][1] for series in found if series["value"][1] != "NaN"]


def test_one_job_or_namespace_can_be_chosen(server: Server) -> None:
    for board, title, expr in _queries():
        if board == "Cortex / Jobs":
            for series in server.ask(_chosen(expr, job="capped", namespace="triage")):
                labels = series["metric"]
                assert labels.get("cortex_job_id", "capped") == "capped", title
                assert labels.get("namespace", "triage") == "triage", title
    done = f"sum({EXPECTED})"
    alone, both = (
        float(server.found(_chosen(done, **chosen))[0]["value"][1]) for chosen in ({"namespace": "triage"}, {})
    )
    assert 0 < alone < both
    assert server.ask(_chosen(done, namespace="nowhere")) == []


def test_the_choices_are_offered(server: Server) -> None:
    offered = {}
    for path in BOARDS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                match, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
                values = server.get(f"label/{label}/values", **{"match[]": _chosen(match)})
                offered[path.stem, variable["name"]] = set(values)
    assert offered["cortex-jobs", "job"] == {"capped", "broken", "voting"}
    assert offered["cortex-jobs", "namespace"] == offered["cortex-cluster", "namespace"] == {"triage", "on-ray"}
    assert offered["cortex-cluster", "pool"]


def test_every_rule_is_evaluated_and_finds_what_it_reads(server: Server) -> None:
    rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {*RECORDED, *(alert.name for alert in ALERTS)}
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
    for name in RECORDED:
        if name != STALLED:
            tools.until(lambda name=name: _numbers(server.ask(name)), SCRAPED_S, name)
    # An alert finds nothing while all is well, nor does the rule of jobs that stand still: what they compare is there.
    for name, expr in [(STALLED, RECORDED[STALLED]), *((alert.name, alert.expr) for alert in ALERTS)]:
        for selector in SELECTOR.finditer(expr):
            if "__name__=~" not in selector[0]:
                continue  # of Ray's port alone
            (metric,) = metrics_in(selector[0])
            if metric not in WITHOUT:
                asked = re.sub(r", [^}]*", "", selector[0]) if metric in PARTS else selector[0]
                tools.until(lambda asked=asked: server.ask(asked), SCRAPED_S, f"{name}: {asked}")


# Of these an alert reads one state or kind, which may be none at all; the metric has to be there.
PARTS = {"cortex_nodes", "cortex_attempts_total", "cortex_rows_total"}


def test_an_open_breaker_is_seen(server: Server) -> None:
    broken = 'max_over_time({__name__=~"(ray_)?cortex_breaker_state"}[5m]) == 2'
    tools.until(lambda: server.ask(broken), SCRAPED_S, "an open breaker of a provider that fails 17 times in 20")
    pending = [alert["labels"]["alertname"] for alert in server.get("alerts")["alerts"]]
    tell_names = {alert.name for alert in ALERTS}
    assert set(pending) <= tell_names


def test_a_dot_of_the_latency_panel_opens_a_trace(server: Server) -> None:
    """Exemplars: the trace that one names is among those that were kept. (Of a failed attempt that is tried again later,
    it is told when its goal has ended.)"""
    name = 'gen_ai_client_operation_duration_seconds_bucket{cortex_job_id="capped", error_type=""}'

    def dots() -> set[str]:
        now_s = time.time()
        found = server.get("query_exemplars", query=name, start=str(now_s - 300), end=str(now_s))
        return {one["labels"]["trace_id"] for series in found for one in series["exemplars"]}

    named = tools.until(dots, SCRAPED_S, "exemplars")

    def kept() -> bool:
        lines = (server.state / "traces" / "capped.jsonl").read_text()
        return all(f'"{trace}"' in lines for trace in named)

    tools.until(kept, 60, "the traces that exemplars name")


def test_what_is_scraped_is_what_the_page_tells(server: Server) -> None:

    def scraped() -> set[str]:
        names = [name for name in server.get("label/__name__/values") if name.startswith(("cortex_", "gen_ai_"))]
        return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names if ":" not in name}

    entries = set(
        re.findall(r"^\| `((?:cortex|gen_ai)_\w+)` \|", (ROOT / "docs/observing.md").read_text(), re.MULTILINE)
    )

    def all_seen() -> bool:
        if missing := entries - scraped() - set(WITHOUT):
            raise tools.NotYetError(f"the page tells of these, and nobody has seen them: {sorted(missing)}")
        return True

    tools.until(all_seen, SCRAPED_S, "what the page tells of")
    assert scraped() - entries == set(), "the page does not tell of these"


def test_the_configurations_of_the_page_are_taken(promtool: str, tmp_path: Path) -> None:
    page = (ROOT / "docs/observing.md").read_text()
    (tmp_path / "cortex-rules.yaml").write_text(RULES.read_text())
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "scrape_configs" in block]
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yml"
        path.write_text(block)
        done = subprocess.run(
            [promtool, "check", "config", str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
