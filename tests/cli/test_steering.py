"""``set`` and ``drain``: word to a job that runs elsewhere, that rests, that is over or never was."""

from __future__ import annotations

import getpass
import os
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from actors.cli.control import steer
from actors.cli.jobs.resting import RestingJobs
from actors.common.process_owner import this_owner
from actors.driver import control_note
from actors.history.catalog import last_state
from actors.journal.journal import StateFolder
from actors.maintenance import offline_edits
from actors.ports.runtime import ClusterError
from actors.programs.loader import load
from cortex.journal import codec
from cortex.state import events
from cortex.state.state import State
from cortex.values.limits import Limits
from tests.cli.cli_runner import each_once, ended, keys, requests, started, until

COUNT = 240
"""Rows that take a minute by two: whoever steers a job, and waits for a processor, finds it at work."""
SLOW = ("--model", "sim", "--concurrency", 2, "--sim", "latency_ms=500", "--sim", "latency_spread=0")
FAST = ("--sim", "latency_ms=0")


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _slow() -> tuple[object, ...]:
    requests(Path("in.jsonl"), COUNT)
    return ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *SLOW, "--json")


def _some_results() -> bool:
    return Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0


def _set_events() -> list[events.LimitsSet]:
    source = _folder().journal("mine")
    try:
        batches = [batch for _, turn in source.turns() for batch in turn.batches]
        return [event for batch in batches for event in batch if isinstance(event, events.LimitsSet)]
    finally:
        source.close()


def _most_in_flight() -> int:
    """The most calls that were in flight after a turn: how long the job took says less of that on a busy machine."""
    most, k = 0, None
    with closing(_folder().journal("mine")) as source:
        for _, turn in source.turns():
            k = codec.replay(k, [turn], lambda terms: load(terms.program, terms.params_json))
            most = max(most, len(k.flights))
    return most


def _resting(cortex, *more: object) -> None:
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine", "--price", "input=1,output=1")
    assert cortex(*command, "--max-job-tokens", 400, *more).code == 3


def test_bounds_of_a_job_that_runs_in_another_process(cortex):
    with started(*_slow()) as child:
        until(_some_results)
        done = cortex("set", "mine", "--concurrency", 40, "--deadline", "+6h", "--priority", 3)
        lines = done.said()
        assert done.code == 0
        assert lines[0].startswith("mine: --concurrency 40 (was 2), --priority 3 (was 1), --deadline 20")
        assert lines[0].endswith(f", set by {getpass.getuser()}")
        theirs = ended(child)
    assert (theirs.code, theirs.last["rows_succeeded"]) == (0, COUNT)
    assert 2 < _most_in_flight() <= 40
    (reported,) = _set_events()
    assert (reported.who, reported.limits.concurrency, reported.limits.priority) == (getpass.getuser(), 40, 3)
    assert not control_note.waits(_folder(), "mine")


def test_a_cap_that_is_set_below_what_is_spent_ends_the_job_and_a_higher_one_goes_on(cortex):
    with started(*_slow(), "--price", "input=100,output=100") as child:
        until(_some_results)
        done = cortex("set", "mine", "--max-cost", "0.0001")
        assert "--max-cost $0.0001 (was none)" in done.said()[0]
        assert "are already spent or reserved: the job sends no more calls" in done.said()[1]
        theirs = ended(child)
    assert theirs.code == 3
    assert theirs.last["outcome"] == "partial"
    assert "to go on: cortex resume mine --max-cost USD" in theirs.err
    rest = cortex("resume", "mine", "--max-cost", 100, *FAST, "--json")
    assert (rest.code, rest.last["paid_calls"]) == (0, COUNT)
    each_once(Path("out.jsonl"), COUNT)


def test_bounds_of_a_job_at_rest_hold_when_it_is_resumed(cortex):
    _resting(cortex)
    done = cortex("set", "mine", "--max-job-tokens", "none", "--max-cost", 2)
    assert done.said() == [
        f"mine: --max-cost $2.00 (was none), --max-job-tokens none (was 400), set by {getpass.getuser()}",
        "the job does not run: cortex resume mine",
    ]
    assert last_state(_folder(), "mine").outcome == "partial"
    assert _set_events()[-1].who == getpass.getuser()
    assert cortex("set", "mine", "--max-cost", 2).said() == ["job mine already has these limits"]
    assert cortex("resume", "mine").code == 0
    each_once(Path("out.jsonl"), 20)
    cortex("set", "mine", "--max-cost", 2).refused("job mine is already complete")


def test_a_killed_run_asks_nothing_because_its_bounds_are_set(cortex):
    with started(*_slow(), "--sim", "latency_ms=600000") as child:
        until(
            lambda: cortex("status", "mine", "--json").code == 0 and last_state(_folder(), "mine").ledger.attempts == 2
        )
        child.kill()
        child.wait()
    before = last_state(_folder(), "mine").ledger.attempts
    assert cortex("set", "mine", "--concurrency", 30).code == 0
    assert last_state(_folder(), "mine").ledger.attempts == before
    assert cortex("resume", "mine", *FAST).code == 0
    each_once(Path("out.jsonl"), COUNT)
    assert last_state(_folder(), "mine").terms.limits.concurrency == 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope", "--max-cost", 1], ["no job 'nope'"]),
        (["mine"], ["nothing to set", "--max-cost"]),
        (["mine", "--max-cost", "-1"], ["--max-cost: '-1'"]),
        (["mine", "--deadline", "2001-01-01"], ["--deadline: 2001-01-01 has passed"]),
        (["mine", "--headroom", 1], ["--headroom: '1'"]),
        (["mine", "--frob", 1], ["--frob", "cortex set --help"]),
    ],
)
def test_bounds_that_make_no_sense(cortex, arguments, words):
    _resting(cortex)
    cortex("set", *arguments).refused(*words)
    assert _set_events() == []


def test_what_stands_in_the_environment_is_for_jobs_that_begin(cortex, monkeypatch):
    _resting(cortex)
    monkeypatch.setenv("CORTEX_CONCURRENCY", "3")
    cortex("set", "mine").refused("nothing to set")
    assert cortex("set", "mine", "--rpm", 5).code == 0
    limits = last_state(_folder(), "mine").terms.limits
    assert (limits.concurrency, limits.requests_per_min) == (100, 5)


def test_a_cap_needs_a_price(cortex):
    requests(Path("in.jsonl"), 20)
    command = ("batch", "in.jsonl", "-o", "out.jsonl", "--model", "sim", "--job", "mine")
    assert cortex(*command, "--max-job-tokens", 400).code == 3
    cortex("set", "mine", "--max-cost", 1).refused("no price is known for 'sim'", "--price")


def test_a_run_is_drained_from_another_process(cortex):
    with started(*_slow(), "--accept-partial") as child:
        until(_some_results)
        done = cortex("drain", "mine")
        theirs = ended(child)
    assert done.code == 0
    assert "draining" in done.said()[0]
    assert done.said()[-1] == "to go on: cortex resume mine"
    assert theirs.code == 3, "it rests, whatever counts as complete: whoever started it goes on with it"
    last = theirs.last
    assert (last["outcome"], last["resume"]) == ("partial", "cortex resume mine")
    assert last["attempts"] == last["paid_calls"] == sum(keys(Path("out.jsonl")).values()) < COUNT
    assert cortex("resume", "mine", *FAST).code == 0
    each_once(Path("out.jsonl"), COUNT)


def test_nothing_to_drain(cortex):
    cortex("drain", "nope").refused("no job 'nope'")
    _resting(cortex)
    done = cortex("drain", "mine")
    assert (done.code, done.said()[0], done.said()[-1]) == (
        0, "job mine does not run: nothing to drain", "to go on: cortex resume mine",
    )  # fmt: skip
    assert cortex("resume", "mine", "--max-job-tokens", 100_000).code == 0
    done = cortex("drain", "mine")
    assert (done.code, done.said()[0]) == (0, "job mine is already complete: nothing to drain")


def _cut_off(cortex, *stops: events.Event, more: tuple[object, ...] = ()) -> RestingJobs:
    """Leave a job that has calls or shards under way, and whose channel and head are gone, after these events."""
    _resting(cortex, *more)
    folder, limits = _folder(), Limits(max_job_tokens=100_000)

    def begun(epoch: int, k: State) -> list[events.Event]:
        return [events.Rejoined(epoch), events.LimitsSet("ann", limits), events.Resumed("ann")]

    assert not offline_edits.amend(folder, "mine", begun).outcome
    for stop in stops:
        offline_edits.amend(folder, "mine", lambda epoch, k: [events.Rejoined(epoch), stop])  # noqa: B023
    with closing(folder.journal("mine")) as source:
        source.take_epoch(msgspec.json.encode(this_owner("127.0.0.1:1")))
    with folder.attend("mine"):
        pass
    _age()
    return RestingJobs(folder)


def _age() -> None:
    """Let the lease of the channel run out."""
    for path in (_folder().path / "jobs").glob("mine.sqlite*"):
        os.utime(path, (time.time() - 60,) * 2)


@pytest.mark.parametrize("stops", [(), (events.Stopped(events.NODE_ENDED, "drain"),)], ids=["lost", "ended with its machine"])
def test_a_drain_of_a_job_whose_channel_is_gone_is_kept_until_a_resume_by_hand(cortex, stops):
    found, me = _cut_off(cortex, *stops), getpass.getuser()
    assert [each.job for each in found.look()] == ["mine"], "`cortex tend` would begin it again"
    assert ": drained" not in cortex("jobs").out
    done = cortex("drain", "mine")
    assert (done.code, done.said()[-1]) == (0, "to go on: cortex resume mine")
    assert "no channel of job mine answers: the drain is kept in its journal" in done.err
    _age()
    assert found.look() == RestingJobs(_folder()).look() == []
    lines = cortex("status", "mine").out.splitlines()
    assert any(line.startswith("state     partial: drained, resumable") for line in lines)
    assert f"why       drained by {me}" in lines
    assert "partial: drained, resumable" in cortex("jobs").out
    assert cortex("drain", "mine").said()[0] == "job mine does not run: nothing to drain"
    assert cortex("resume", "mine").code == 0
    each_once(Path("out.jsonl"), 20)
    assert not last_state(_folder(), "mine").stopping


@pytest.mark.parametrize("silent", ["its head", "its channel, while it drains"])
def test_a_channel_that_lives_but_does_not_answer_from_here_is_not_fenced(cortex, silent, monkeypatch):
    """Its calls in flight were paid, and their replies come to it alone."""
    reason, stops = " (no Ray answers there): look at `cortex status mine`", ()
    if silent != "its head":
        reason, stops = ": look at `cortex status mine`", (events.Stopped("ann", "drain"),)

    async def send(*asked: object) -> bool:
        if silent == "its head":
            raise ClusterError("no Ray answers there")
        return False

    monkeypatch.setattr(steer, "_send_to_channel", send)
    _cut_off(cortex, *stops, more=("--shards", 2))
    folder = _folder()
    before = len(_set_events())
    with folder.attend("mine"), closing(folder.journal("mine")) as channel:
        channel.take_epoch(channel.meta("owner"))
        for command in (("drain", "mine"), ("set", "mine", "--priority", 3)):
            done = cortex(*command)
            (line,) = done.said()
            assert done.code == 1, line
            assert line.startswith(f"the channel of job mine lives, but does not answer from here{reason}")
            assert line.endswith("give the command again, or on a machine of 127.0.0.1:1")
        channel.set_meta("fenced", b"no")
    k = last_state(folder, "mine")
    assert (k.outcome, k.stopped_by, len(_set_events())) == ("", "ann" if stops else "", before)


@pytest.mark.parametrize("drained", [True, False])
def test_a_channel_that_does_not_answer_keeps_nobody_from_ending_a_job_or_from_steering_one_that_rests(cortex, drained):
    _cut_off(cortex, *([events.Stopped("ann", "drain")] if drained else []))
    with _folder().attend("mine"):
        assert cortex(*(("set", "mine", "--priority", 3) if drained else ("cancel", "mine"))).code == 0


def test_bounds_set_after_the_head_was_lost_keep_nobody_from_going_on_with_the_job(cortex):
    found = _cut_off(cortex)
    assert cortex("set", "mine", "--priority", 3).said()[-1] == "the job does not run: cortex resume mine"
    _age()
    assert [each.job for each in found.look()] == ["mine"]
    assert last_state(_folder(), "mine").terms.limits.priority == 3


@pytest.mark.parametrize("asked", ["before its head was lost", "after"])
def test_a_job_that_is_drained_while_its_shards_are_away_says_so_and_is_not_begun_again(cortex, asked):
    """It has no outcome: it knows none of its shards."""
    me = getpass.getuser()
    found = _cut_off(cortex, *([events.Stopped(me, "drain")] if asked != "after" else []), more=("--shards", 2))
    assert [each.job for each in found.look()] == ["mine"] * (asked == "after")
    done = cortex("drain", "mine")
    assert (done.code, "the drain is kept in its journal" in done.err) == (0, asked == "after")
    _age()
    k = last_state(_folder(), "mine")
    assert (k.outcome, k.stopping) == ("", "drain") and found.look() == RestingJobs(_folder()).look() == []
    assert f"why       drained by {me}" in cortex("status", "mine").out
    listed = cortex("jobs")
    assert "interrupted: drained, resumable" in listed.out and "tend" not in listed.err
    assert cortex("resume", "mine").code == 0
    each_once(Path("out.jsonl"), 20)


def test_what_is_drained_is_one_thing(cortex):
    for arguments in ((), ("mine", "--node", "n"), ("--node", "n", "--branch", "b")):
        cortex("drain", *arguments).refused("nothing to drain", "--node NAME")
    cortex("drain", "--branch", "branch:0").refused("give --cluster ADDRESS")
    cortex("drain", "--node", "n", "--cluster", "127.0.0.1:1").refused("no Ray answers at 127.0.0.1:1")


def test_a_deadline_that_has_passed_is_told_when_the_job_is_resumed(cortex):
    _resting(cortex)
    assert cortex("set", "mine", "--deadline", "+0.2s").code == 0
    time.sleep(0.25)
    cortex("resume", "mine").refused("the deadline of job mine passed at 20", "--deadline +6h")
    assert cortex("resume", "mine", "--deadline", "none", "--max-job-tokens", "none").code == 0


def test_what_a_resume_says_of_the_model_stays(cortex):
    _resting(cortex)
    more = ("--max-job-tokens", 440, "--fallback", "sim,seed=2,input=1,output=1", "--sim", "latency_ms=1")
    assert cortex("resume", "mine", *more).code == 3
    assert len(last_state(_folder(), "mine").terms.fallbacks) == 1
    assert cortex("resume", "mine", "--max-job-tokens", 480).code == 3
    assert len(last_state(_folder(), "mine").terms.fallbacks) == 1
    assert cortex("resume", "mine", "--max-job-tokens", "none", "--fallback", "none").code == 0
    assert last_state(_folder(), "mine").terms.fallbacks == ()
    each_once(Path("out.jsonl"), 20)


def test_one_word_at_a_time(tmp_path):
    folder, owner = StateFolder(tmp_path).prepare(), this_owner("inline")
    first = control_note.ControlRequest(how="set", who="ann", owner=owner, limits={"concurrency": 3})
    stop = control_note.ControlRequest(how="cancel", who="bob", owner=owner)
    assert control_note.leave(folder, "mine", first)
    assert not control_note.leave(folder, "mine", stop)
    assert control_note.read(folder, "mine", owner) == first
    control_note.obeyed(folder, "mine")
    assert control_note.leave(folder, "mine", stop)
    assert control_note.read(folder, "mine", owner) == stop
    other = control_note.ControlRequest(how="drain", who="cid", owner=this_owner("elsewhere"))
    late = control_note.ControlRequest(
        how="drain", who="cid", owner=control_note.Owner(host="h", pid=1, started="1", cluster="inline")
    )
    assert not control_note.leave(folder, "mine", other)  # the same process
    assert control_note.leave(folder, "mine", late)  # the one before is over
    assert control_note.read(folder, "mine", owner) is None
    assert [path.name for path in tmp_path.rglob("*control*")] == ["mine.control"]
