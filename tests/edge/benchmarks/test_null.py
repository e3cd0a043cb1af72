"""The benchmark of calls that are answered at once: what it counts as answered, and what it refuses to count."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import cortex
from benchmarks.harness import processes, rows
from benchmarks.harness.models import AtOnce
from benchmarks.null import peers, throughput
from benchmarks.null.null_program import Null
from cortex.values.reply import Reply, text_of


class OfAnother(AtOnce):
    """Answers each row with the answer of the next."""

    async def call(self, body: bytes, **how: Any) -> Any:
        reply = await super().call(body, **how)
        assert isinstance(reply, Reply)
        return Reply(reply.body.replace(b"row 000001", b"row 000002"), reply.stop_reason, reply.model, reply.usage)


def test_each_call_is_answered_once_and_with_its_own(tmp_path: Path) -> None:
    done = cortex.run(Null(calls=50, ahead=20), model=AtOnce(), state=str(tmp_path), job=throughput.JOB, progress=False)
    assert (done.outcome, done.calls, sorted(done.rows)) == ("complete", 50, list(range(50)))
    found = throughput.journalled(tmp_path, 50)
    assert found.calls_per_s > 0 and found.commits > 2 and found.journal_bytes > 0
    with pytest.raises(rows.Lost, match="51 calls, and the journal has 50 answers to 50 of them"):
        throughput.journalled(tmp_path, 51)


def test_the_answer_of_another_row_is_none(tmp_path: Path) -> None:
    done = cortex.run(Null(calls=3), model=OfAnother(), state=str(tmp_path), job=throughput.JOB, progress=False)
    assert sorted(done.rows) != [0, 1, 2] and done.facts["rows_failed"] == 1


def test_what_others_would_write_answers_all() -> None:
    took_s, found = peers.in_a_loop(40)
    rows.check_all(((f"r{number:06d}", text_of(body)) for number, body in enumerate(found)), 40)
    assert took_s > 0
    assert text_of(peers._alone(next(peers.bodies(1)))) == "row 000000"


def test_cpu_time_is_told_between_two_moments() -> None:
    assert [processes._at([(1.0, 4.0), (2.0, 6.0)], at_s) for at_s in (0.0, 1.0, 1.5, 2.0, 9.0)] == [4, 4, 5, 6, 6]
    assert processes._cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=1.0)
