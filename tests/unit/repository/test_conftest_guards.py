"""What tests/conftest.py forbids is forbidden: each guard is made to refuse."""

from __future__ import annotations

import asyncio
import gzip
import os
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.conftest import pytest_ignore_collect
from tests.support.repository_rules import ROOT

REFUSED = pytest.fail.Exception


def test_ray_cannot_be_started():
    ray = pytest.importorskip("ray")
    with pytest.raises(REFUSED, match="may not start Ray"):
        ray.init(num_cpus=1)


def test_ray_imported_before_cannot_be_started_either():
    import ray

    with pytest.raises(REFUSED, match="may not start Ray"):
        ray.init()


def test_nothing_sleeps():
    with pytest.raises(REFUSED, match="may not wait"):
        time.sleep(0.001)


async def test_no_test_sleeps_on_its_loop():
    await asyncio.sleep(0)
    with pytest.raises(REFUSED, match="may not wait"):
        await asyncio.sleep(0.001)


def test_nothing_beyond_this_machine_is_reached():
    for address in (("192.0.2.1", 443), ("api.example.test", 443)):
        with socket.socket() as one, pytest.raises(REFUSED, match="only this machine"):
            one.connect(address)
    with pytest.raises(REFUSED, match="only this machine"):
        socket.getaddrinfo("api.example.test", 443)


async def test_nothing_beyond_this_machine_is_reached_through_asyncio():
    with pytest.raises(REFUSED, match="only this machine"):
        await asyncio.open_connection("192.0.2.1", 443)
    with pytest.raises(REFUSED, match="only this machine"):
        await asyncio.open_connection("api.example.test", 443)


def test_this_machine_is_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()


def test_no_setting_of_the_person_who_runs_the_tests_is_seen():
    assert not [name for name in os.environ if name.startswith("ANTHROPIC_")]
    assert [name for name in os.environ if name.startswith("CORTEX_")] in (
        ["CORTEX_STATE"],
        ["CORTEX_STARTED_BY", "CORTEX_STATE"],
        ["CORTEX_STATE", "CORTEX_STARTED_BY"],
    )
    assert "RAY_ADDRESS" not in os.environ


def test_a_key_in_the_environment_is_taken_away_before_the_tests(tmp_path):
    code = "import os, tests.conftest as c; c.pytest_configure(); print(sorted(os.environ))"
    given = {**os.environ, "ANTHROPIC_API_KEY": "x", "https_proxy": "http://proxy.test", "CORTEX_MODEL": "x"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert "'PATH'" in done.stdout
    for name in ("ANTHROPIC_API_KEY", "https_proxy", "CORTEX_MODEL"):
        assert name not in done.stdout


def test_tests_with_tools_from_outside_are_collected_only_by_name():
    def ignored(*words: str) -> bool | None:
        params = SimpleNamespace(dir=ROOT)
        config = SimpleNamespace(args=list(words), invocation_params=params)
        return pytest_ignore_collect(ROOT / "tests" / "e2e" / "test_tools.py", config)

    assert ignored("tests") is True
    assert ignored("tests/unit/cortex/flows/test_flow.py", "tests/edge") is True
    assert ignored("tests/e2e") is None
    assert ignored("tests/unit", "tests/e2e/test_tools.py::test_a_page_is_shown") is None


@pytest.mark.parametrize("sent", [gzip.compress(b"x"), b"\xff", b"plain"])
def test_bytes_that_no_one_can_read_do_not_name_a_test(request: pytest.FixtureRequest, sent: bytes):
    assert request.node.callspec.id == {b"\xff": "sent1", b"plain": "plain"}.get(sent, "sent0")
