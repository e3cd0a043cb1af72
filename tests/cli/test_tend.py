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

from actors.cli.control.tend import AT_ONCE, Tender, look_to_the_end, pause_s
from actors.cli.jobs import resting
from actors.cli.jobs.resting import AGAIN_S, TRIES_MAX, TRIES_S, RestingJobs, halt, is_halted, was_cut_off
from actors.common.process_owner import this_owner
from actors.driver import control_note
from actors.jobs.spec import who
from actors.journal.journal import DatabaseUnreachable, StateFolder
from actors.programs import loader
from cortex.state.events import NODE_ENDED, Stopped
from cortex.state.state import State
from cortex.values.limits import JobTerms, Limits, Route
from tests.cli.cli_runner import cortex
from tests.support.state_machine_harness import Flat, Stage

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


@pytest.mark.parametrize(
    ("drained_by", "cut_off"),
    [
        ((NODE_ENDED,), True), ((NODE_ENDED, NODE_ENDED), True), (("ann",), False), (("ann", NODE_ENDED), False),
        ((NODE_ENDED, "ann"), False), (("ann", NODE_ENDED, NODE_ENDED), False), ((NODE_ENDED, "ann", NODE_ENDED), False),
        (("ann", "bob", NODE_ENDED), False),
    ],
)  # fmt: skip
def test_what_a_user_has_drained_was_not_cut_off_whatever_its_node_does(
    drained_by: tuple[str, ...], cut_off: bool
) -> None:
    stage = Stage(Flat(texts=("a", "b")), permits=1)
    for by in drained_by:
        stage.turn(Stopped(by, "drain"))
    assert not stage.k.outcome and was_cut_off(stage.k) is cut_off, "its calls are not over, and its head is lost"
    stage.answer()
    assert stage.k.outcome == "partial" and was_cut_off(stage.k) is cut_off
    stage.turn(Stopped("ann", "drain"))
    assert not was_cut_off(stage.k)


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


def test_a_program_that_is_gone_is_told_and_is_seen_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image or a mount that is not there yet: nothing was said, and the same `cortex tend` never began the job."""
    file, moved = tmp_path / "late_program.py", tmp_path / "elsewhere"
    text = "from cortex.state.program import Program\nclass Late(Program, frozen=True):\n    pass\n"
    file.write_text(text)
    place = f"{file}:Late"
    terms = msgspec.structs.replace(TERMS, program=place, fingerprint=loader.fingerprint(place, b"{}"))
    _forget(place)
    file.rename(moved)

    def replayed(folder: StateFolder, job: str) -> State:
        read.append(job)
        loader.find(place)
        return State(terms=terms, source_ended=True)

    read: list[str] = []
    monkeypatch.setattr(resting, "last_state", replayed)
    monkeypatch.setattr(resting, "by_events", lambda source: State(terms=terms, source_ended=True))
    folder = StateFolder(str(tmp_path / "state")).prepare()
    _left(folder)
    drivers = Drivers(folder)
    try:
        for _ in range(2):
            drivers.tender.look()
        assert not drivers.begun and drivers.tender.left == {"j"}
        (line,) = drivers.lines
        assert "rests: its program is gone: program " in line and "cortex resume j" in line
        moved.rename(file)
        drivers.tender.look()
        assert drivers.begun == ["j"] and read == ["j", "j"], "read again only when its program is back"
        drivers.end()
        drivers.now_s += AGAIN_S
        file.write_text(text.replace("pass", "x = 1"))
        drivers.tender.look()
        assert drivers.begun == ["j"] and read == ["j", "j"], "its program is looked at each time"
        assert "its program has changed" in drivers.lines[-1]
    finally:
        drivers.tender.let_go()
        drivers.end()
        _forget(place)


def _forget(place: str) -> None:
    """As another process, which has imported no program."""
    loader._known.pop(place, None)
    for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", "") == place[:-5]]:
        del sys.modules[name]


def test_what_has_ended_and_cannot_be_read_without_its_program_is_not_told(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that keeps no text has no end written beside its journal."""

    def gone(*asked: Any) -> Any:
        raise loader.NoSuchProgram("program 'p' cannot be imported")

    quiet = msgspec.structs.replace(TERMS, keeps_text=False)
    monkeypatch.setattr(resting, "last_state", gone)
    monkeypatch.setattr(resting.loader, "is_unchanged", gone)
    monkeypatch.setattr(resting, "by_events", lambda source: State(terms=quiet, source_ended=True))
    _left(folder)
    assert RestingJobs(folder).look() == []


def test_a_journal_is_marked_before_it_is_read(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that is written meanwhile would else never be read."""
    marks = iter(range(9))
    ended = [_k(), _k(outcome="complete")]
    monkeypatch.setattr(type(folder), "mark", lambda self, job: next(marks) if len(ended) == 2 else "written")
    monkeypatch.setattr(resting, "last_state", lambda folder, job: ended.pop(0))
    _left(folder)
    found = RestingJobs(folder)
    assert [each.job for each in found.look()] == ["j"]
    assert found.look() == [] and not ended


class Locks:
    """Locks of a database, which go with a connection: ``held`` and ``away`` are set by a test."""

    def __init__(self, folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.away = False
        self.at_s = 100.0
        monkeypatch.setattr(type(folder), "back_s", 7.0)
        monkeypatch.setattr(type(folder), "is_held", self._is_held)

    def _is_held(self, job: str) -> bool:
        if self.away:
            raise DatabaseUnreachable("no answer")
        return self.held

    def wait(self, time_s: float) -> bool:
        self.at_s += time_s
        return False


@pytest.fixture
def locks(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> Locks:
    return Locks(folder, monkeypatch)


def test_a_lock_that_went_with_a_connection_is_looked_at_twice(folder: StateFolder, locks: Locks) -> None:
    _left(folder)
    found = RestingJobs(folder, monotonic_s=lambda: locks.at_s)

    def rests(after_s: float) -> bool:
        locks.wait(after_s)
        return bool(found.look())

    assert not rests(0) and found.unsure
    assert not rests(6.9), "its holder may come back"
    locks.held = True
    assert not rests(5) and not found.unsure, "it did"
    locks.held = False
    assert not rests(60) and not rests(6), "the time counts anew"
    source = folder.journal("j")
    source.take_epoch(msgspec.json.encode(this_owner(OLD)))
    source.close()
    _age(folder)
    assert not rests(60) and found.unsure, "somebody has written to it"
    locks.away = True
    with pytest.raises(DatabaseUnreachable):
        rests(60)
    locks.away = False
    assert not rests(60), "the database fails over: all locks are free"
    assert rests(7.1) and not found.unsure


def test_one_tend_looks_twice_by_itself(folder: StateFolder, locks: Locks) -> None:
    _left(folder)
    drivers = Drivers(folder, locks=locks)
    begun_s: list[float] = []

    def wait(time_s: float) -> bool:
        if drivers.begun:
            begun_s.append(locks.at_s)
            drivers.end()
        return locks.wait(time_s) or locks.at_s > 200.0

    assert pause_s(drivers.tender, folder, 30.0) == 30.0
    drivers.tender.look()
    assert (pause_s(drivers.tender, folder, 30.0), pause_s(drivers.tender, folder, 2.0)) == (7.0, 2.0)
    look_to_the_end(drivers.tender, wait)
    assert drivers.begun == ["j"] and begun_s[0] >= 107.0 and drivers.tender.codes == {"j": 3}


def test_one_tend_does_not_begin_what_lives_at_its_second_look(folder: StateFolder, locks: Locks) -> None:
    _left(folder)
    drivers = Drivers(folder, locks=locks)

    def wait(time_s: float) -> bool:
        locks.held = locks.at_s > 104.0
        return locks.wait(time_s) or locks.at_s > 200.0

    look_to_the_end(drivers.tender, wait)
    assert not drivers.begun and not drivers.tender.left and not drivers.lines


class Drivers:
    """Drivers of a tender, and what it tells; ``live``: addresses at which a head answers."""

    def __init__(self, folder: StateFolder, *live: str, locks: Locks | None = None) -> None:
        self.now_s = NOW_S
        self.begun: list[str] = []
        self.lines: list[str] = []
        self.made: list[subprocess.Popen[bytes]] = []
        self.live, self.probed = live, list[str]()
        self.ends = False
        self.tender = Tender(
            folder, NEW, self._begin, self.lines.append, self._answers, lambda: self.now_s,
            (lambda: locks.at_s) if locks is not None else time.monotonic, lambda: self.ends,
        )  # fmt: skip

    def _answers(self, cluster: str) -> bool:
        self.probed.append(cluster)
        return cluster in self.live

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


def test_an_address_is_asked_once_a_look_and_only_while_there_is_room(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead address takes seconds: 200 jobs of one took as many probes in one look."""
    monkeypatch.setattr("actors.cli.control.tend.AT_ONCE", 2)
    third = "10.0.0.7:6379"
    for job, cluster in (("a", OLD), ("b", third), ("c", third), ("d", OLD), ("e", "10.0.0.8:6379")):
        _left(folder, job, cluster)
    order = ["a", "b", "c", "d", "e"]
    monkeypatch.setattr(type(folder), "jobs", lambda self: order[::-1])
    drivers = Drivers(folder, third)
    try:
        drivers.tender.look()
        assert (drivers.begun, drivers.probed) == (["a", "d"], [OLD, third])
        assert drivers.tender.left == {"b", "c", "e"}
        drivers.tender.look()
        assert drivers.probed == [OLD, third], "no room"
        drivers.end()
        drivers.tender.look()
        assert drivers.begun[2:] == ["e"] and drivers.probed[2:] == [OLD, third, "10.0.0.8:6379"]
    finally:
        drivers.tender.let_go()
        drivers.end()


def test_a_signal_ends_it_between_two_jobs(folder: StateFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        _left(folder, f"j{number}")
    drivers = Drivers(folder)
    begin = drivers.tender._begin
    monkeypatch.setattr(drivers.tender, "_begin", lambda job: (setattr(drivers, "ends", True), begin(job))[1])
    read: list[str] = []
    monkeypatch.setattr(resting, "last_state", lambda folder, job: (read.append(job), _k())[1])
    try:
        drivers.tender.look()
        assert len(drivers.begun) == 1 and len(drivers.tender.left) == 2 and len(read) == 3
    finally:
        drivers.tender.let_go()
        drivers.end()
    assert RestingJobs(folder, ends=lambda: len(read) > 4).look()[1:] == [resting.RestingJob(read[4], OLD)]


def test_it_wants_a_cluster_and_a_head_that_answers(cortex: Any) -> None:
    cortex("tend").refused("jobs that rest need a cluster")
    cortex("tend", "--cluster", "127.0.0.1:1").refused("no Ray answers at 127.0.0.1:1")
    cortex("tend", "--cluster", "127.0.0.1:1", "--every", "soon").refused("--every")
