"""A benchmark that loses a call, doubles one or mixes two up has no figure."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.cluster.bootstrap import NICENESS, PrivateRay
from actors.observability.base.conventions import SpanText
from actors.observability.traces.otlp_encoding import OtlpEncoder
from actors.providers.chat_completions.response import read_completion
from actors.providers.messages.response import read_message
from actors.providers.responses.response import read_response
from benchmarks import http, limits, many_jobs, table, telemetry
from benchmarks.claims import rlm
from benchmarks.harness import baselines, command, processes, rows, scale_worker
from benchmarks.harness.processes import Sample
from benchmarks.harness.server import RunningServer, answer
from benchmarks.memory import read
from benchmarks.null import durable
from benchmarks.scheduler import Load
from cortex.programs.batch import failed_line, succeeded_line
from cortex.state import events
from cortex.values.reply import Reply, Usage
from policies.failures.failure import Failure, FailureKind


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(delay_ms=1.0) as running:
        yield running


def told(*numbers: int) -> list[tuple[str, str]]:
    return [(f"r{number:06d}", f"row {number:06d}") for number in numbers]


def test_every_call_has_one_answer_and_its_own() -> None:
    rows.check_all(told(2, 0, 1), 3)
    with pytest.raises(rows.Lost, match="1 of 3 calls have no result, the first is r000001"):
        rows.check_all(told(0, 2), 3)
    with pytest.raises(rows.Lost, match="r000001 has two results"):
        rows.check_all(told(0, 1, 1), 3)
    with pytest.raises(rows.Lost, match="r000000 has the answer 'row 000001'"):
        rows.check_all([("r000000", "row 000001")], 1)


async def test_the_least_that_is_durable_has_every_request_on_disk_before_it_is_sent_and_every_answer(
    tmp_path: Path,
) -> None:
    path, calls = tmp_path / "journal", 3 * durable.TOGETHER + 5
    on_disk: list[bytes] = []

    def kept() -> list[bytes]:
        with contextlib.closing(sqlite3.connect(path)) as db:
            return [blob for (blob,) in db.execute("SELECT blob FROM messages")]

    class Branch(durable.Branch):
        async def work(self, blob: bytes) -> bytes:
            assert blob in kept()
            on_disk.extend((blob, data := await super().work(blob)))
            return data

    _, found = await durable.Channel([Branch().work, Branch().work], path).run(calls)
    assert found == [f"row {number:06d}" for number in range(calls)]
    assert sorted(kept()) == sorted(on_disk)
    assert len(on_disk) == 8, "four messages, and what was said to each"


def test_a_row_that_failed_is_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    good = succeeded_line("r000000", b'{"content":[{"type":"text","text":"row 000000"}]}')
    bad = failed_line("r000001", Failure(FailureKind.TRANSIENT, "gone"))
    path.write_bytes(good + b"\n" + bad + b"\n")
    with pytest.raises(rows.Lost, match="'errored'"):
        rows.check_all(rows.results(path), 2)


def test_a_table_of_answers_with_one_lost_doubled_or_mixed_up_has_no_figure(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def answers(*numbers: int) -> list[dict[str, Any]]:
        messages = [msgspec.json.decode(answer(number, fitting=True).split(b"\r\n\r\n", 1)[1]) for number in numbers]
        return [msgspec.json.decode(each["content"][0]["text"]) for each in messages]

    def written(given: list[dict[str, Any]], ids: tuple[int, ...] = (0, 1, 2)) -> Path:
        around = {"answer": None, "error": None}
        found = [{"id": f"r{number:06d}"} | each | around for number, each in zip(ids, given, strict=True)]
        pq.write_table(pa.Table.from_pylist(found), tmp_path / "answers.parquet")
        return tmp_path / "answers.parquet"

    table.check_table(written(answers(0, 1, 2)), 3)
    with pytest.raises(rows.Lost, match="2 rows have another's answer, the first is r000000"):
        table.check_table(written(answers(1, 0, 2)), 3)
    with pytest.raises(rows.Lost, match="1 of 3 calls have no result"):
        table.check_table(written(answers(0, 2), (0, 2)), 3)
    with pytest.raises(rows.Lost, match="r000001 has two results"):
        table.check_table(written(answers(0, 1, 1), (0, 1, 1)), 3)


@pytest.mark.parametrize(("api", "read"), enumerate([read_message, read_completion, read_response]))
def test_the_counted_server_answers_in_each_form(api: int, read: Callable[[bytes], Reply]) -> None:
    def body(fitting: bool) -> bytes:
        return answer(7, api, fitting).split(b"\r\n\r\n", 1)[1]

    assert (read(body(False)).text, read(body(False)).usage) == ("row 000007", Usage(40, 4))
    assert msgspec.json.decode(read(body(True)).text)["number"] == 7


def test_spans_that_did_not_come_or_came_twice_leave_no_figure() -> None:
    def request(*ids: int) -> bytes:
        return OtlpEncoder([]).request(
            [OtlpEncoder([]).span(SpanText(1, number, 0, "x", 1, 1, 2, False, [], ())) for number in ids]
        )

    sink = telemetry.Sink()
    sink.bodies += [request(*range(1, 8)), request(8, 9, 10, 11)]
    sink.check(2)
    for bodies in ([request(*range(1, 11))], [request(*range(1, 11)), request(3)], []):
        sink.bodies += bodies
        with pytest.raises(rows.Lost, match="2 calls and their job"):
            sink.check(2)
    sink.close()


def test_lines_of_the_input_have_the_size_that_was_asked_for(tmp_path: Path) -> None:
    rows.write_input(tmp_path / "in.jsonl", 3, 1_000)
    assert [len(line) for line in (tmp_path / "in.jsonl").read_bytes().splitlines()] == [999] * 3


def test_what_is_reached_of_a_limit_is_read_from_what_the_provider_counted() -> None:
    looks = [limits.Look(100.0 + at_s, 40 * min(at_s, 5) + 10 * max(at_s - 5, 0), at_s // 5) for at_s in range(-3, 50)]
    found = limits.reached(
        [limits.Look(look.at_s, max(look.accepted, 0), look.throttled) for look in looks], 10.0, 20, 40
    )
    assert (found["sustained"], found["throttled"], found["converged_s"]) == (1.0, round(4 / 204, 4), 0.0)
    slow = [limits.Look(float(at_s), 9 * at_s if at_s < 20 else 10 * at_s - 20, 0) for at_s in range(40)]
    assert limits.reached(slow, 10.0, 0, 10)["sustained"] == 0.9
    assert limits.reached(slow, 10.0, 0, 10)["converged_s"] == 14.0


async def test_the_server_answers_and_counts(server: RunningServer) -> None:
    await asyncio.to_thread(server.reset)
    assert await baselines.bare(server.url, iter(range(40)), 8) == 40
    counts = await asyncio.to_thread(server.counts)
    assert (counts.requests, counts.distinct, counts.doubled) == (40, 40, 0)
    assert counts.calls_per_s > 0
    http.check_counts(counts, 40, "bare")
    await baselines.bare(server.url, iter([7]), 1)
    counts = await asyncio.to_thread(server.counts)
    with pytest.raises(rows.Lost, match="40 calls, and the server saw"):
        http.check_counts(counts, 40, "bare")
    assert (counts.distinct, counts.doubled) == (40, 1)


def test_a_leak_is_seen_and_a_plateau_is_not() -> None:
    def run(rise_mb: float) -> list[Sample]:
        return [Sample(at, at / 100, 100 + min(at, 30) + rise_mb * at / 100) for at in range(101)]

    assert read(run(0.0))["second_half_rise_mb"] == 0
    assert read(run(40.0))["second_half_rise_mb"] == pytest.approx(20, abs=0.1)
    assert processes.fitted_slope([(1.0, 2.0)]) == 0


def test_the_claims_about_rlm_know_what_is_right() -> None:
    text, right = rlm.reviews(300, 1)
    lines = text.split("\n")
    assert len(lines) == 300 and right[rlm.PLAIN] == sum(
        "late delivery" in line or "came late" in line for line in lines
    )
    assert 0 < right[rlm.KEYED] < right[rlm.PLAIN]
    (keyed, plain) = rlm.tokens((60,), (1,))
    assert (
        keyed["rlm"]["right"] == plain["rlm"]["right"] == keyed["one_shot"]["right"] == plain["one_shot"]["right"] == 1
    )
    first, then = rlm.kept(2, 60)
    assert first["calls"] == first["written_each_time"]["calls"] and then["calls"] < then["written_each_time"]["calls"]


def test_loops_that_are_measured_together_begin_when_the_last_is_there(capfd: pytest.CaptureFixture[str]) -> None:
    script = "from benchmarks.harness.baselines import when_told; import sys, time\n"
    script += "time.sleep(float(sys.argv[1])); at = time.monotonic(); next(when_told([0]))\n"
    script += "sys.stderr.write(f'{at} {time.monotonic()}\\n')"
    waits = ("0", "0.5")
    working = [subprocess.Popen([sys.executable, "-c", script, wait], **http.PIPED) for wait in waits]
    assert http.begun_together(working)
    moments = [tuple(map(float, line.split())) for line in capfd.readouterr().err.splitlines()]
    assert min(began for _, began in moments) >= max(there for there, _ in moments)


def test_a_loop_that_fails_before_it_is_there_ends_the_others() -> None:
    sound = "from benchmarks.harness.baselines import when_told; list(when_told([0]))"
    working = [subprocess.Popen([sys.executable, "-c", each], **http.PIPED) for each in (sound, "raise SystemExit(1)")]
    assert not http.begun_together(working)
    assert [process.returncode for process in working] == [-signal.SIGKILL, 1]


def test_a_ray_beside_ours_has_the_priority_that_ours_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NICENESS, "7")
    theirs = command.environment()[NICENESS]
    monkeypatch.delenv(NICENESS)
    assert theirs == PrivateRay("", "").environ()[NICENESS]


def test_many_jobs_that_make_more_than_one_say_nothing_and_one_bad_round_is_enough() -> None:
    assert many_jobs.reached([1.0, 0.86, 1.14], [0.01, 0.1])
    assert not many_jobs.reached([1.0, 0.84], [0.01])
    assert not many_jobs.reached([1.0, 1.31], [0.01])
    assert not many_jobs.reached([1.0, 1.0], [0.01, 0.02, 0.11])


def test_calls_that_nobody_granted_have_no_cost() -> None:
    load = Load(4, 4, 40, 4.0)
    load.stretch(5.0)
    found = load.stretch(20.0)
    assert abs(found["calls"] - 200) <= 4, "10 a second, of which each report brings a part"
    load.held[2] -= 1
    with pytest.raises(rows.Lost, match="40 calls are in flight, and 39 are granted"):
        load.figures()


def test_turns_are_parted_where_so_many_events_are_through() -> None:
    turns = iter([events.Turn(at_s, ((events.PermitsGranted(1),) * 3,)) for at_s in (1.0, 2.0, 3.0, 4.0)])
    assert [turn.at_s for turn in scale_worker.first(turns, 4)] == [1.0, 2.0]
    assert [turn.at_s for turn in turns] == [3.0, 4.0]
