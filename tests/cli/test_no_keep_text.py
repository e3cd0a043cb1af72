"""``--no-keep-text``: prompts and replies leave the disk once their results are in the output, and nothing else does."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from actors.history.catalog import last_state
from actors.journal.journal import Journal, StateFolder, TextRedacted
from tests.cli.cli_runner import each_once, keys, request, requests, started, until

MARK = b"marmalade"
COUNT = 60


def _folder() -> StateFolder:
    return StateFolder(os.environ["CORTEX_STATE"])


def _command(*more: object) -> tuple[object, ...]:
    lines = (
        request(f"r{i}", f"Answer with one of: bug, praise.\n\n{MARK.decode()} {i} " + "x" * 300) for i in range(COUNT)
    )
    Path("in.jsonl").write_text("".join(line + "\n" for line in lines))
    sim = ("--model", "sim", "--sim", "latency_ms=1", "--price", "input=1,output=1")
    return ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *sim, "--no-keep-text", *more)


def _holding(words: bytes) -> int:
    """How often the state folder holds these bytes, in whatever part of its files."""
    return sum(path.read_bytes().count(words) for path in _folder().path.rglob("*") if path.is_file())


def _replies() -> list[bytes]:
    lines = Path("out.jsonl").read_text().splitlines()
    return [json.loads(line)["result"]["message"]["id"].encode() for line in lines]


@pytest.mark.parametrize("more", [(), ("--ordered",)])
def test_once_the_job_is_over_no_file_holds_what_was_asked_or_answered(cortex, more):
    done = cortex(*_command(*more), "--json")
    assert (done.code, done.last["rows_succeeded"], done.last["paid_calls"]) == (0, COUNT, COUNT)
    each_once(Path("out.jsonl"), COUNT)
    assert _holding(MARK) == 0
    assert all(_holding(reply) == 0 for reply in _replies()[:5])
    assert "complete" in cortex("jobs").out and "60/60" in cortex("jobs").out
    assert cortex("status", "mine", "--json").last["output_tokens"] == done.last["output_tokens"]
    assert "is already complete" in cortex(*_command(*more)).said()[0]
    assert "is already complete" in cortex("resume", "mine").said()[0]
    assert cortex("config", "mine").code == 0


def test_a_retry_is_not_offered_where_it_cannot_be(cortex):
    done = cortex(*_command("--sim", "hang=0.4", "--goal-timeout", "0.2s"))
    assert done.code == 1 and "timed_out" in done.err and "cortex retry" not in done.err


def test_what_needs_the_text_says_that_it_is_gone(cortex):
    assert cortex(*_command()).code == 0
    for command in (("results", "mine", "-o", "x.jsonl"), ("replay", "mine"), ("export", "mine", "-o", "y.jsonl")):
        cortex(*command).refused("job mine keeps no text (--no-keep-text)")
    answer = cortex("inspect", "mine")
    assert answer.code == 2 and "job mine keeps no text" in answer.said()[-1]
    before = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_bytes(before[:-100])
    done = cortex("resume", "mine")
    assert (
        done.code == 2 and "out.jsonl was changed since job mine wrote it, and the job keeps no text" in done.said()[-1]
    )
    with closing(sqlite3.connect(_folder().path / "replies.sqlite")) as db:
        assert (
            db.execute("SELECT job FROM replies UNION SELECT job FROM recent UNION SELECT job FROM unsorted").fetchall()
            == []
        )
    Path("again.jsonl").write_bytes(Path("in.jsonl").read_bytes())
    done = cortex(
        "batch", "again.jsonl", "-o", "again.out", "--model", "sim", "--job", "other", "--sim", "latency_ms=1", "--json"
    )
    assert (done.last["reused_calls"], done.last["paid_calls"]) == (0, COUNT), "nothing of it is remembered"
    with closing(sqlite3.connect(_folder().path / "replies.sqlite")) as db:
        known = db.execute("SELECT job FROM replies UNION SELECT job FROM recent UNION SELECT job FROM unsorted")
        assert {name for (name,) in known} == {"other"}


@pytest.mark.parametrize("more", [(), ("--ordered",)])
def test_killed_again_and_again_it_recovers_and_pays_for_each_once(cortex, more):
    slow = ("--sim", "latency_ms=100", "--sim", "latency_spread=0", "--concurrency", 3)
    command = [*map(str, (*_command(*more), *slow))]
    for rows in (12, 30):
        with started(*command) as child:
            until(lambda rows=rows: Path("out.jsonl").exists() and Path("out.jsonl").read_text().count("\n") >= rows)
            child.kill()
            child.wait()
    done = cortex("resume", "mine", "--sim", "latency_ms=1", "--concurrency", 40, "--json")
    assert (done.code, done.last["rows_succeeded"]) == (0, COUNT)
    assert done.last["attempts"] <= COUNT + 2 * 3, "a crash re-pays at most what was in flight"
    each_once(Path("out.jsonl"), COUNT)
    if more:
        assert list(keys(Path("out.jsonl"))) == [f"r{i}" for i in range(COUNT)]
    assert _holding(MARK) == 0


def test_while_it_runs_what_is_on_disk_leaves(cortex, monkeypatch):
    """In this process, so that it goes after every 5 results."""
    import actors.history.redaction

    monkeypatch.setattr(actors.history.redaction, "RESULTS", 5)
    seen: list[tuple[int, int, int]] = []
    at: dict[int, int] = {}  # turn of a snapshot -> results that there were
    drop, snapshot = Journal.drop, Journal.snapshot

    def dropped(self: Journal, upto: int, shrink: bool = False) -> None:
        drop(self, upto, shrink)
        k = last_state(_folder(), "mine")  # whoever looks at this moment sees all of it
        seen.append((k.written_rows, at[upto], _holding(MARK)))
        assert k.tally.succeeded >= k.written_rows

    def taken(self: Journal, seq: int, emitted: int, blob: bytes, keep: int = 0) -> None:
        at[seq] = emitted
        snapshot(self, seq, emitted, blob, keep)

    monkeypatch.setattr(Journal, "drop", dropped)
    monkeypatch.setattr(Journal, "snapshot", taken)
    limits = ("--concurrency", 2, "--sim", "latency_ms=60", "--sim", "latency_spread=0")
    assert cortex(*_command(*limits)).code == 0
    assert len(seen) >= 3 and seen[-1][2] == 0
    assert seen[-1][0] == COUNT
    for written, emitted, held in seen:  # on a slow disk more was written until turns up to the snapshot could go
        later = max(0, written - emitted)
        assert held <= 2 * (COUNT - written) + 4 * later + 20, "what is done has left the file, not only its tables"


def test_at_rest_only_what_is_still_to_be_asked_is_kept(cortex):
    done = cortex(*_command("--max-job-tokens", 2_500, "--concurrency", 2))
    assert done.code == 3
    written = _replies()
    assert 0 < len(written) < COUNT
    assert all(_holding(reply) == 0 for reply in written)
    with closing(_folder().journal("mine")) as source, pytest.raises(TextRedacted):
        list(source.turns())
    assert cortex("resume", "mine", "--max-job-tokens", "none").code == 0
    each_once(Path("out.jsonl"), COUNT)
    assert _holding(MARK) == 0


def test_bad_input(cortex):
    requests(Path("in.jsonl"), 5)
    cortex("batch", "in.jsonl", "-o", "-", "--model", "sim", "--no-keep-text").refused("--no-keep-text needs -o FILE")
    assert cortex("batch", "in.jsonl", "-o", "o.jsonl", "--model", "sim", "--job", "kept").code == 0
    cortex("batch", "in.jsonl", "-o", "o.jsonl", "--model", "sim", "--job", "kept", "--no-keep-text").refused(
        "job kept has kept its text so far", "cortex forget kept"
    )
    assert cortex("run", "hanoi", "--no-keep-text").code == 2


def test_a_changed_program_would_pay_for_all_of_it_again(cortex, monkeypatch):
    assert cortex(*_command("--max-job-tokens", 2_500)).code == 3
    monkeypatch.setattr("actors.programs.loader.fingerprint", lambda where, params: "another release")
    cortex(*_command()).refused("has changed since", "kept no text", "--fresh")
    cortex("resume", "mine", "--max-job-tokens", "none").refused("has changed since", "kept no text")
