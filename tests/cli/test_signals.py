"""Ctrl-C, SIGTERM, SIGHUP, kill -9, a full disk: what is left can be resumed, and every row is done once."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.cli_runner import ROOT, each_once, ended, environment, keys, requests, started, until
from tests.support.patience import PATIENCE_S

COUNT = 300
"""Rows that take 45 seconds by four: whoever looks at a job, and waits for a processor, finds it at work."""
SLOW = ("--model", "sim", "--concurrency", 4, "--sim", "latency_ms=600", "--sim", "latency_spread=0")
FAST = ("--sim", "latency_ms=0")


def _batch() -> tuple[object, ...]:
    requests(Path("in.jsonl"), COUNT)
    return ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *SLOW)


def _some_results() -> bool:
    return Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_drains_and_says_how_to_go_on(cortex, number, code):
    with started(*_batch(), "--json") as child:
        until(_some_results)
        child.send_signal(number)
        done = ended(child)
    assert done.code == code
    last = done.last
    assert last["outcome"] == "partial"
    assert last["resume"] == "cortex resume mine"
    assert last["rows_succeeded"] == sum(keys(Path("out.jsonl")).values()) < COUNT
    assert last["attempts"] == last["paid_calls"] == last["rows_succeeded"]  # what was in flight was finished
    lines = done.said()
    assert any("draining" in line for line in lines[1:-1])
    assert lines[-1] == "to go on: cortex resume mine"
    rest = cortex("resume", "mine", *FAST, "--json")
    assert (rest.code, rest.last["paid_calls"]) == (0, COUNT)
    each_once(Path("out.jsonl"), COUNT)


def test_a_lost_terminal_drains_though_it_sends_two_signals(cortex):
    with started(*_batch()) as child:
        assert child.stderr is not None
        child.stderr.readline()
        until(lambda: cortex("status", "mine", "--json").last["attempts"] >= 4)
        child.send_signal(signal.SIGHUP)  # the shell's
        assert "draining" in child.stderr.readline()
        child.send_signal(signal.SIGHUP)  # the kernel's
        done = ended(child)
    assert (done.code, done.said()[-1]) == (129, "to go on: cortex resume mine")
    found = cortex("status", "mine", "--json").last
    assert found["outcome"] == "partial"
    assert found["attempts"] == found["rows_succeeded"] >= 4, "what was in flight was finished"
    assert cortex("resume", "mine", *FAST, "--json").last["paid_calls"] == COUNT
    each_once(Path("out.jsonl"), COUNT)


def test_nohup_keeps_the_job_running(cortex):
    command = ("nohup", sys.executable, "-m", "actors.cli", *map(str, _batch()), "--sim", "latency_ms=20")
    child = subprocess.Popen(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)  # fmt: skip
    with child:
        until(_some_results)
        child.send_signal(signal.SIGHUP)
        assert "draining" not in child.communicate(timeout=PATIENCE_S)[1]
    assert child.returncode == 0
    each_once(Path("out.jsonl"), COUNT)


def test_two_signals_stop_at_once(cortex):
    command = _batch()
    with started(*command, "--sim", "latency_ms=600000") as child:
        assert child.stderr is not None
        assert "model sim" in child.stderr.readline()
        until(lambda: cortex("status", "mine", "--json").last["attempts"] == 4)
        child.send_signal(signal.SIGINT)
        assert "draining" in child.stderr.readline()
        child.send_signal(signal.SIGINT)
        done = ended(child)  # before a reply comes, in ten minutes
    assert done.code == 130
    assert done.said()[-1] == "to go on: cortex resume mine"
    assert cortex("resume", "mine", *FAST).code == 0
    each_once(Path("out.jsonl"), COUNT)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_before_anything_was_sent(cortex, number, code):
    state = Path(environment()["CORTEX_STATE"]) / "jobs"
    with started("batch", "-", "-o", "out.jsonl", "--model", "sim", stdin=subprocess.PIPE) as child:
        until(lambda: state.exists() and any(state.glob(".input-*")))  # it reads what nobody writes
        child.send_signal(number)
        done = ended(child)
    assert done.code == code
    assert done.said()[-1].endswith("before anything was sent")
    assert not any(state.glob(".input-*"))


def test_after_a_kill_the_same_command_goes_on(cortex):
    command = (*_batch(), "--sim", "latency_ms=150")  # eleven seconds before the kill, and again after it
    with started(*command) as child:
        until(_some_results)
        child.kill()
        child.wait()
    assert "interrupted: resumable" in cortex("jobs").out
    assert cortex("status", "mine", "--json").last["outcome"] == "interrupted"
    done = cortex(*command, "--json")
    assert done.code == 0
    assert "it goes on where it stopped" in done.said()[0]
    each_once(Path("out.jsonl"), COUNT)
    assert done.last["paid_calls"] <= COUNT + 4  # no more than were in flight


def test_a_full_disk_stops_it_and_room_goes_on(cortex):
    requests(Path("in.jsonl"), 3_000)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim")

    def small_disk() -> None:  # no file grows beyond this
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))

    with started(*command, preexec_fn=small_disk) as child:
        done = ended(child)
    assert done.code == 3
    assert "the file may not grow further: raise the limit on the size of files (`ulimit -f`), then resume" in done.err
    assert done.said()[-1] == "to go on: cortex resume mine"
    rest = cortex("resume", "mine", "--json")
    assert rest.code == 0
    each_once(Path("out.jsonl"), 3_000)
    assert rest.last["paid_calls"] <= 3_000 + 100


def test_a_full_disk_under_the_results_alone(cortex, tmp_path_factory, monkeypatch):
    requests(Path("in.jsonl"), 3_000)
    written = [0]

    def write(self, some: bytes) -> None:
        written[0] += len(some)
        if written[0] > 200_000:
            raise OSError(28, "No space left on device")
        real(self, some)

    from actors.files.sinks.jsonl_sink import _FileTarget

    real = _FileTarget.put
    with monkeypatch.context() as patch:
        patch.setattr(_FileTarget, "put", write)
        done = cortex("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", "--model", "sim", "--json")
    assert done.code == 3
    assert "out.jsonl: No space left on device: make room" in done.err
    assert done.last["resume"] == "cortex resume mine"
    assert cortex("attach", "mine").code == 0
    each_once(Path("out.jsonl"), 3_000)


def test_as_a_module_and_as_the_console_script(tmp_path):
    for road in (["-m", "actors.cli"], ["-c", "from actors.cli import main; main()"]):
        command = [sys.executable, *road, "--version"]
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.split()[0]) == (0, "cortex")
