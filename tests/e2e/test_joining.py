"""The roads to a Ray that is somewhere else, on a real one with its dashboard and its client server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.cluster_processes import (
    KEY,
    PATIENCE_S,
    PATIENT,
    Head,
    Provider,
    environment,
    names_in,
    ray_head,
    write_rows,
)
from tests.e2e import tools
from tests.support.ports import free_port

PROGRAM = """
import cortex
from helper import WORDS

class Triage(cortex.Program):
    n: int = 3
    def begin(self, k):
        for number in range(self.n):
            yield cortex.Goal("number", number)
    def select(self, k):
        for goal in k.open("number"):
            yield cortex.RunTool(goal, "double", {"number": goal.value})
    def answer(self, k):
        return [[goal.answer for goal in k.goals_of("number")], WORDS]

@cortex.tool(repeatable=True)
def double(number):
    return len(WORDS[0]) * number
Triage.tools = {"double": double}
"""
ANSWER = [[0, 3, 6], ["sky"]]
LATENCY_MS = 300.0
ELSEWHERE = """
mount -t tmpfs none "$1" && cd "$1" && cp ../kept/* . && shift && exec "$@"
"""
"""A folder that this command alone has, as on another machine."""
ANOTHER_RELEASE = """
import json, sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
told = json.loads(client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=60))
client.internal_kv_put(b"CLUSTER_METADATA", json.dumps(told | {"ray_version": sys.argv[2]}).encode(), True, b"cluster", timeout=60)
print(told["ray_version"])
"""


class There(NamedTuple):
    """A cluster, and who serves its models. Its key is nowhere but on its head."""

    gcs: str
    http: str
    client: str
    provider: Provider
    head: Head


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    pytest.importorskip("aiohttp_cors", reason=f"{tools.MISSING}ray[default]. `make e2e` installs it")
    folder = tmp_path_factory.mktemp("head")
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    provider = Provider(latency_ms=LATENCY_MS, error=0)
    dashboard, client, agent = free_port(), free_port(), free_port()
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    command = bin_folder / "cortex"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m actors.cli "$@"\n')
    command.chmod(0o755)
    words = (
        "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}",
    )  # fmt: skip
    pod = {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "CORTEX_STATE": str(folder / "state"),
        "ANTHROPIC_API_KEY_FILE": str(folder / "key"), "ANTHROPIC_BASE_URL": provider.url,
        **PATIENT,
    }  # fmt: skip
    try:
        with ray_head(*words, **pod) as head:
            local = "127.0.0.1"
            yield There(head.address, f"http://{local}:{dashboard}", f"ray://{local}:{client}", provider, head)
    finally:
        provider.close()


@pytest.fixture(autouse=True)
def _the_head_lives(there: There) -> Iterator[None]:
    """A test that fails because its head ended says so."""
    yield
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(there.head.pid, os.WNOHANG)[0] == 0, (there.head.folder / "start.log").read_text()[-4_000:]


def cortex(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    """The command line of a user without a key."""
    without = {name: value for name, value in environment(**environ).items() if not name.startswith("ANTHROPIC_")}
    return subprocess.Popen(
        [sys.executable, "-m", "actors.cli", *words], cwd=folder, env=without, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def ended(started: subprocess.Popen[str], code: int = 0, timeout_s: float = PATIENCE_S) -> tuple[str, str]:
    out, text = started.communicate(timeout=timeout_s)
    assert started.returncode == code, (started.returncode, out, text)
    return out, text


def test_a_batch_over_http_needs_no_key_here_and_brings_its_results(there: There, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", 8, "http")
    words = ("batch", "in.jsonl", "-o", "out.jsonl", "--cluster", there.http, "--job", "over-http", "--json")
    out, text = ended(cortex(tmp_path, *words))
    facts = json.loads(out)
    assert (facts["outcome"], facts["rows_succeeded"]) == ("complete", 8)
    assert facts["output"] == str(tmp_path / "out.jsonl") and Counter(names_in(tmp_path / "out.jsonl")) == Counter(rows)
    assert f"cortex attach over-http --cluster {there.http}" in text and KEY not in out + text
    assert not (tmp_path / ".cortex").exists(), "its journal is on the head"

    asked = there.provider.stats()["requests"]
    (tmp_path / "elsewhere").mkdir()
    ended(cortex(tmp_path / "elsewhere", "attach", "over-http", "-o", "copy.jsonl", RAY_ADDRESS=there.http))
    assert (tmp_path / "elsewhere" / "copy.jsonl").read_bytes() == (tmp_path / "out.jsonl").read_bytes()
    assert there.provider.stats()["requests"] == asked, "nothing is asked again"


def test_an_interrupt_here_has_the_job_rest_there(there: There, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "in.jsonl", 120, "rest")
    words = ("batch", "in.jsonl", "-o", "out.jsonl", "--cluster", there.http, "--job", "rest", "--concurrency", "2")
    there.provider.set(latency_ms=3_000.0)  # three minutes of work: it is not over before it hears of the interrupt
    try:
        started = cortex(tmp_path, *words)
        assert started.stderr is not None
        while "rows" not in started.stderr.readline():
            assert started.poll() is None
        started.send_signal(signal.SIGINT)
        _, text = ended(started, 130)
    finally:
        there.provider.set(latency_ms=LATENCY_MS)
    assert f"to go on: cortex resume rest --cluster {there.http}" in text
    assert 0 < len(names_in(tmp_path / "out.jsonl")) < len(rows), "what it came to is here"
    ended(cortex(tmp_path, "resume", "rest", "--cluster", there.http, "--concurrency", "60"))
    ended(cortex(tmp_path, "attach", "rest", "--cluster", there.http, "-o", "whole.jsonl"))
    assert Counter(names_in(tmp_path / "whole.jsonl")) == Counter(rows)
    assert there.provider.stats()["second_complete_answers_by_user"] == 0


def test_a_program_goes_along_with_what_it_imports(there: There, tmp_path: Path) -> None:
    (tmp_path / "triage.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORDS = ['sky']\n")
    out, _ = ended(cortex(tmp_path, "run", "triage.py:Triage", "--model", "sim", "--cluster", there.http))
    assert json.loads(out) == ANSWER


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root mounts a folder of its own")
@pytest.mark.parametrize("road", ["gcs", "client"])
def test_nodes_that_do_not_see_the_users_folder_get_its_code(there: There, tmp_path: Path, road: str) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "hidden").mkdir()
    (tmp_path / "kept" / "triage.py").write_text(PROGRAM)
    (tmp_path / "kept" / "helper.py").write_text("WORDS = ['sky']\n")
    address = getattr(there, road)

    def run(state: str) -> subprocess.CompletedProcess[str]:
        words = [
            "run",
            "triage.py:Triage",
            "--model",
            "sim",
            "--cluster",
            address,
            "--state",
            state,
            "--job",
            f"hid-{road}",
        ]
        command = [
            "unshare",
            "-m",
            "sh",
            "-c",
            ELSEWHERE,
            "sh",
            str(tmp_path / "hidden"),
            sys.executable,
            "-m",
            "actors.cli",
        ]
        return subprocess.run(
            [*command, *words], env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )  # fmt: skip

    done = run(str(tmp_path / "state"))
    assert (done.returncode, json.loads(done.stdout or "null")) == (0, ANSWER), done.stderr
    if road == "client":
        lost = run(".cortex")
        assert lost.returncode == 2 and "and does not see" in lost.stderr, lost.stderr
        assert len(lost.stderr.strip().splitlines()) == 1 and "--state postgresql://" in lost.stderr


def test_a_head_of_another_release_is_one_line_and_nothing_is_asked(there: There, tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", 3, "old")

    def make(release: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", ANOTHER_RELEASE, there.gcs, release], env=environment(), text=True, check=True,
            capture_output=True, timeout=PATIENCE_S,
        )  # fmt: skip
        return done.stdout.strip()

    before, own = there.provider.stats()["requests"], make("2.1.0")
    try:
        words = ("batch", "in.jsonl", "-o", "out.jsonl", "--cluster", there.gcs, "--model", "m")
        _, text = ended(
            cortex(tmp_path, *words, CORTEX_BASE_URL=there.provider.url, CORTEX_API_KEY_FILE=_key(tmp_path)), 2
        )
    finally:
        make(own)
    assert f"does not fit: it has Ray 2.1.0, here {own}" in text and len(text.strip().splitlines()) == 1, text
    assert there.provider.stats()["requests"] == before


def _key(folder: Path) -> str:
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    return str(folder / "key")
