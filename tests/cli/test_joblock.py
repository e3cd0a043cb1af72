"""One run a job: whoever holds the lock, until he lets go or dies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from actors.api.session import JobInUse, Session
from actors.jobs.spec import JobSpec
from actors.journal.journal import JobHeld, StateFolder, StoreError
from cortex.programs.batch import Batch
from tests.cli.cli_runner import environment


@pytest.fixture
def folder(tmp_path):
    return StateFolder(tmp_path).prepare()


def test_one_holder_at_a_time(folder):
    assert not folder.is_held("mine")
    with folder.hold("mine"):
        assert folder.is_held("mine")
        assert not folder.is_held("other")
        with pytest.raises(JobHeld), folder.hold("mine"):
            pass
    assert not folder.is_held("mine")
    with folder.hold("mine"):
        assert folder.beside("mine", ".lock").stat().st_mode & 0o077 == 0


async def test_a_session_of_a_job_that_is_held(folder):
    with folder.hold("mine"), pytest.raises(JobInUse, match="job mine is in use by another run"):
        await Session(JobSpec(program=Batch(), job="mine", state=str(folder.path)), {}).run()


def test_it_dies_with_its_holder(folder):
    script = (
        "import sys; from actors.journal.journal import StateFolder, JobHeld\n"
        f"with StateFolder({folder.address!r}).hold('mine'): print(flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    assert folder.is_held("mine")
    child.kill()
    child.communicate()
    assert not folder.is_held("mine")


def test_a_folder_that_allows_no_file(folder):
    (folder.path / "jobs" / "mine.lock").mkdir()
    with pytest.raises(StoreError, match="as state folder"), folder.hold("mine"):
        pass
