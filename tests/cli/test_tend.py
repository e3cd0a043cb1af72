"""`cortex tend`: which jobs go on without a person after their cluster was lost, and which never do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.cli.control.tend import AT_ONCE, Tender
from actors.cli.jobs import resting
from actors.cli.jobs.resting import AGAIN_S, TRIES_MAX, TRIES_S, RestingJobs, halt, is_halted, was_cut_off
from actors.common.process_owner import this_owner
from actors.driver import control_note
from actors.jobs.spec import who
from actors.journal.journal import StateFolder
from cortex.state.events import NODE_ENDED
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from tests.cli.cli_runner import cortex

__all__ = ["cortex"]
OLD, NEW = "10.0.0.5:6379", "10.0.0.9:6379"
NOW_S = 1.8e9
TERMS = JobTerms(job="j", program="p", params_json=b"{}", fingerprint="f", route=Route(endpoint="e", model="m"), streams=True)


def _k(**more: Any) -> State:
    limits = Limits(deadline_at_s=more.pop("deadline_at_s", None))
    return State(terms=msgspec.structs.replace(TERMS, limits=limits), **{"source_ended": True, **more})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFolder:
    monkeypatch.setattr(resting.loader, "is_unchanged", lambda *asked: True)
    monkeypatch.setattr(resting, "last_state", lambda folder, job: _k())
    return StateFolder(str(tmp_path)).prepare()


def _left(folder: StateFolder, job: str = "j", cluster: str = OLD, attended: bool = True) -> None:
    """Leave a job whose driver and channel are gone for a minute."""
    source = folder.journal(job, create=True)
    source.take_epoch(msgspec.json.encode(this_owner(cluster)))
    source.close()
    if attended:
        with folder.attend(job):
            pass
    _age(folder)


def _age(folder: StateFolder) -> None:
    for path in (folder.path / "jobs").glob("*.sqlite*"):
        os.utime(path, (time.time() - 60,) * 2)


@pytest.mark.parametrize(
    ("k", "cut_off"),
    [
        (_k(), True), (_k(stopping="drain", stopped_by=NODE_ENDED), True),
        (_k(outcome="partial", why=f"drain: by {NODE_ENDED}", stopping="drain", stopped_by=NODE_ENDED), True),
        (_k(stopping="drain", stopped_by="ann"), False), (_k(stopping="cancel", stopped_by="ann"), False),
        (_k(outcome="partial", why="drain: by ann", stopping="drain", stopped_by="ann"), False),
        (_k(outcome="cancelled", why="cancel: by ann", stopping="cancel", stopped_by="ann"), False),
        (_k(outcome="partial", why="over_budget: the cap"), False), (_k(outcome="partial", why="blocked: no credit"), False),
        (_k(outcome="partial", why="deadline: has passed"), False), (_k(outcome="partial", why="condemned: it dies"), False),
        (_k(outcome="complete"), False), (_k(outcome="failed", why="nothing is left"), False),
    ],
)  # fmt: skip
def test_a_job_that_somebody_or_something_of_its_own_has_ended_was_not_cut_off(k: State, cut_off: bool) -> None:
    assert was_cut_off(k) is cut_off


def test_a_job_rests_only_if_its_channel_is_known_to_be_gone(folder: StateFolder) -> None:
    _left(folder)
    _left(folder, "inline", "inline")
    _left(folder, "older", attended=False)
    _left(folder, "j~1")
    found = RestingJobs(folder)
    assert [(each.job, each.cluster, each.needs) for each in found.look()] == [("j", OLD, "")]
    with folder.hold("j"):
        assert found.look() == [], "its driver lives"
    with folder.attend("j"):
        assert found.look() == [], "its channel lives"
    os.utime(folder.path / "jobs" / "j.sqlite")
    assert found.look() == [], "its lease has not run out"
    _age(folder)
    assert [each.job for each in found.look()] == ["j"]


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ({"source_ended": False}, "its input is not read"), ({"deadline_at_s": NOW_S - 1}, "its deadline has passed"),
        ({"deadline_at_s": NOW_S + 1}, ""),
    ],
)  # fmt: skip
def test_what_a_job_needs_of_a_person(
    more: dict[str, Any], needs: str, folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resting, "last_state", lambda folder, job: _k(**more))
    _left(folder)
    (found,) = RestingJobs(folder, lambda: NOW_S).look()
    assert found.needs.startswith(needs) and bool(found.needs) is bool(needs)


def test_a_changed_program_and_a_request_that_waits_are_for_a_person(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left(folder)
    control_note.leave(folder, "j", control_note.ControlRequest(how="cancel", who="ann", owner=this_owner(OLD)))
    assert "request" in RestingJobs(folder).look()[0].needs
    folder.drop_note("control", "j")
    monkeypatch.setattr(resting.loader, "is_unchanged", lambda *asked: False)
    assert "program has changed" in RestingJobs(folder).look()[0].needs


class Drivers:
    """Drivers of a tender, and what it tells; ``live``: addresses at which a head answers."""

    def __init__(self, folder: StateFolder, *live: str) -> None:
        self.now_s = NOW_S
        self.begun: list[str] = []
        self.lines: list[str] = []
        self.made: list[subprocess.Popen[bytes]] = []
        self.tender = Tender(
            folder, NEW, self._begin, self.lines.append, lambda cluster: cluster in live, lambda: self.now_s
        )

    def _begin(self, job: str) -> subprocess.Popen[bytes]:
        self.begun.append(job)
        command = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"]
        self.made.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return self.made[-1]

    def end(self) -> None:
        for driver in self.made:
            driver.communicate()


@pytest.fixture
def drivers(folder: StateFolder) -> Iterator[Drivers]:
    found = Drivers(folder)
    yield found
    found.tender.let_go()
    found.end()


def test_a_job_is_begun_again_at_most_so_often_in_an_hour(folder: StateFolder, drivers: Drivers) -> None:
    _left(folder)
    for number in range(TRIES_MAX):
        drivers.tender.look()
        drivers.tender.look()
        assert drivers.begun == ["j"] * (number + 1) and not drivers.tender.left
        drivers.end()
        drivers.tender.look()
        assert drivers.tender.codes == {"j": 3} and drivers.tender.left == {"j"} and not drivers.tender.busy
        drivers.now_s += AGAIN_S
    drivers.tender.look()
    again = Tender(folder, NEW, drivers._begin, drivers.lines.append, lambda cluster: False, lambda: drivers.now_s)
    again.look()
    assert drivers.begun == ["j"] * TRIES_MAX, "also by the next process: the first may have gone with its machine"
    assert "begun again 3 times within an hour: cortex resume j --state" in drivers.lines[-1]
    drivers.now_s += TRIES_S
    drivers.tender.look()
    assert len(drivers.begun) == TRIES_MAX + 1
    folder.remove("j")
    assert folder.note("tended", "j") is None


def test_a_job_of_a_ray_that_answers_is_left_to_it(folder: StateFolder) -> None:
    _left(folder)
    _left(folder, "ours", NEW)
    drivers = Drivers(folder, OLD, NEW)
    try:
        drivers.tender.look()
        drivers.tender.look()
        assert drivers.begun == ["ours"] and drivers.tender.left == {"j"}
        assert sum("belongs to the Ray at 10.0.0.5:6379, which answers" in line for line in drivers.lines) == 1
    finally:
        drivers.tender.let_go()
        drivers.end()
    assert all(driver.returncode for driver in drivers.made), "killed: what they drove goes on in the cluster"


def test_an_address_that_each_host_has_says_nothing_of_a_job_in_a_database(
    folder: StateFolder, drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`RAY_ADDRESS` in the pod of every head: the job's own Ray may live, and start its channel again."""
    _left(folder, "j", "127.0.0.1:6379")
    drivers.tender._cluster = "127.0.0.1:6379"
    monkeypatch.setattr(type(folder), "remote", True)
    drivers.tender.look()
    assert not drivers.begun and "of a host that is not known" in drivers.lines[0]
    monkeypatch.undo()
    monkeypatch.setattr(resting.loader, "is_unchanged", lambda *asked: True)
    drivers.tender.look()
    assert drivers.begun == ["j"], "a disk is of one host"


def test_what_is_drained_for_a_restart_is_not_begun_on_the_machine_that_ends(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_halted(folder, 0.0)
    halt(folder, NOW_S)
    assert is_halted(folder, NOW_S - 1) and not is_halted(folder, NOW_S + 1), "the next one begins later"
    monkeypatch.setattr(resting.socket, "gethostname", lambda: "another")
    assert not is_halted(folder, NOW_S - 1)


@pytest.mark.parametrize(("options", "by"), [((), ""), (("--for-restart",), NODE_ENDED)])
def test_a_drain_for_a_restart_is_in_nobodys_name(
    options: tuple[str, ...], by: str, cortex: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def carry_out(cluster: str, options: Any, patience_s: float, work: Any) -> int:
        asked.append(work.keywords["by"])
        return 0

    monkeypatch.setattr("actors.cli.control.drain._carried_out", carry_out)
    state = StateFolder("state").prepare()
    assert cortex("drain", "--all", "--cluster", OLD, "--state", state.address, *options).code == 0
    assert asked == [by or who()] and is_halted(state, 0.0) is bool(options)
    cortex("drain", "j", "--for-restart").refused("--for-restart is for --all")


def test_of_many_jobs_some_are_begun_at_once(folder: StateFolder, drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.cli.control.tend.AT_ONCE", 2)
    for number in range(3):
        _left(folder, f"j{number}")
    drivers.tender.look()
    assert len(drivers.begun) == 2 and len(drivers.tender.left) == 1
    drivers.end()
    drivers.tender.look()
    assert len(set(drivers.begun)) == 3 and AT_ONCE > 2


def test_it_wants_a_cluster_and_a_head_that_answers(cortex: Any) -> None:
    cortex("tend").refused("jobs that rest need a cluster")
    cortex("tend", "--cluster", "127.0.0.1:1").refused("no Ray answers at 127.0.0.1:1")
    cortex("tend", "--cluster", "127.0.0.1:1", "--every", "soon").refused("--every")
