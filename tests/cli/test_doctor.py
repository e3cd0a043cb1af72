"""``cortex doctor`` from the outside: its lines, its exit codes, its JSON; and that it shows no secret and leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.cli_runner import environment, started

KEY = "sk-ant-api03-verysecretkey-0123456789"
PASSWORD = "letmein-secretpassword"


PATIENT = """
import sys
from actors.cli.admin import doctor
doctor.LIMIT_S = 120.0
from actors.cli import main
sys.exit(main())
"""
"""The command line, whose checks may take as long as a busy machine needs to import Ray."""


@pytest.fixture
def provider():
    """A provider that takes one key alone."""
    with started("simulate", "--port", 0, "-s", f"keys={KEY}") as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]


def _doctor(*arguments: object, **environ: str) -> tuple[int, str, str]:
    more = {"NO_PROXY": "*", "CORTEX_STATE": str(Path("state").resolve()), **environ}
    command = [sys.executable, "-c", PATIENT, "doctor", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**more), timeout=240, check=False)
    for secret in (KEY, PASSWORD):
        assert secret not in done.stdout + done.stderr
    return done.returncode, done.stdout, done.stderr


def test_all_is_well_and_nothing_is_left_behind(provider, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun_s = time.monotonic()
    _doctor("--help")
    start_s = time.monotonic() - begun_s  # of a process alone: half a second, or what it is on this machine
    code, out, err = _doctor("--base-url", provider, ANTHROPIC_API_KEY=KEY)
    assert time.monotonic() - begun_s < max(15, 30 * start_s), "it waits for something"
    assert (code, "0 wrong" in err) == (0, True), out
    lines = {line.split()[1]: line.split()[0] for line in out.splitlines()}
    assert {
        "python",
        "dependencies",
        "packages",
        "key",
        "proxy",
        "endpoint",
        "account",
        "clock",
        "ray",
        "state",
        "disk",
    } <= set(lines)
    assert "wrong" not in lines.values()
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_is_in_the_exit_code_and_in_json(provider, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proxy = f"http://ann:{PASSWORD}@127.0.0.1:1"
    more = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={PASSWORD}"}
    code, out, _ = _doctor(
        "--base-url", provider, "--json", ANTHROPIC_API_KEY="sk-ant-another-0123456789", HTTPS_PROXY=proxy, **more
    )
    reported = json.loads(out)
    states = {each["check"]: each["state"] for each in reported["findings"]}
    assert (code, states["account"], states["telemetry"], reported["wrong"]) == (1, "wrong", "wrong", 2), out
    assert all(each["do"] for each in reported["findings"] if each["state"] != "ok")
    assert "another" not in out


def test_bad_usage(cortex):
    cortex("doctor", "--concurrency", "many").refused("--concurrency")
    cortex("doctor", "--base-url", f"ftp://{PASSWORD}@host").refused("--base-url")
    cortex("doctor", "--cluster", "somewhere").refused("--cluster")
    cortex("doctor", "--state", f"postgresql://u:{PASSWORD}@h/d").refused("the address of the database holds")
    cortex("doctor", "--paid").refused("--model")
    assert PASSWORD not in cortex("doctor", "--base-url", f"ftp://{PASSWORD}@host").err


def test_a_rehearsal_needs_no_key_and_no_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = {name: "" for name in os.environ if name.startswith("ANTHROPIC")}
    code, out, _ = _doctor("--model", "sim", **environ)
    assert code == 0, out
    assert "makes no calls over the network" in out
