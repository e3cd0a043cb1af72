"""A process that a signal has stopped lives and does nothing: told by its owner's record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from actors.cli.inspection import job_status
from actors.common.process_owner import Owner, process_started, stop_words, stopped, this_owner
from actors.driver.live_status import LiveStatus
from actors.top import sources

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")


def test_a_process_stopped_by_a_signal_is_told_and_no_other() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        owner = msgspec.structs.replace(this_owner("inline"), pid=child.pid, started=process_started(child.pid))
        assert stopped(owner) == ""
        child.send_signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        try:
            words = f"stopped by a signal: `kill -CONT {child.pid}` lets it go on"
            assert stopped(owner) == words
            seen = sources._published("j", LiveStatus(owner=owner, at_s=1.0, facts={"waits": ""}))
            assert seen.facts["waits"] == f"its process is {words}"
            assert stopped(msgspec.structs.replace(owner, host="elsewhere")) == ""
            assert stopped(msgspec.structs.replace(owner, started="1")) == "", "another process with its number"
        finally:
            child.send_signal(signal.SIGCONT)
            child.communicate(b"\n")
    assert stopped(owner) == "", "it has ended"


@pytest.mark.parametrize(
    ("state", "words"),
    [("t", "held by a debugger: it goes on when"), ("T", "stopped by a signal: `kill -CONT 7` lets"), ("S", ""), ("R", "")],
)
def test_a_process_held_by_a_debugger_is_told_as_such_since_no_signal_lets_it_go_on(state: str, words: str) -> None:
    assert stop_words(state, 7).startswith(words) and bool(stop_words(state, 7)) == bool(words)


def test_a_status_says_that_its_process_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(host="h", pid=7, started="1", cluster="inline")
    monkeypatch.setattr(job_status, "last_owner", lambda folder, job: owner)
    monkeypatch.setattr(job_status, "stopped", lambda found: f"stopped {found.pid}")
    status = job_status.JobStatus(facts={"outcome": "running"}, state="")
    said = job_status._state(None, "j", status)  # type: ignore[arg-type]
    assert said == "running: process 7 on h, cluster inline; stopped 7"
