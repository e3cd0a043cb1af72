"""A state folder, a journal or an output that is removed or replaced while its job runs: one line, and a resume that
pays for nothing twice."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.cli.cli_runner import each_once, ended, requests, started, until

COUNT, AT_ONCE = 400, 2
"""Rows that take forty seconds: a loss is noticed within one or two, of which a busy machine makes more."""
SLOW = ("--model", "sim", "--concurrency", AT_ONCE, "--sim", "latency_ms=200", "--sim", "latency_spread=0")
BATCH = ("batch", "in.jsonl", "-o", "out.jsonl", "--job", "mine", *SLOW, "--json")


def _state() -> Path:
    return Path(os.environ["CORTEX_STATE"])


def _remove_state() -> None:
    shutil.rmtree(_state())


def _unlink_journal() -> None:
    (_state() / "jobs" / "mine.sqlite").unlink()


def _replace_journal() -> None:
    place = _state() / "jobs" / "mine.sqlite"
    place.with_name("other").write_bytes(b"another file")
    os.replace(place.with_name("other"), place)


@pytest.mark.parametrize(
    "do", [_remove_state, *(pytest.param(each, marks=pytest.mark.long) for each in (_unlink_journal, _replace_journal))]
)
def test_a_journal_that_is_gone_is_noticed_and_put_back(cortex, do) -> None:
    requests(Path("in.jsonl"), COUNT)
    with started(*BATCH) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        do()
        done = ended(child)
    assert done.code == 3, done.err
    (line,) = (line for line in done.said() if "while the job ran" in line)
    if do is _replace_journal:
        assert "was replaced by another file" in line and "mine.sqlite.rescued, which holds the job" in line
        place = _state() / "jobs" / "mine.sqlite"
        os.replace(place.with_name("mine.sqlite.rescued"), place)
        for end in ("-wal", "-shm"):
            place.with_name(f"mine.sqlite{end}").unlink(missing_ok=True)
    else:
        assert "was removed" in line and "was written there again, whole" in line
    assert (_state() / "jobs" / "mine.sqlite").stat().st_mode & 0o777 == 0o600
    assert _state().stat().st_mode & 0o777 == 0o700
    assert cortex("verify", "mine").code == 0
    again = cortex("resume", "mine", "--sim", "latency_ms=0", "--json")
    assert again.code == 0
    each_once(Path("out.jsonl"), COUNT)
    assert COUNT <= again.last["calls"] <= COUNT + AT_ONCE, "paid again: what was in flight, at most"


@pytest.mark.parametrize("replaced", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_output_that_is_gone_is_noticed_and_written_again(cortex, replaced: bool) -> None:
    requests(Path("in.jsonl"), COUNT)
    with started(*BATCH) as child:
        until(lambda: Path("out.jsonl").exists() and Path("out.jsonl").stat().st_size > 0)
        Path("out.jsonl").unlink()
        if replaced:
            Path("out.jsonl").write_text("")
        done = ended(child)
    assert done.code == 3, done.err
    assert sum("out.jsonl was removed or replaced" in line for line in done.said()) == 1
    again = cortex("resume", "mine", "--sim", "latency_ms=0", "--json")
    assert again.code == 0, again.err
    each_once(Path("out.jsonl"), COUNT)
    assert again.last["calls"] <= COUNT + AT_ONCE
