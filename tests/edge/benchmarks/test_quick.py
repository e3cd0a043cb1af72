"""The guard counts what a road does, the same each time, and fails where the same calls take more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from actors.journal.journal import Journal
from benchmarks.harness import counting
from benchmarks.quick import guard
from cortex.journal import codec
from cortex.programs.batch import Batch
from policies.failures.failure_budget import too_many_failed


def _batch() -> guard.Case:
    work = counting.batch(1_200).less(counting.batch(200))
    return guard.Case(work.figures(guard.PER), work.by_part(guard.PER))


@pytest.fixture(scope="module")
def before() -> guard.Case:
    counting.batch(200)
    return _batch()


def _more(before: guard.Case) -> list[str]:
    found = guard.verdict({"batch": _batch()}, guard.kept_of({"batch": before}), lambda line: None)
    assert not found["less"]
    return [name for name in found["more"] if "messages" not in name]


def test_the_same_work_is_counted_the_same(before: guard.Case) -> None:
    assert _more(before) == []
    again = _batch().figures
    assert again.pop("functions") == pytest.approx(before.figures["functions"], rel=1e-4)  # threads wake up as they may
    assert again == {name: count for name, count in before.figures.items() if name != "functions"}


def test_a_chain_is_counted_too() -> None:
    assert counting.hanoi(3).figures(guard.PER)["commits"] > 0


def test_a_second_commit_a_turn_is_seen(before: guard.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Journal.append

    def twice(self: Journal, blobs: Sequence[bytes]) -> int:
        append(self, blobs)
        return append(self, [codec.encode_turn(codec.decode_turn(blobs[0]).at_s, [])])

    monkeypatch.setattr(Journal, "append", twice)
    assert "batch: commits" in _more(before)


def test_functions_that_are_called_besides_are_seen(before: guard.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    absorb: Callable[..., Any] = Batch.absorb

    def slower(self: Batch, *given: Any) -> Any:
        for _ in range(12):  # of about 100 a call
            too_many_failed(None, 0, 0)
        return absorb(self, *given)

    monkeypatch.setattr(Batch, "absorb", slower)
    assert _more(before) == ["batch: functions", "batch: functions of ours"]
    assert guard.grown(_batch().functions_by_part, before.functions_by_part).startswith("select +120,000")


def test_only_what_differs_by_more_than_a_tenth_is_told() -> None:
    def told(kept: float, now: float) -> str:
        (line,) = guard.compared("case", {"commits": now}, {"commits": kept})
        return line.verdict

    assert [told(1_000, now) for now in (899, 900, 1_100, 1_101)] == ["less", "", "", "more"]
    assert (told(20, 22), told(20, 23)) == ("", "more")
    assert told(0, 50) == "more"


def test_kinds_of_messages_that_are_rare_stand_together() -> None:
    now = {"messages: a": 500.0, "messages: b": 4.0, "messages: c": 3.0}
    kept = guard.kept_of({"case": guard.Case(now, {})}).cases["case"].figures
    assert kept == {"messages: a": 500.0, "messages: others": 7.0}
    lines = guard.compared("case", now | {"messages: new": 100.0}, kept)
    assert {line.name: line.verdict for line in lines} == {"case: messages: a": "", "case: messages: others": "more"}


def test_with_another_python_functions_of_its_libraries_are_not_judged() -> None:
    kept = guard.Kept("3.0", guard.PER, {"case": guard.Case({"functions": 100.0, "functions of ours": 100.0}, {})})
    lines: list[str] = []
    now = guard.Case({"functions": 200.0, "functions of ours": 200.0}, {"step": 100.0})
    assert guard.verdict({"case": now}, kept, lines.append)["more"] == ["case: functions of ours"]
    assert "case: it grew in step +100" in lines


def test_a_few_commits_more_are_a_tenth_and_a_few_messages_come_with_time() -> None:
    kept = {"commits": 43.0, "messages: branch.work": 33.0}  # one message in a thousand calls is 10
    for commits, messages, texts in (
        (47.0, 40.0, ["", ""]),
        (48.0, 43.0, ["more", "more"]),
        (38.0, 42.0, ["less", ""]),
    ):
        lines = guard.compared("batch", {"commits": commits, "messages: branch.work": messages}, kept)
        assert [line.verdict for line in lines] == texts
