"""A Ray with its metrics on, as KubeRay starts one: what its own port shows of a job, beside the driver's page."""

from __future__ import annotations

import importlib
import json
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cluster import cluster_processes
from tests.e2e import tools
from tests.edge.support.metered_job import Found, of, parsed
from tests.support.ports import free_port

ROWS = 600
RAYS_OWN = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId"}
GONE_S = 45.0
"""Ray reports every ten seconds, and forgets a gauge twenty after the last report of it."""


def _page(url: str) -> Found:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return parsed(answer.read().decode())


def _ours(found: Found) -> Found:
    """Without what Ray puts on every series."""
    return {
        (name.removeprefix("ray_"), frozenset(pair for pair in labels if pair[0] not in RAYS_OWN and "otel" not in pair[0])):
        value for (name, labels), value in found.items() if name.startswith(("ray_cortex_", "ray_gen_ai_"))
    }  # fmt: skip


def _input(folder: Path) -> Path:
    path = folder / "in.jsonl"
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    path.write_text("".join(json.dumps({"custom_id": f"r{n}", "params": params}) + "\n" for n in range(ROWS)))
    return path


@pytest.mark.release  # a minute of waiting for Ray's own times
def test_rays_own_port_shows_the_series_of_the_drivers_page_and_forgets_them(tmp_path):
    try:
        importlib.import_module("ray.dashboard.optional_deps")
    except ImportError as error:
        pytest.skip(f"{tools.MISSING}ray[default] ({error.name}). `make e2e` installs it")
    port, mine = free_port(), free_port()
    words = ("--head", f"--port={free_port()}", f"--metrics-export-port={port}", "--num-cpus=2")
    quiet = ("--include-dashboard=false", "--disable-usage-stats")
    with cluster_processes._ray(*words, *quiet):
        address = words[1].removeprefix("--port=")
        command = [
            "batch", str(_input(tmp_path)), "-o", str(tmp_path / "out.jsonl"), "--model", "sim", "--job", "j",
            "--sim", "latency_ms=1500", "--concurrency", "40", "--cluster", f"127.0.0.1:{address}",
            "--state", str(tmp_path / "state"), "--metrics-listen", f"127.0.0.1:{mine}",
        ]  # fmt: skip
        log = tmp_path / "cortex.log"
        with tools.running([sys.executable, "-m", "actors.cli", *command], log, env=cluster_processes.environment()) as job:
            seen: list[float] = []
            while job.poll() is None and len(set(seen)) < 2:
                time.sleep(1.0)
                there = _ours(_page(f"http://127.0.0.1:{port}/metrics"))
                if any(name == "cortex_calls_total" for name, _ in there):
                    seen.append(of(there, "cortex_calls_total", cortex_job_id="j", cortex_outcome="answered"))
                    both = there
            here = _page(f"http://127.0.0.1:{mine}/metrics")
            assert job.wait(120) == 0, log.read_text()
        assert seen == sorted(seen) and len(set(seen)) == 2, seen
        here = {(name.lower(), labels): value for (name, labels), value in here.items()}  # Ray knows no capitals
        expected = {name for name, _ in here} - {"target_info"}
        assert {name for name, _ in both} == expected
        for name, labels in both:
            assert any(name == own and labels == has for own, has in here), (name, labels)
        assert of(both, "cortex_pool_limit") > 0
        deadline_s = time.monotonic() + GONE_S
        while left := [key for key in _ours(_page(f"http://127.0.0.1:{port}/metrics")) if ("cortex_job_id", "j") in key[1]]:
            assert time.monotonic() < deadline_s, left
            time.sleep(2.0)
